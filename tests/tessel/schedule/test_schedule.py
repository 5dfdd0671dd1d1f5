"""Schedules made of tasks: their order in the document and their peaks, at any size of step."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.shapes import mshape, vshape, zbv

PLACEMENTS = (vshape(3), zbv(2, split_backward=True), mshape(2))


@given(
    placement=st.sampled_from(PLACEMENTS),
    micro_batches=st.integers(1, 4),
    # With the last, one number cannot hold step, block and micro-batch any more.
    scale=st.sampled_from([1, 10**6, 2**57]),
    data=st.data(),
)
def test_starts_are_sorted_and_peaks_are_those_of_a_walk_through_time(
    placement: Placement, micro_batches: int, scale: int, data: st.DataObject
) -> None:
    tasks = [(block, number) for block in range(len(placement.blocks)) for number in range(micro_batches)]
    steps = data.draw(st.lists(st.integers(0, 9), min_size=len(tasks), max_size=len(tasks)))
    starts = {task: step * scale for task, step in zip(tasks, steps, strict=True)}
    schedule = Schedule.of(placement, starts, micro_batches=micro_batches)

    expected = sorted((step, *task) for task, step in starts.items())
    assert [(start.start, start.block, start.micro_batch) for start in schedule.starts] == [
        (step, placement.blocks[block].name, number) for step, block, number in expected
    ]
    changes: defaultdict[tuple[int, int], int] = defaultdict(int)
    for step, index, _ in expected:
        block = placement.blocks[index]
        for device in block.devices:
            changes[device, step] += block.memory
    held = [0] * placement.devices
    peaks = [0] * placement.devices
    for (device, _), change in sorted(changes.items()):
        held[device] += change
        peaks[device] = max(peaks[device], held[device])
    assert schedule.peak_memory == tuple(peaks)
