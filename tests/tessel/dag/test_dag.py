"""Slack, critical paths, eager and lazy starts."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.dag import Dag
from tessel.handwritten import HANDWRITTEN
from tessel.orders import device_orders, earliest_starts
from tessel.schedule import Schedule
from tessel.shapes import SHAPES, make_shape
from tessel.validation import find_violations
from tests.oracles.latest_starts import latest_starts


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A hand-written schedule of any shape, with unequal spans and hops."""
    devices = draw(st.integers(2, 4))
    placement = make_shape(
        draw(st.sampled_from(sorted(SHAPES))),
        devices,
        # Blocks of span 0 could start with what they free, and the peak depend on more than the order.
        forward_span=draw(st.integers(1, 5)),
        backward_span=draw(st.integers(1, 5)),
        lag=draw(st.integers(0, 3)),
        choose_backward=draw(st.booleans()),
    )
    micro_batches = draw(st.integers(1, 5))
    applying = [
        rule
        for rule in HANDWRITTEN
        if not rule.needs_limit and rule.why_not(placement, micro_batches) is None
    ]
    return draw(st.sampled_from(applying)).build(placement, micro_batches=micro_batches)


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_eager_and_lazy_are_the_earliest_and_latest_starts_of_the_orders(schedule: Schedule) -> None:
    dag = Dag.of_schedule(schedule)
    orders = device_orders(schedule.placement, schedule.start_by_block())
    eager, lazy = dag.to_schedule("eager"), dag.to_schedule("lazy")
    assert eager.start_by_block() == earliest_starts(schedule.placement, orders)
    assert lazy.start_by_block() == latest_starts(schedule.placement, orders, dag.makespan)
    for found in (eager, lazy):
        assert find_violations(found) == ()
        assert found.makespan == dag.makespan <= schedule.makespan
        assert found.peak_memory == schedule.peak_memory


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_the_critical_path_has_no_slack_and_no_pause(schedule: Schedule) -> None:
    dag = Dag.of_schedule(schedule)
    number = {task: position for position, task in enumerate(dag.tasks)}
    path = [number[task] for task in dag.critical_path()]
    assert dag.earliest[path[0]] == 0
    assert dag.earliest[path[-1]] + dag.tasks[path[-1]].duration == dag.makespan
    assert all(dag.slack[position] == 0 for position in path)
    lags = {(arc.source, arc.target): 0 for arc in dag.arcs}
    for arc in dag.arcs:
        lags[arc.source, arc.target] = max(lags[arc.source, arc.target], arc.lag)
    for before, after in pairwise(path):
        assert dag.earliest[before] + dag.tasks[before].duration + lags[before, after] == dag.earliest[after]


@settings(max_examples=30, deadline=None)
@given(schedules(), st.data())
def test_slack_is_what_a_task_may_take_longer(schedule: Schedule, data: st.DataObject) -> None:
    dag = Dag.of_schedule(schedule)
    position = data.draw(st.integers(0, len(dag.tasks) - 1))
    extra = data.draw(st.integers(0, 4))
    tasks = list(dag.tasks)
    tasks[position] = tasks[position]._replace(duration=tasks[position].duration + extra)
    longer = Dag(dag.placement, dag.micro_batches, tuple(tasks), dag.arcs)
    assert longer.makespan == dag.makespan + max(0, extra - dag.slack[position])
