"""Find the shortest schedule of micro-batches that differ: their order, and that of all their blocks.

    hand-written orders × sequences of micro-batches → exchanges within a rule → the folded problem, searched
        like any other: list scheduling, repetends of equal parts, tabu search, windows, exact search

Micro-batches that are not alike become blocks of one folded micro-batch (`tessel.batches.folded`); a batch
of equal parts, such as eight long ones and eight short ones, is as many equal folded micro-batches, so that
repetends stay. So bounds and proofs are those of `find_schedule` and hold for this batch. The answer is never
longer than any hand-written schedule that fits, with the micro-batches as given or sorted. Checked in
tests/tessel/search/batches/test_find_batch_schedule.py against exhaustive search and CP-SAT.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tessel.batches.batch import Batch
from tessel.batches.folded import folded_placement
from tessel.placement import Placement
from tessel.schedule.schedule import SCHEMA_VERSION, Schedule
from tessel.search.batches.replay import starts_of_sequence
from tessel.search.batches.sequences import RuleReplays, Sequenced, improved_sequences, rule_sequences
from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule

SHARE_OF_SEQUENCES = 0.2
"""Part of the budget for exchanging micro-batches within a rule's orders; mostly they end far earlier."""


def find_batch_schedule(
    placement: Placement,
    batch: Batch,
    *,
    memory: Sequence[int] | int | None = None,
    budget: SearchBudget | None = None,
    seed: int = 0,
) -> Schedule:
    """Return the best schedule found; it is valid, and no longer than hand-written ones in sorted sequences.

    An interrupt ends the search and returns the best schedule so far, as in `find_schedule`.

    Args:
        placement: blocks of one micro-batch.
        batch: what they take, micro-batch by micro-batch. The schedule is free to run them in any order.
        memory: limit in units, one a device or one for all; None for none.
        budget: what may be spent; `DEFAULT_WORK` units of work if left out.

    Raises:
        InfeasibleError: no schedule keeps the limits; names a device and what it needs at least.
        ScheduleError: the batch is of another placement.
    """
    batch.check(placement)
    began_s = time.monotonic()
    budget = SearchBudget.of(budget, time_limit_s=None)
    limits = limits_by_device(placement, memory)
    if len(set(batch.sequence)) == 1:
        return _find_equal(placement, batch, limits, budget, seed)
    fold = _Fold.of(placement, batch)
    best = _best_by_hand(placement, batch, limits, budget.part(SHARE_OF_SEQUENCES), seed)
    budget.answer = lambda: best
    found = find_schedule(
        fold.folded,
        micro_batches=len(fold.parts),
        memory=limits,
        budget=budget,
        seed=seed,
        start_from=None if best is None else fold.fold(best),
        answered=fold.unfolded,
    )
    return msgspec.structs.replace(found, search_seconds=time.monotonic() - began_s)


def _find_equal(
    placement: Placement, batch: Batch, limits: tuple[int, ...] | None, budget: SearchBudget, seed: int
) -> Schedule:
    """Return the schedule of micro-batches of one class: that of a placement with its figures."""

    def of_batch(found: Schedule) -> Schedule:
        return msgspec.structs.replace(
            found, placement=placement, batch=batch, schema_version=SCHEMA_VERSION, repetend=None
        )

    return find_schedule(
        batch.class_placement(placement, batch.sequence[0]),
        micro_batches=batch.micro_batches,
        memory=limits,
        budget=budget,
        seed=seed,
        answered=of_batch,
    )


def limits_by_device(placement: Placement, memory: Sequence[int] | int | None) -> tuple[int, ...] | None:
    """Return a limit as one number a device; None for none."""
    if memory is None:
        return None
    return (memory,) * placement.devices if isinstance(memory, int) else tuple(memory)


def schedule_of_sequence(
    placement: Placement, batch: Batch, sequenced: Sequenced, limits: Sequence[int] | None = None
) -> Schedule:
    """Return the schedule of a rule's orders taken by the micro-batches in a sequence."""
    starts = starts_of_sequence(sequenced.replay, batch, sequenced.sequence)
    return Schedule.of(
        placement,
        starts,
        micro_batches=batch.micro_batches,
        memory=limits,
        batch=batch,
        found_by=sequenced.rule,
    )


def _best_by_hand(
    placement: Placement, batch: Batch, limits: Sequence[int] | None, budget: SearchBudget, seed: int
) -> Schedule | None:
    """Return the shortest hand-written schedule that fits, its sequence improved; None where none fits."""
    found = rule_sequences(RuleReplays(placement), batch, limits)
    if not found:
        return None
    best = improved_sequences(found, placement, batch, limits, budget=budget, seed=seed)
    return schedule_of_sequence(placement, batch, best, limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fold:
    """The batch as equal parts, each folded into one micro-batch.

    Attributes:
        placement: blocks of one micro-batch.
        batch: what they take.
        parts: the micro-batches of each part.
        folded: the blocks of a part.
    """

    placement: Placement
    batch: Batch
    parts: tuple[tuple[int, ...], ...]
    folded: Placement

    @classmethod
    def of(cls, placement: Placement, batch: Batch) -> _Fold:
        parts = batch.equal_parts()
        folded = folded_placement(placement, batch, parts[0])
        return cls(placement=placement, batch=batch, parts=parts, folded=folded)

    def fold(self, schedule: Schedule) -> Schedule:
        """Return a schedule of the batch as one of the folded placement."""
        num_blocks = len(self.placement.blocks)
        place = {
            micro_batch: (position, part)
            for part, own in enumerate(self.parts)
            for position, micro_batch in enumerate(own)
        }
        starts = {}
        for (block, micro_batch), start in schedule.start_by_block().items():
            position, part = place[micro_batch]
            starts[position * num_blocks + block, part] = start
        return Schedule.of(
            self.folded,
            starts,
            micro_batches=len(self.parts),
            memory=schedule.memory,
            found_by=schedule.found_by,
        )

    def unfolded(self, found: Schedule) -> Schedule:
        """Return a schedule of the folded placement as one of the batch; a period of parts is no repetend."""
        num_blocks = len(self.placement.blocks)
        starts = {}
        for (folded, part), start in found.start_by_block().items():
            position, block = divmod(folded, num_blocks)
            starts[block, self.parts[part][position]] = start
        return Schedule.of(
            self.placement,
            starts,
            micro_batches=self.batch.micro_batches,
            memory=found.memory,
            batch=self.batch,
            lower_bound=found.lower_bound,
            optimal=found.optimal,
            search_seconds=found.search_seconds,
            found_by=found.found_by,
        )
