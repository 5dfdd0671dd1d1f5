"""Real ranks compute what the uncut model does, whatever the order of micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from pipeline_programs import ChainSpec, reference
from random_schedules import draw_schedule

from tessel.engine.actions import Action, actions_of, rank_by_stage, stages_before
from tessel.engine.devices import CPUS, Devices
from tessel.engine.import_function import find_function
from tessel.engine.job import MAX_TENSORS
from tessel.engine.ranks.executor import Executor
from tessel.engine.ranks.transport import Handover, TaggedTransport
from tessel.engine.training import _NoProgress
from tessel.handwritten import HANDWRITTEN
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.search import find_schedule
from tessel.shapes import make_shape
from tuner.plan import Routes, TensorInfo

pytestmark = pytest.mark.torch

MICRO_BATCHES = 4
IN_ORDER = Devices(is_tagged=False)
"""What carries tensors between GPUs, over gloo: messages have no tags and keep their order."""
VOCABULARY_PARALLEL = Path(__file__).parents[4] / "examples" / "vocabulary_parallel.py"


class Ranks(msgspec.Struct):
    """What stages of one's own are told."""

    ranks: tuple[tuple[int, ...], ...]


def assert_exact(
    ran: tuple[tuple[object, ...], dict[str, dict[str, np.ndarray]]],
    truth: tuple[Mapping[int, float], Mapping[str, np.ndarray]],
) -> None:
    results, gradients = ran
    losses, expected = truth
    for name, found in gradients.items():
        reported = {m: loss for result in results for m, loss in result.losses[name].items()}
        assert reported == pytest.approx(losses, rel=1e-5), name
        assert found.keys() == expected.keys()
        for weight, gradient in expected.items():
            np.testing.assert_allclose(
                found[weight], gradient, rtol=1e-4, atol=1e-6, err_msg=f"{name} {weight}"
            )


@pytest.mark.parametrize(
    "devices", [CPUS, pytest.param(IN_ORDER, marks=pytest.mark.slow)], ids=["tags", "order"]
)
def test_any_order_of_a_chain_is_exact(devices: Devices, run_ranks: Callable[..., object]) -> None:
    """Joint and split backwards mixed, weight halves late, the last stage's micro-batches shuffled."""
    placement = make_shape("vshape", 3, choose_backward=True)
    rng = np.random.default_rng(0)
    schedules = {f"random{i}": draw_schedule(placement, MICRO_BATCHES, rng) for i in range(8)}
    last = [[a.micro_batch for a in actions_of(s)[2] if a.kind == "F"] for s in schedules.values()]
    assert any(order != sorted(order) for order in last)
    ran = run_ranks(schedules, provider="pipeline_programs:provide", spec=ChainSpec(3), devices=devices)
    assert_exact(ran, reference(3, MICRO_BATCHES))
    for result in ran[0]:
        for name, schedule in schedules.items():
            (step,) = result.events[name]
            assert [event.action for event in step] == [str(a) for a in actions_of(schedule)[result.rank]]
            assert all(e.ready_s <= e.start_s <= e.end_s for e in step)


@pytest.mark.slow  # tests/tessel/engine/test_run.py runs both ends of a v on ranks
def test_a_rank_that_holds_both_ends_of_the_v_is_exact(run_ranks: Callable[..., object]) -> None:
    placement = make_shape("zbv", 2, split_backward=True)
    rng = np.random.default_rng(1)
    schedules = {f"random{i}": draw_schedule(placement, MICRO_BATCHES, rng) for i in range(3)}
    for rule in HANDWRITTEN:
        if rule.why_not(placement, MICRO_BATCHES, None) is None:
            schedules[rule.name] = rule.build(placement, micro_batches=MICRO_BATCHES)
    assert "zb-v" in schedules
    ran = run_ranks(schedules, provider="pipeline_programs:provide", spec=ChainSpec(4))
    assert_exact(ran, reference(4, MICRO_BATCHES))


@pytest.mark.parametrize(
    ("shape", "devices"),
    [
        *(pytest.param(each, CPUS, marks=pytest.mark.slow) for each in ("mllm", "nnshape")),
        ("nnshape", IN_ORDER),
    ],
    ids=str,
)
def test_blocks_on_all_ranks_are_exact(
    shape: str, devices: Devices, run_ranks: Callable[..., object]
) -> None:
    """Embeddings and a head vocabulary-parallel over all ranks, in the middle too; one tied weight."""
    placement = make_shape(shape, 2, choose_backward=True)
    rng = np.random.default_rng(2)
    schedules = {f"random{i}": draw_schedule(placement, MICRO_BATCHES, rng) for i in range(2)}
    spec = Ranks(rank_by_stage(schedules["random0"]))
    results, by_stage = run_ranks(
        schedules, provider=f"{VOCABULARY_PARALLEL}:stages", spec=spec, devices=devices
    )
    gradients: dict[str, dict[str, np.ndarray]] = {}
    for name, found in by_stage.items():
        total = gradients.setdefault(name, {})
        for key, gradient in found.items():
            weight = key.partition("/")[2]
            total[weight] = total[weight] + gradient if weight in total else gradient
    reference = find_function(f"{VOCABULARY_PARALLEL}:reference")
    truth = reference(msgspec.json.encode(spec).decode(), MICRO_BATCHES)
    assert_exact((results, gradients), truth)


class Diamond:
    """A stage whose tensors fork and meet; backward functions return what they are given, times a factor."""

    def __init__(self, routes: Routes, factor: float) -> None:
        self.routes, self.factor = routes, factor
        self.received = tuple(info for each in routes.received.values() for info in each)
        self.sent = tuple({info.name: info for each in routes.sent.values() for info in each}.values())
        self.sent_gradients = self.received
        self.received_gradients = self.sent
        self.given: dict[str, float] = {}

    def start_step(self, num_micro_batches: int) -> None:
        self.given.clear()

    def run(self, action: Action, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.given |= {f"{action.kind} {name}": float(value) for name, value in given.items()}
        made = self.sent if action.kind == "F" else self.sent_gradients
        return {info.name: torch.tensor(self.factor) for info in made}

    def gradients(self) -> dict[str, torch.Tensor]:
        return {}

    def losses(self) -> dict[int, float]:
        return {}


def test_what_forks_comes_back_as_a_sum() -> None:
    """Stage 0 sends x to stages 1 and 2, which send y and z to stage 3; all are on one rank."""
    x, y, z = (TensorInfo(name=name, shape=(), dtype="float32", num_bytes=4) for name in "xyz")
    edges = {(0, 1): (x,), (0, 2): (x,), (1, 3): (y,), (2, 3): (z,)}
    programs = {}
    for stage in range(4):
        before = {source: infos for (source, target), infos in edges.items() if target == stage}
        after = {target: infos for (source, target), infos in edges.items() if source == stage}
        routes = Routes(received=before, sent=after, received_gradients=after, sent_gradients=before)
        programs[stage] = Diamond(routes, 10.0**stage)
    placement = Placement(
        devices=1,
        blocks=tuple(
            Block(name=f"{letter}{stage}", kind=kind, devices=(0,))
            for letter, kind in (("f", BlockKind.FORWARD), ("b", BlockKind.BACKWARD))
            for stage in range(4)
        ),
        edges=(
            *(Edge(f"f{source}", f"f{target}") for source, target in edges),
            *(Edge(f"b{target}", f"b{source}") for source, target in edges),
            *(Edge(f"f{stage}", f"b{stage}") for stage in range(4)),
        ),
    )
    schedule = find_schedule(placement, micro_batches=1, memory=None, time_limit_s=0.2)
    assert stages_before(schedule) == ((), (0,), (0,), (1, 2))
    executor = Executor(0, rank_by_stage(schedule), programs, _NoProgress(), torch.device("cpu"))
    transport = TaggedTransport(4, torch.device("cpu"), farthest=2)
    executor.run_step(executor.prepare(actions_of(schedule)), 1, transport)
    assert programs[3].given == {"F y": 10.0, "F z": 100.0}
    assert programs[1].given == {"F x": 1.0, "B y": 1000.0}
    assert programs[0].given == {"B x": 10.0 + 100.0}


class Sendings:
    """Stands for the other ranks: gives ones, and notes what is sent to them."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []

    def start_step(self, arrivals: object) -> None: ...

    def expect(self, handover: Handover, source: int) -> None: ...

    def receive(self, handover: Handover, source: int) -> dict[str, torch.Tensor]:
        return {info.name: torch.tensor(1.0) for info in handover.tensors}

    def send(self, handover: Handover, made: object, peer: int) -> None:
        self.sent.append((handover.stage, handover.micro_batch))

    def finish(self) -> None: ...


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_stage_without_a_backward_is_sent_no_gradients(is_trained: bool) -> None:
    """Nobody would take them, and the step would never end: a frozen first stage."""
    x = {0: (TensorInfo(name="x", shape=(), dtype="float32", num_bytes=4),)}
    routes = Routes(received=x, sent={}, received_gradients={}, sent_gradients=x)
    names = ("f0", "f1", "b1", "b0") if is_trained else ("f0", "f1", "b1")
    kinds = {"f": BlockKind.FORWARD, "b": BlockKind.BACKWARD}
    placement = Placement(
        devices=2,
        blocks=tuple(Block(name=name, kind=kinds[name[0]], devices=(int(name[1]),)) for name in names),
        edges=tuple(Edge(*pair) for pair in itertools.pairwise(names)),
    )
    schedule = find_schedule(placement, micro_batches=2, memory=None, time_limit_s=0.2)
    others = Sendings()
    executor = Executor(
        1, rank_by_stage(schedule), {1: Diamond(routes, 1.0)}, _NoProgress(), torch.device("cpu")
    )
    executor.run_step(executor.prepare(actions_of(schedule)), 2, others)
    assert sorted(others.sent) == ([(0, 0), (0, 1)] if is_trained else [])


def test_no_two_transfers_have_the_same_tag() -> None:
    transport = TaggedTransport(4, torch.device("cpu"), farthest=3)
    tags = [
        transport._tag(Handover(stage, micro_batch, is_gradient, origin, ()), number)
        for stage in range(4)
        for origin in range(4)
        for is_gradient in (False, True)
        if origin != stage and (origin > stage) == is_gradient
        for micro_batch in range(3)
        for number in (0, MAX_TENSORS - 1)
    ]
    assert len(set(tags)) == len(tags)
    assert max(tags) < 3 * 4 * 2 * MAX_TENSORS * 3
