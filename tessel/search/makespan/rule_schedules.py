"""Hand-written rules as starts of tasks: the same schedules as they build, in time linear in the tasks.

A rule's instructions become the orders of the devices, which are timed; a rule that is simulated is listed by
`tessel.search.makespan.list_scheduling` with its preference. `1f1b-limited` lowers its limits by such
simulations. Where blocks without a span hold memory, what a device holds does not follow from its order
alone; then the rule itself is asked.

What a rule adds to the placement's precedences (1F1B's recomputation on arrival) is left out: the order is
kept, and nothing starts later. Checked in tests/tessel/search/makespan/test_rule_schedules.py against the
rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tessel.errors import ScheduleError
from tessel.handwritten import Rule, StreamRule
from tessel.handwritten.construction.greedy import Flow, Preference
from tessel.handwritten.construction.rule import find_excess, task_numbers
from tessel.handwritten.construction.stages import NotAPipelineError, read_pipeline
from tessel.handwritten.limited_1f1b import LimitedRule, fit_limits
from tessel.handwritten.strongest import MAX_TASKS
from tessel.orders import Task
from tessel.search.makespan.device_orders import (
    earliest_starts,
    keeps_limits,
    orders_of_devices,
    starts_of_devices,
)
from tessel.search.makespan.list_scheduling import NEVER, Listing, by_preference, list_schedule
from tessel.search.model.instance import Instance, InstanceArrays, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """A rule that was listed.

    Attributes:
        start: by task, -1 where a task is not run.
        makespan: the last end.
        peaks: most units held, by device.
    """

    start: IntArray
    makespan: int
    peaks: Sequence[int]


def rule_schedules(
    rule: Rule,
    instance: Instance,
    *,
    variants: bool,
    known: int = NEVER,
    is_dispensable: Callable[[], bool] = lambda: False,
) -> Iterator[IntArray]:
    """Yield the starts by task of every way to follow a rule that fits; none where it does not apply.

    Args:
        variants: whether other ways than the published one are tried.
        known: a makespan; what is seen to be no shorter before it is complete may be left out.
        is_dispensable: asked every few thousandths of a second while limits in flight are simulated; where it
            says yes, they are left out.
    """
    arrays = instance.arrays
    # A rule of one's own, or peaks that do not follow from orders. Where blocks take no time, what is taken
    # first of what becomes ready in one step may differ.
    takes_no_time = bool((arrays.span == 0).any()) and instance.num_tasks <= MAX_TASKS
    if not isinstance(rule, StreamRule | LimitedRule) or _adds_in_no_time(arrays) or takes_no_time:
        yield from _as_asked(rule, instance, variants=variants)
        return
    if isinstance(rule, LimitedRule):
        for preference in _ways(rule.preference, instance, variants=variants):
            yield from _limited(preference, instance, is_dispensable)
        return
    try:
        pipeline = read_pipeline(instance.placement)
    except NotAPipelineError:
        pipeline = None
    if pipeline is None or rule.applies(pipeline, instance.micro_batches) is not None:
        for preference in _ways(rule.generalised, instance, variants=variants):
            flow = preference.flow(instance.placement)
            limits = preference.in_flight(flow)
            found = simulate(
                arrays,
                flow,
                limits,
                preference.groups(flow),
                goes_on=lambda listing: may_pay(arrays, listing, known),
            )
            if found is not None:
                yield from _fitting(found, instance)
        return
    for streams in itertools.islice(
        rule.every_streams(pipeline, instance.micro_batches), None if variants else 1
    ):
        tasks_by_device = task_numbers(pipeline, streams)
        if not _keep_limits(arrays, tasks_by_device):
            continue
        start = starts_of_devices(arrays, tasks_by_device)
        if start is not None:
            yield start


def simulate(
    arrays: InstanceArrays,
    flow: Flow,
    in_flight: Mapping[int, int],
    groups: Mapping[int, int],
    *,
    goes_on: Callable[[Listing], bool] | None = None,
) -> Simulation | None:
    """List what the rules of any placement simulate; the same starts where every block takes time.

    Args:
        flow: how its blocks enter and leave.
        in_flight: most micro-batches between an opening block and its closing ones.
        groups: of `Preference.groups`.
        goes_on: asked every few thousandths of a second; where it says no, None is returned.
    """
    group = np.zeros(arrays.num_blocks, dtype=np.int64)
    group[list(groups)] = list(groups.values())
    rank = np.zeros(arrays.num_blocks, dtype=np.int64)
    rank[list(flow.blocks)] = -np.arange(len(flow.blocks))
    dispatch = by_preference(arrays, group=group, rank=rank, in_flight=in_flight, closing=flow.closing)
    options = np.zeros((len(arrays.default_option), arrays.micro_batches), dtype=np.int64)
    for block in flow.blocks:
        if arrays.choice[block] >= 0:
            options[arrays.choice[block]] = arrays.option[block]
    start = np.empty(arrays.num_blocks * arrays.micro_batches, dtype=np.int64)
    listing = list_schedule(arrays, dispatch, options, start, keeps_limits=False, goes_on=goes_on)
    if listing is None:
        assert goes_on is not None  # a limit makes a micro-batch wait only for earlier ones
        return None
    return Simulation(start, int(listing.makespan[0]), listing.peak.tolist())


def may_pay(arrays: InstanceArrays, listing: Listing, known: int) -> bool:
    """Return whether a simulation under way still fits, and may end before a known makespan."""
    if (listing.peak > arrays.limit).any():
        return False
    is_fixed = arrays.choice < 0  # what the others have yet to do depends on their options
    left = (arrays.micro_batches - listing.following) * arrays.span * is_fixed
    work = np.zeros(arrays.num_devices, dtype=np.int64)
    np.add.at(work, arrays.device, np.repeat(left, np.diff(arrays.device_start)))
    return bool((listing.free + work).max() < known)


def _keep_limits(arrays: InstanceArrays, tasks_by_device: Sequence[IntArray]) -> bool:
    """Return whether these orders keep the limits, whatever their times."""
    return all(
        arrays.memory[tasks % arrays.num_blocks].cumsum().max(initial=0) <= arrays.limit[device]
        for device, tasks in enumerate(tasks_by_device)
    )


def _ways(preference: Preference | None, instance: Instance, *, variants: bool) -> Iterator[Preference]:
    """Yield the ways in which a rule may be simulated, the published one first."""
    if preference is not None:
        yield from itertools.islice(preference.variants(instance.placement), None if variants else 1)


def _limited(
    preference: Preference, instance: Instance, is_dispensable: Callable[[], bool]
) -> Iterator[IntArray]:
    if instance.memory is None:
        return
    flow = preference.flow(instance.placement)
    groups = preference.groups(flow)
    found = fit_limits(
        flow,
        instance.micro_batches,
        instance.memory,
        lambda limits: simulate(
            instance.arrays, flow, limits, groups, goes_on=lambda listing: not is_dispensable()
        ),
    )
    if found is not None:
        yield from _fitting(found, instance)


def _fitting(found: Simulation, instance: Instance) -> Iterator[IntArray]:
    limits = instance.arrays.limit.tolist()
    if all(peak <= limit for peak, limit in zip(found.peaks, limits, strict=True)):
        yield found.start


def _adds_in_no_time(arrays: InstanceArrays) -> bool:
    return bool(((arrays.span == 0) & (arrays.memory != 0)).any())


def _as_asked(rule: Rule, instance: Instance, *, variants: bool) -> Iterator[IntArray]:
    """Yield the starts in the orders that the rule itself gives."""
    arrays = instance.arrays
    try:
        ways = rule.every_orders(
            instance.placement, micro_batches=instance.micro_batches, memory=instance.memory
        )
        for by_device in itertools.islice(ways, None if variants else 1):
            orders = orders_of_devices(arrays, [_numbers_of(arrays, tasks) for tasks in by_device])
            if orders is None:
                continue
            start = earliest_starts(arrays, orders)
            if keeps_limits(arrays, orders) or _fits_at_once(instance, start):
                yield start
    except ScheduleError:
        return


def _numbers_of(arrays: InstanceArrays, tasks: Sequence[Task]) -> IntArray:
    numbers = np.array(tasks, dtype=np.int64).reshape(-1, 2)
    found: IntArray = numbers[:, 1] * arrays.num_blocks + numbers[:, 0]
    return found


def _fits_at_once(instance: Instance, start: IntArray) -> bool:
    """Return whether the limits are kept if blocks of span 0 add and free in one step."""
    placement, memory = instance.placement, instance.memory
    if memory is None or not _adds_in_no_time(instance.arrays):
        return False
    size = len(placement.blocks)
    starts = {(task % size, task // size): int(start[task]) for task in np.flatnonzero(start >= 0).tolist()}
    return find_excess(placement, starts, memory) is None
