"""Valid schedules pass, and every way of breaking one is found."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.errors import ScheduleError
from tessel.handwritten.construction.greedy import read_flow, run_greedily
from tessel.schedule import Schedule, Start
from tessel.shapes import SHAPES, make_shape, vshape
from tessel.validation import check_schedule, find_violations


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    placement = make_shape(
        draw(st.sampled_from(sorted(SHAPES))),
        draw(st.integers(2, 4)),
        forward_span=draw(st.integers(1, 4)),
        backward_span=draw(st.integers(1, 4)),
        lag=draw(st.integers(0, 2)),
    )
    micro_batches = draw(st.integers(1, 4))
    flow = read_flow(placement)
    return Schedule.of(
        placement,
        run_greedily(flow, micro_batches=micro_batches, in_flight=flow.depth),
        micro_batches=micro_batches,
    )


@settings(max_examples=50, deadline=None)
@given(schedule=schedules(), data=st.data())
def test_any_block_moved_to_step_zero_is_noticed_unless_it_may_stand_there(
    schedule: Schedule, data: st.DataObject
) -> None:
    assert find_violations(schedule) == ()
    position = data.draw(st.integers(0, len(schedule.starts) - 1))
    moved = schedule.starts[position]
    if moved.start == 0:
        return
    starts = tuple(Start(s.block, s.micro_batch, 0) if s is moved else s for s in schedule.starts)
    broken = find_violations(msgspec.structs.replace(schedule, starts=starts))
    # A block after another, or beside one that holds its device, cannot begin with the schedule.
    block = schedule.placement.block(moved.block)
    has_source = any(edge.target == moved.block for edge in schedule.placement.edges)
    neighbours = [s for s in starts if s.start == 0 and s is not moved]
    overlaps = any(set(schedule.placement.block(s.block).devices) & set(block.devices) for s in neighbours)
    if has_source or overlaps:
        assert broken


@settings(max_examples=30, deadline=None)
@given(schedule=schedules(), data=st.data())
def test_a_missing_or_doubled_block_is_noticed(schedule: Schedule, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(schedule.starts) - 1))
    without = schedule.starts[:position] + schedule.starts[position + 1 :]
    doubled = (*schedule.starts, schedule.starts[position])
    for starts in (without, doubled):
        assert find_violations(msgspec.structs.replace(schedule, starts=starts))


@pytest.mark.parametrize(
    "changes",
    [
        {"makespan": 1},
        {"bubble_ratio": 0.5},
        {"peak_memory": (9, 9)},
        {"memory": (1, 1)},
        {"lower_bound": 1000},
    ],
)
def test_a_wrong_figure_is_noticed(changes: dict[str, object]) -> None:
    placement = vshape(2)
    flow = read_flow(placement)
    schedule = Schedule.of(
        placement, run_greedily(flow, micro_batches=3, in_flight=flow.depth), micro_batches=3, memory=(3, 3)
    )
    check_schedule(schedule)
    with pytest.raises(ScheduleError, match="invalid"):
        check_schedule(msgspec.structs.replace(schedule, **changes))


def test_a_hand_worked_overlap_names_both_blocks() -> None:
    placement = vshape(1)
    schedule = Schedule.of(placement, {(0, 0): 0, (1, 0): 1, (0, 1): 2, (1, 1): 4}, micro_batches=2)
    (violation,) = [line for line in find_violations(schedule) if "device 0" in line]
    assert "f0" in violation
    assert "b0" in violation
