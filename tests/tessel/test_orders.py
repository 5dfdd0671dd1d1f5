"""Earliest and latest starts of given device orders."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.errors import ScheduleError
from tessel.handwritten.construction.greedy import read_flow, run_greedily
from tessel.orders import Task, device_orders, earliest_starts
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.shapes import SHAPES, make_shape, vshape
from tessel.validation import find_violations


@st.composite
def ordered_placements(draw: st.DrawFn) -> tuple[Placement, int, dict[tuple[int, int], int]]:
    """A shape, micro-batches, and the starts of some schedule of it with idle steps added."""
    name = draw(st.sampled_from(sorted(SHAPES)))
    placement = make_shape(
        name,
        draw(st.integers(2, 4)),
        forward_span=draw(st.integers(0, 5)),
        backward_span=draw(st.integers(0, 5)),
        lag=draw(st.integers(0, 3)),
    )
    micro_batches = draw(st.integers(1, 4))
    flow = read_flow(placement)
    starts = run_greedily(flow, micro_batches=micro_batches, in_flight=flow.depth)
    stretch = draw(st.integers(1, 3))
    return placement, micro_batches, {task: start * stretch for task, start in starts.items()}


@settings(max_examples=60, deadline=None)
@given(ordered_placements())
def test_orders_of_a_schedule_give_a_valid_one_no_later(
    case: tuple[Placement, int, dict[tuple[int, int], int]],
) -> None:
    placement, micro_batches, starts = case
    orders = device_orders(placement, starts)
    earliest = earliest_starts(placement, orders)
    assert find_violations(Schedule.of(placement, earliest, micro_batches=micro_batches)) == ()
    assert all(earliest[task] <= start for task, start in starts.items())


def test_two_devices_by_hand() -> None:
    """f0[0] f0[1] b0[0] b0[1] over f1[0] b1[0] f1[1] b1[1], forwards 1 and backwards 2 with hops of 1."""
    placement = vshape(2, backward_span=2, lag=1)
    f0, f1, b1, b0 = range(4)
    orders = (
        (Task(f0, 0), Task(f0, 1), Task(b0, 0), Task(b0, 1)),
        (Task(f1, 0), Task(b1, 0), Task(f1, 1), Task(b1, 1)),
    )
    assert earliest_starts(placement, orders) == {
        (f0, 0): 0,
        (f0, 1): 1,
        (f1, 0): 2,
        (b1, 0): 3,
        (f1, 1): 5,
        (b1, 1): 6,
        (b0, 0): 6,
        (b0, 1): 9,
    }


def test_a_dead_lock_names_its_cycle() -> None:
    placement = vshape(2)
    f0, f1, b1, b0 = range(4)
    orders = ((Task(b0, 0), Task(f0, 0)), (Task(f1, 0), Task(b1, 0)))
    with pytest.raises(
        ScheduleError, match=r"deadlock: .*b0\[0\].* waits for .*put one of these tasks earlier"
    ):
        earliest_starts(placement, orders)
    assert (f1, b1) == (1, 2)


def test_wrong_orders_are_refused_by_name() -> None:
    placement = make_shape("mshape", 2)
    both = Task(placement.index_by_name["f0"], 0)
    with pytest.raises(ScheduleError, match=r"f0\[0\] is missing in the order of device 1"):
        earliest_starts(placement, ((both,), ()))
    with pytest.raises(ScheduleError, match="device 0 has a task twice"):
        earliest_starts(placement, ((both, both), (both,)))
    with pytest.raises(ValueError, match=r"f1\[0\] stands in the order of device 1"):
        earliest_starts(placement, ((), (Task(placement.index_by_name["f1"], 0),)))
    with pytest.raises(ValueError, match="1 orders were given for 2 devices"):
        earliest_starts(placement, ((),))
