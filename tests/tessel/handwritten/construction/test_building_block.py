"""Building blocks: no two passes meet, and closing the holes keeps memory and order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.handwritten.construction import building_block
from tessel.handwritten.construction.building_block import PERIOD, Slots, building_block_streams
from tessel.handwritten.zero_bubble import v_half, v_min
from tessel.instruction import BackwardInput, BackwardWeight, Forward, Instruction

BLOCKS = {"v-min": v_min.building_block, "v-half": v_half.building_block}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("devices", range(1, 33))
def test_passes_of_all_micro_batches_have_slots_of_their_own(
    block: Callable[[int], list[Slots]], devices: int
) -> None:
    for slots in block(devices):
        assert len({slot % PERIOD for slot in slots}) == 4
        assert list(slots) == sorted(slots)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(BLOCKS)), st.integers(1, 7), st.integers(1, 12))
def test_each_device_runs_its_two_chunks_once_and_holds_no_more_than_in_the_steady_part(
    name: str, devices: int, micro_batches: int
) -> None:
    streams = building_block_streams(BLOCKS[name](devices), micro_batches)
    steady = building_block_streams(BLOCKS[name](devices), 20)
    limit = max(_peak(stream) for stream in steady)
    for device, stream in enumerate(streams):
        expected = Counter(
            kind(stage, micro_batch)
            for kind in (Forward, BackwardInput, BackwardWeight)
            for stage in (device, 2 * devices - 1 - device)
            for micro_batch in range(micro_batches)
        )
        assert Counter(stream) == expected
        assert _peak(stream) <= limit


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(BLOCKS)), st.integers(1, 6), st.integers(0, 20), st.sampled_from((2, 3)))
def test_a_repeated_steady_part_is_the_one_that_is_written(
    name: str, devices: int, more: int, written: int
) -> None:
    micro_batches = written * devices + 2 + more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building_block, "WRITTEN_A_DEVICE", written)
        repeated = building_block_streams(BLOCKS[name](devices), micro_batches)
        patch.setattr(building_block, "WRITTEN_A_DEVICE", micro_batches)
        every = building_block_streams(BLOCKS[name](devices), micro_batches)
    assert list(map(tuple, repeated)) == list(map(tuple, every))


def _peak(stream: Iterable[Instruction]) -> int:
    held = peak = 0
    for instruction in stream:
        held += 2 if isinstance(instruction, Forward) else -1
        peak = max(peak, held)
    return peak
