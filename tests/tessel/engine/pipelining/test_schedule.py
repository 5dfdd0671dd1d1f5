"""Torch's runtime runs the plan's orders exactly, and what it cannot hold is refused beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from planned_models import WORDS, encoder_decoder
from random_schedules import draw_schedule
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from tessel.engine import EngineError, actions_of, actions_to_csv, build_schedule, renumbered
from tessel.schedule import Schedule
from tessel.shapes import make_shape
from tuner.plan import TiedParameter
from tuner.stages.torch_stages import split_module

pytestmark = pytest.mark.torch

WIDTH, ROWS, MICRO_BATCHES = 6, 2, 4


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of this process alone, whose rank holds every stage."""
    path = tmp_path_factory.mktemp("group") / "rendezvous"
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make_stages(num_stages: int) -> dict[int, nn.Module]:
    torch.manual_seed(0)
    return {number: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for number in range(num_stages)}


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def draw_batch() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    shape = (MICRO_BATCHES * ROWS, WIDTH)
    return tuple(torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for _ in range(2))


def one_rank_schedule(seed: int, **options: bool) -> Schedule:
    placement = make_shape("interleaved", 1, chunks=3, **options)
    return draw_schedule(placement, MICRO_BATCHES, np.random.default_rng(seed))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["joint", "split_backward"]))
def test_any_order_is_exact(group: None, seed: int, backward: str) -> None:
    schedule = one_rank_schedule(seed, **({} if backward == "joint" else {backward: True}))
    stages = make_stages(3)
    x, target = draw_batch()
    losses: list[torch.Tensor] = []
    output = build_schedule(schedule, stages, loss_of).step(x, target=target, losses=losses)
    whole = nn.Sequential(*make_stages(3).values())
    expected = [
        loss_of(whole(a), b) for a, b in zip(x.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES), strict=True)
    ]
    (sum(expected) / MICRO_BATCHES).backward()
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected))
    torch.testing.assert_close(output, whole(x))
    for number, stage in stages.items():
        for found, true in zip(stage.parameters(), whole[number].parameters(), strict=True):
            torch.testing.assert_close(found.grad, true.grad)


@pytest.mark.parametrize("options", [{}, {"split_backward": True}], ids=["joint", "split"])
def test_torchs_own_runtime_loads_the_csv_and_is_exact(
    group: None, options: dict[str, bool], tmp_path: Path
) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(actions_to_csv(renumbered(actions_of(one_rank_schedule(0, **options)))))
    modules = make_stages(3)
    stages = [PipelineStage(modules[number], number, 3, torch.device("cpu")) for number in range(3)]
    runtime = _PipelineScheduleRuntime(stages, MICRO_BATCHES, loss_fn=loss_of)
    runtime._load_csv(str(path))
    x, target = draw_batch()
    runtime.step(x, target=target, losses=[])
    whole = nn.Sequential(*make_stages(3).values())
    loss_of(whole(x), target).backward()
    for number, stage in modules.items():
        for found, true in zip(stage.parameters(), whole[number].parameters(), strict=True):
            torch.testing.assert_close(found.grad, true.grad)


def test_some_drawn_order_shuffles_the_last_stage() -> None:
    (own,) = actions_of(one_rank_schedule(0))
    last = [action.micro_batch for action in own if (action.stage, action.kind) == (2, "F")]
    assert last != sorted(last)


def test_torchs_own_stages_are_taken_in_any_order_of_the_list(group: None) -> None:
    stages = [
        PipelineStage(module, number, 3, torch.device("cpu"))
        for number, module in reversed(make_stages(3).items())
    ]
    x, target = draw_batch()
    runtime = build_schedule(one_rank_schedule(3), stages, loss_of)
    runtime.step(x, target=target, losses=[])
    runtime.step(x, target=target, losses=[])  # A second step starts anew.


def test_what_torch_cannot_hold_is_refused_with_the_reason(group: None) -> None:
    stages = make_stages(3)
    with pytest.raises(EngineError, match="group has 1 processes, but the plan is for 2"):
        build_schedule(draw_schedule(make_shape("vshape", 2), 2, np.random.default_rng(0)), {}, loss_of)
    with pytest.raises(EngineError, match=r"stages \[0, 1\] were given, .*\[0, 1, 2\]"):
        build_schedule(one_rank_schedule(0), {0: stages[0], 1: stages[1]}, loss_of)
    with pytest.raises(EngineError, match="stage 0 has no backward"):
        build_schedule(one_rank_schedule(0, infer=True), stages, loss_of)
    frozen = draw_schedule(make_shape("finetune", 1), 2, np.random.default_rng(0))
    with pytest.raises(EngineError, match="stage 0 has no backward"):
        build_schedule(frozen, {0: stages[0], 1: stages[1]}, loss_of)
    wrong = [PipelineStage(stages[i], i, 4, torch.device("cpu")) for i in range(3)]
    with pytest.raises(EngineError, match="made for 4 stages"):
        build_schedule(one_rank_schedule(0), wrong, loss_of)


class Branch(nn.Module):
    """Also returns what depends on a weight of its own alone: no received tensor leads to it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.places = nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(self.linear(x)), torch.sin(self.places)


class Product(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y


def test_a_split_backward_reaches_weights_behind_no_received_tensor(group: None) -> None:
    stages = {0: make_stages(1)[0], 1: Branch(), 2: Product()}
    x, target = draw_batch()
    build_schedule(one_rank_schedule(1, split_backward=True), stages, loss_of).step(x, target=target)
    whole = nn.ModuleList([make_stages(1)[0], Branch()])
    for rows, true in zip(x.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES), strict=True):
        left, right = whole[1](whole[0](rows))
        (loss_of(left * right, true) / MICRO_BATCHES).backward()
    assert_gradients_equal(nn.ModuleList([stages[0], stages[1]]), whole)


def test_steps_may_be_accumulated(group: None) -> None:
    stages = make_stages(3)
    x, target = draw_batch()
    runtime = build_schedule(one_rank_schedule(2), stages, loss_of)
    for _ in range(2):
        runtime.step(x, target=target)
    whole = nn.Sequential(*make_stages(3).values())
    (2 * loss_of(whole(x), target)).backward()
    assert_gradients_equal(nn.Sequential(*stages.values()), whole)


def test_a_weight_that_two_stages_share_is_divided_once(group: None) -> None:
    stages, copies = make_stages(3), make_stages(3)
    for each in (stages, copies):
        each[2][0].weight = each[0][0].weight
    x, target = draw_batch()
    build_schedule(one_rank_schedule(2), stages, loss_of).step(x, target=target)
    whole = nn.Sequential(*copies.values())
    loss_of(whole(x), target).backward()
    assert_gradients_equal(nn.Sequential(*stages.values()), whole)


@pytest.mark.parametrize("options", [{}, {"split_backward": True}], ids=["joint", "split"])
def test_stages_of_a_module_that_was_cut_are_exact(group: None, options: dict[str, bool]) -> None:
    """What bypasses a stage is relayed, the words that only the second stage reads among it."""
    module, example = encoder_decoder()
    pipeline = split_module(module, example, ["encoder", "decoder.0"])
    words = torch.randint(0, WORDS, (2, MICRO_BATCHES * 2, 3), generator=torch.Generator().manual_seed(0))
    source, target = words
    stages = {number: stage.module for number, stage in enumerate(pipeline.stages)}
    runtime = build_schedule(one_rank_schedule(3, **options), stages, word_loss)
    output = runtime.step(source, target, target=target)
    whole, _ = encoder_decoder()
    torch.testing.assert_close(output, whole(source, target))
    word_loss(whole(source, target), target).backward()
    assert_gradients_equal(module, whole)


def test_a_tied_weight_that_a_stage_lacks_is_refused(group: None) -> None:
    tied = [(TiedParameter("0.weight", 0), TiedParameter("nothing", 2))]
    with pytest.raises(EngineError, match="weight nothing of stage 2 is tied, but the stage's module has no"):
        build_schedule(one_rank_schedule(0), make_stages(3), loss_of, tied=tied)


def word_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def assert_gradients_equal(found: nn.Module, expected: nn.Module) -> None:
    true = dict(expected.named_parameters())
    for name, weight in found.named_parameters():
        gradient = true[name].grad
        torch.testing.assert_close(weight.grad, gradient, msg=lambda text, name=name: f"{name}: {text}")
