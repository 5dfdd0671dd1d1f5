"""One rank of a trained pipeline: gradients where an optimizer finds them, clipping, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is installed

from tessel.engine.actions import Action  # noqa: E402 - as above
from tessel.engine.errors import EngineError  # noqa: E402 - as above
from tessel.engine.training import TrainingPipeline, own_stages  # noqa: E402 - as above
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B  # noqa: E402 - as above
from tessel.shapes import vshape  # noqa: E402 - as above
from tuner.plan import TiedParameter  # noqa: E402 - as above

pytestmark = pytest.mark.torch

MICRO_BATCHES = 4


class Slope:
    """A stage without neighbours whose loss is its weight times the number of the micro-batch, from 1."""

    received = sent = received_gradients = sent_gradients = ()
    divided_weights: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.weights = {"slope": torch.tensor([3.0]), "frozen": torch.tensor([1.0])}

    def start_step(self, num_micro_batches: int) -> None:
        self.seen: dict[int, float] = {}

    def run(self, action: Action, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.seen[action.micro_batch] = float(self.weights["slope"]) * (action.micro_batch + 1)
        return {}

    def own_gradients(self) -> dict[str, torch.Tensor]:
        return {"slope": torch.tensor([sum(range(1, MICRO_BATCHES + 1)) / MICRO_BATCHES])}

    def gradients(self) -> dict[str, torch.Tensor]:
        return self.own_gradients()

    def losses(self) -> dict[int, float]:
        return self.seen


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """One process that is a group of its own."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def pipeline() -> TrainingPipeline:
    schedule = ONE_F_ONE_B.build(vshape(1), micro_batches=MICRO_BATCHES)
    return TrainingPipeline(schedule, {0: Slope()})


@pytest.mark.usefixtures("alone")
def test_a_step_leaves_mean_gradients_for_any_optimizer() -> None:
    trained = pipeline()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    assert trained.step() == {m: 3.0 * (m + 1) for m in range(MICRO_BATCHES)}
    slope, frozen = trained.parameters()
    assert slope.grad is not None
    assert slope.grad.tolist() == [2.5]
    assert frozen.grad is None
    optimizer.step()
    assert slope.tolist() == pytest.approx([2.75])
    assert trained.step()[0] == pytest.approx(2.75), "the program computes with what the optimizer changed"


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("max_norm", "clipped"), [(1.0, 1.0), (5.0, 2.5)])
def test_clipping_scales_down_and_never_up(max_norm: float, clipped: float) -> None:
    trained = pipeline()
    trained.step()
    assert trained.clip_grad_norm_(max_norm) == pytest.approx(2.5)
    assert float(trained.parameters()[0].grad) == pytest.approx(clipped, rel=1e-5)


@pytest.mark.usefixtures("alone")
def test_a_state_of_other_weights_changes_nothing() -> None:
    trained = pipeline()
    state = {name: value.clone() for name, value in trained.state_dict().items()}
    assert list(state) == ["0.slope", "0.frozen"]
    with pytest.raises(EngineError, match=r"weight 0\.slope of rank 0 is only in one"):
        trained.load_state_dict({"0.frozen": torch.tensor([7.0])})
    with pytest.raises(EngineError, match=r"frozen has shape \(2,\) in the state, and \(1,\) on rank 0"):
        trained.load_state_dict({"0.slope": torch.tensor([7.0]), "0.frozen": torch.zeros(2)})
    assert trained.state_dict() == state
    trained.load_state_dict({name: value + 1 for name, value in state.items()})
    assert trained.step()[0] == pytest.approx(4.0)


@pytest.mark.usefixtures("alone")
def test_other_processes_or_stages_than_the_schedules_are_refused() -> None:
    two = ONE_F_ONE_B.build(vshape(2), micro_batches=MICRO_BATCHES)
    assert own_stages(two, 1) == (1,)
    with pytest.raises(EngineError, match=r"2 devices, and torch\.distributed 1 processes"):
        TrainingPipeline(two, {0: Slope()})
    one = ONE_F_ONE_B.build(vshape(1), micro_batches=MICRO_BATCHES)
    with pytest.raises(EngineError, match=r"rank 0 runs stages \[0\], and there are programs of \[1\]"):
        TrainingPipeline(one, {1: Slope()})


@pytest.mark.usefixtures("alone")
def test_a_tied_weight_that_is_divided_in_part_is_refused() -> None:
    class Divided(Slope):
        divided_weights = frozenset({"frozen"})

    one = ONE_F_ONE_B.build(vshape(1), micro_batches=MICRO_BATCHES)
    tied = ((TiedParameter("slope", 0), TiedParameter("frozen", 0)),)
    with pytest.raises(EngineError, match="slope is divided in one stage and whole in another"):
        TrainingPipeline(one, {0: Divided()}, tied=tied)
