"""The streams of schedules that PyTorch has too are PyTorch's, action by action."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tessel.handwritten import HANDWRITTEN, StreamRule
from tessel.handwritten.construction.stages import read_pipeline
from tessel.instruction import Backward, BackwardInput, BackwardWeight, Forward
from tessel.placement import Placement
from tessel.shapes import interleaved, vshape, zbv

torch = pytest.importorskip("torch")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

from torch_schedule_stages import stages_of_torch  # noqa: E402 - after the skip

pytestmark = pytest.mark.torch

RULES = {rule.name: rule for rule in HANDWRITTEN}
LETTERS = {Forward: "F", Backward: "B", BackwardInput: "I", BackwardWeight: "W"}


def orders_of_torch(schedule: str, num_devices: int, chunks: int, micro_batches: int) -> list[list[str]]:
    """Actions by rank; PyTorch computes the orders of all ranks from any rank's stages."""
    num_stages = num_devices * chunks
    firsts = (
        (0, num_stages - 1) if schedule in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV") else range(chunks)
    )
    indices = firsts if isinstance(firsts, tuple) else (first * num_devices for first in firsts)
    stages = stages_of_torch(indices, num_stages=num_stages, num_ranks=num_devices)
    found = getattr(schedules, schedule)(stages, micro_batches).pipeline_order
    return [list(actions(found[rank])) for rank in range(num_devices)]


def actions(order: list[Any]) -> Iterator[str]:
    """Actions of one rank, idle slots left out and overlapped pairs one after the other."""
    for action in order:
        if action is None:
            continue
        for part in action.sub_actions or (action,):
            yield str(part)


def orders_of_ours(name: str, placement: Placement, micro_batches: int) -> list[list[str]]:
    rule = RULES[name]
    assert isinstance(rule, StreamRule)
    return [
        [f"{item.stage}{LETTERS[type(item)]}{item.micro_batch}" for item in stream]
        for stream in rule.streams(read_pipeline(placement), micro_batches)
    ]


@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("devices", [2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaved_1f1b(devices: int, rounds: int, chunks: int) -> None:
    placement = interleaved(devices, chunks=chunks)
    ours = orders_of_ours("interleaved", placement, devices * rounds)
    assert ours == orders_of_torch("ScheduleInterleaved1F1B", devices, chunks, devices * rounds)


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaved_zero_bubble(devices: int, rounds: int, chunks: int) -> None:
    placement = interleaved(devices, chunks=chunks, split_backward=True)
    ours = orders_of_ours("interleaved-zb", placement, devices * rounds)
    assert ours == orders_of_torch("ScheduleInterleavedZeroBubble", devices, chunks, devices * rounds)


@pytest.mark.parametrize("micro_batches", [8, 12])
@pytest.mark.parametrize("devices", [2, 4])
def test_zb_h1(devices: int, micro_batches: int) -> None:
    ours = orders_of_ours("zb-h1", vshape(devices, split_backward=True), micro_batches)
    assert ours == orders_of_torch("ScheduleInterleavedZeroBubble", devices, 1, micro_batches)


@pytest.mark.parametrize(("devices", "micro_batches"), [(2, 4), (3, 6), (3, 17), (4, 8), (4, 11)])
def test_zb_v(devices: int, micro_batches: int) -> None:
    """With fewer than 2P micro-batches PyTorch counts weight halves that were never put off."""
    ours = orders_of_ours("zb-v", zbv(devices, split_backward=True), micro_batches)
    assert ours == orders_of_torch("ScheduleZBVZeroBubble", devices, 2, micro_batches)


@pytest.mark.parametrize("micro_batches", [8, 11])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_dualpipe_v(devices: int, micro_batches: int) -> None:
    ours = orders_of_ours("dualpipe-v", zbv(devices, split_backward=True), micro_batches)
    assert ours == orders_of_torch("ScheduleDualPipeV", devices, 2, micro_batches)
