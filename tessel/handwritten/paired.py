"""Hand-written orders with neighbours that run together, and schedules of orders and pairs.

Checked in tests/tessel/search/overlap/test_find_overlapped.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessel.handwritten.construction.rule import Rule
from tessel.handwritten.strongest import MAX_TASKS, build_strongest
from tessel.orders import Orders, Task, device_orders, earliest_starts
from tessel.placement import Placement
from tessel.schedule.overlap import Overlap, Pair, neighbours, paired_starts
from tessel.schedule.schedule import Schedule


def paired_rule(
    rule: Rule,
    placement: Placement,
    *,
    micro_batches: int,
    factor: float | None,
    memory: Sequence[int] | None = None,
) -> Schedule:
    """Return the shortest schedule that follows a rule, with its neighbours paired or not.

    Of those that fit the limit, where any does; of a rule with many tasks, of its published version alone.

    Args:
        rule: it applies to the placement.
        placement: blocks of one micro-batch.
        micro_batches: how many are run.
        factor: share of its sum that a pair takes; None for the strongest order without pairs.
        memory: limit in units, one a device; None for none.

    Raises:
        ScheduleError: see `Rule.every_orders`.
    """
    if factor is None:
        return build_strongest(rule, placement, micro_batches=micro_batches, memory=memory)
    found = [
        schedule
        for orders in orders_of_rule(rule, placement, micro_batches, memory)
        for pairs in pairings(placement, orders)
        for schedule in [timed(placement, orders, pairs, factor, micro_batches, memory, rule.name)]
    ]
    return min(found, key=lambda each: (not fits(each), each.makespan))


def orders_of(schedule: Schedule) -> tuple[tuple[Task, ...], ...]:
    """Return the order in which each device runs a schedule, of a pair the forward first."""
    orders = device_orders(schedule.placement, schedule.start_by_block())
    behind = dict(schedule.pairs)
    late = set(behind.values())
    return tuple(
        tuple(
            each
            for task in order
            if task not in late
            for each in ((task, behind[task]) if task in behind else (task,))
        )
        for order in orders
    )


def timed_again(schedule: Schedule, placement: Placement, memory: Sequence[int] | None) -> Schedule:
    """Return a schedule in its own orders and pairs, as early as other lags and limits of its blocks allow.

    Args:
        schedule: of the same blocks.
        placement: its blocks and edges with other lags.
        memory: limit by device; None for none.
    """
    if schedule.overlap_factor is not None:
        orders = orders_of(schedule)
        factor, count = schedule.overlap_factor, schedule.micro_batches
        return timed(placement, orders, schedule.pairs, factor, count, memory, schedule.found_by)
    return Schedule.of(
        placement,
        earliest_starts(placement, device_orders(schedule.placement, schedule.start_by_block())),
        micro_batches=schedule.micro_batches,
        memory=memory,
        found_by=schedule.found_by,
    )


def timed(
    placement: Placement,
    orders: Orders,
    pairs: Sequence[Pair],
    factor: float,
    micro_batches: int,
    memory: Sequence[int] | None,
    found_by: str = "",
    lower_bound: int = 0,
) -> Schedule:
    """Return the schedule of orders and pairs, each task as early as they allow.

    Raises:
        DeadlockError: the orders wait for themselves.
    """
    found = paired_starts(placement, orders, pairs, factor)
    return Schedule.of(
        placement,
        found.starts,
        micro_batches=micro_batches,
        memory=memory,
        overlap=Overlap.of(
            placement, factor, sorted(found.pairs, key=lambda pair: (found.starts[pair[1]], pair))
        ),
        found_by=found_by,
        lower_bound=lower_bound,
    )


def fits(schedule: Schedule) -> bool:
    """Whether every device keeps the schedule's limit."""
    return schedule.memory is None or all(
        peak <= limit for peak, limit in zip(schedule.peak_memory, schedule.memory, strict=True)
    )


def orders_of_rule(
    rule: Rule, placement: Placement, micro_batches: int, memory: Sequence[int] | None
) -> Iterator[Orders]:
    """Yield the orders in which a rule may be followed; of many tasks the published one alone."""
    every = rule.every_orders(placement, micro_batches=micro_batches, memory=memory)
    is_large = len(placement.blocks) * micro_batches > MAX_TASKS
    yield next(every)
    if not is_large:
        yield from every


def pairings(placement: Placement, orders: Orders) -> Iterator[tuple[Pair, ...]]:
    """Yield the pairs that are tried: a forward and what follows it, a backward and what does, none."""
    yield neighbours(placement, orders, forward_first=True)
    yield neighbours(placement, orders, forward_first=False)
    yield ()
