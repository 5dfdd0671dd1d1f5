"""The strongest schedule that a hand-written rule permits: the shortest over its free parameters.

A comparison with a rule is fair only against the best schedule that the rule permits. Each rule's module
states its free parameters; what it fixes, such as 1F1B's warm-up, is kept. Among the variants that fit the
memory limit, or among all if none fits, the shortest is taken. Checked in
tests/tessel/handwritten/test_strongest.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessel.handwritten.construction.rule import Rule, as_schedule, find_excess
from tessel.placement import Placement
from tessel.schedule.schedule import Schedule

MAX_TASKS = 20_000
"""Tasks of a schedule above which only the published version is built: a variant takes tenths of a second."""


def build_strongest(
    rule: Rule, placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
) -> Schedule:
    """Return the shortest schedule that follows a rule; of those that fit the limit, where any does.

    Args:
        rule: it applies to the placement.
        placement: blocks of one micro-batch.
        micro_batches: how many are run, >= 1.
        memory: limit in units, one per device; None for none.

    Raises:
        InfeasibleError: the rule needs a limit, and one micro-batch in flight does not keep it.
        ScheduleError: the rule does not apply; the message says why.
    """
    needed = memory if rule.needs_limit else None
    published = rule.build(placement, micro_batches=micro_batches, memory=needed)
    if len(placement.blocks) * micro_batches > MAX_TASKS:
        return published
    best = (_breaks(published, memory), published.makespan), published
    for orders in list(rule.every_orders(placement, micro_batches=micro_batches, memory=memory))[1:]:
        starts = rule.timed(placement, orders)
        found = as_schedule(rule.name, placement, starts, micro_batches=micro_batches, memory=None)
        best = min(best, ((_breaks(found, memory), found.makespan), found), key=lambda pair: pair[0])
    return best[1]


def _breaks(schedule: Schedule, memory: Sequence[int] | None) -> bool:
    if memory is None:
        return False
    starts = schedule.start_by_block()
    return find_excess(schedule.placement, starts, memory) is not None
