"""Which replica runs which micro-batches, so that the slowest replica is done as early as possible.

All replicas have the same stages and run the same rule's orders, each with its own sequence. Two ways:

- any micro-batch may go anywhere, equally many to each replica: balancers by total work (in turns, the
  longest to the least loaded, largest differencing) give the first assignments, and exchanges between the
  slowest replica and others improve them, each timed by its pipeline and not by its sum;
- the order of the data is kept: replicas take consecutive runs, of as many micro-batches as makes the slowest
  one fastest, found by bisection, which is exact for the rule's orders where a longer run takes longer.

The slowest replica's blocks are then searched as a batch of their own. Memory limits hold in every replica.
Checked in tests/tessel/search/batches/test_assignment.py against every assignment of small batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tessel.batches.balancers import in_turns, largest_differencing, longest_first
from tessel.batches.batch import Batch, IntArray
from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search.batches.assignment_bound import assignment_bound
from tessel.search.batches.exchange import exchange
from tessel.search.batches.find_batch_schedule import (
    find_batch_schedule,
    limits_by_device,
    schedule_of_sequence,
)
from tessel.search.batches.replay import TOO_MUCH, Replay, keeps_limits, sequence_makespan
from tessel.search.batches.sequences import (
    OPERATIONS_A_WAIT,
    RuleReplays,
    improved_sequences,
    limits_array,
    rule_sequences,
)
from tessel.search.budget import SearchBudget

RULES = ("1f1b", "eager-1f1b")
"""Rules whose orders replicas run; the others are tried where neither applies."""

EXCHANGES_A_ROUND = 2_000
"""Exchanges between two looks at the budget."""

ROUNDS_WITHOUT_GAIN = 5
"""After so many rounds in which the slowest replica got no faster, exchanging ends."""

SHARE_OF_EXCHANGES = 0.5
"""Part of the budget for exchanging between replicas; the rest is for the slowest replicas' blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Micro-batches by replica, and when each replica is done.

    Attributes:
        replicas: the micro-batches of each replica, by their number in the batch.
        schedules: of each replica; its micro-batches are numbered in the order of `replicas`.
        lower_bound: no assignment of this kind ends earlier.
        given: makespan of 1F1B, or of the best rule that fits, with consecutive equal runs as given; None
            where it fits nowhere.
    """

    replicas: tuple[tuple[int, ...], ...]
    schedules: tuple[Schedule, ...]
    lower_bound: int
    given: int | None
    found_by: str

    @classmethod
    def of_one(cls, schedule: Schedule) -> Assignment:
        """Return that of a single replica."""
        return cls(
            replicas=(tuple(range(schedule.micro_batches)),),
            schedules=(schedule,),
            lower_bound=schedule.lower_bound,
            given=None,
            found_by=schedule.found_by,
        )

    @property
    def slowest(self) -> Schedule:
        """The schedule of the replica that is done last, the first of several."""
        return max(self.schedules, key=lambda schedule: schedule.makespan)

    @property
    def makespan(self) -> int:
        """When the slowest replica is done, in steps."""
        return max(schedule.makespan for schedule in self.schedules)

    @property
    def gap(self) -> float:
        """How far the makespan may be from the least one, as a fraction of the bound; 0 where proven."""
        return self.makespan / self.lower_bound - 1 if self.lower_bound else float("inf")


def assign_micro_batches(
    placement: Placement,
    batch: Batch,
    *,
    replicas: int,
    keep_order: bool = False,
    searches_blocks: bool = True,
    memory: Sequence[int] | int | None = None,
    budget: SearchBudget | None = None,
    seed: int = 0,
) -> Assignment:
    """Return the best assignment found, never slower than the balancers' and the given one.

    An interrupt ends the search and returns the best assignment so far, from the beginning on.

    Args:
        placement: blocks of one micro-batch, the same in all replicas.
        batch: all micro-batches, of all replicas.
        replicas: how many there are, >= 1.
        keep_order: whether replicas take consecutive runs, of any number; else equally many each.
        searches_blocks: whether the slowest replicas' blocks are searched beyond the orders of rules.
        memory: limit of a replica's devices in units, one a device or one for all; None for none.
        budget: what may be spent; `DEFAULT_WORK` units of work if left out.

    Raises:
        InfeasibleError: a micro-batch does not fit a device by itself.
        ScheduleError: the micro-batches cannot be shared out equally, or are fewer than replicas.
    """
    batch.check(placement)
    number = batch.micro_batches
    if replicas < 1 or number < replicas or (not keep_order and number % replicas):
        raise ScheduleError(
            f"{number} micro-batches cannot be shared out to {replicas} replicas"
            + ("" if keep_order else " equally")
            + "; give a multiple of the replicas, or keep the order with at least one each"
        )
    budget = SearchBudget.of(budget, time_limit_s=None)
    limits = limits_by_device(placement, memory)
    sharing = _Sharing(
        placement=placement,
        batch=batch,
        limits=limits,
        seed=seed,
        of_replicas=RuleReplays(placement, RULES),
        of_all=RuleReplays(placement),
        searches_blocks=searches_blocks,
    )
    bound = assignment_bound(placement, batch, replicas=replicas, equal=not keep_order)
    budget.has_answer = True  # where the budget is over, a replica runs the first order that fits
    if keep_order:
        groups, found_by = sharing.consecutive(replicas), "consecutive runs"
    else:
        groups, found_by = sharing.balanced(replicas, budget.part(SHARE_OF_EXCHANGES))
    given = sharing.given(replicas) if number % replicas == 0 else None
    schedules = sharing.schedules(groups, bound, budget)
    if given is not None and given < max(schedule.makespan for schedule in schedules):
        groups, found_by = _equal_runs(number, replicas), "as given"
        schedules = sharing.schedules(groups, bound, budget)
    budget.is_proven = max(schedule.makespan for schedule in schedules) <= bound
    return Assignment(
        replicas=tuple(groups), schedules=schedules, lower_bound=bound, given=given, found_by=found_by
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharing:
    """What all assignments of a batch have in common.

    Attributes:
        placement: blocks of one micro-batch.
        batch: all micro-batches.
        limits: units by device; None for none.
        of_replicas: orders of `RULES`.
        of_all: orders of all hand-written rules.
        searches_blocks: whether blocks are searched beyond them.
    """

    placement: Placement
    batch: Batch
    limits: tuple[int, ...] | None
    seed: int
    of_replicas: RuleReplays
    of_all: RuleReplays
    searches_blocks: bool

    def given(self, replicas: int) -> int | None:
        """Return the makespan of equal consecutive runs in the given order, under the best of `RULES`."""
        size = self.batch.micro_batches // replicas
        rows = np.arange(self.batch.micro_batches, dtype=np.int64).reshape(replicas, size)
        limit = limits_array(self.placement, self.limits)
        worst = [
            max(_timed(replay, self.batch, limit, row) for row in rows) for _, replay in self._replays(size)
        ]
        best = min(worst, default=TOO_MUCH)
        return None if best >= TOO_MUCH else best

    def balanced(self, replicas: int, budget: SearchBudget) -> tuple[list[tuple[int, ...]], str]:
        """Return groups of equal size; see `assign_micro_batches`."""
        batch, size = self.batch, self.batch.micro_batches // replicas
        work = batch.spans.sum(axis=1)
        rising = np.argsort(work, kind="stable")
        rank = np.argsort(rising, kind="stable")
        sorted_batch = batch.taken(rising.tolist())
        limit = limits_array(self.placement, self.limits)
        best: tuple[int, IntArray, str] | None = None
        starts = {
            "as given": _equal_runs(batch.micro_batches, replicas),
            "in turns": in_turns(work.tolist(), replicas),
            "longest to the least loaded": longest_first(work.tolist(), replicas),
            "largest differencing": largest_differencing(work.tolist(), replicas),
        }
        for name, replay in self._replays(size):
            for begin, groups in starts.items():
                rows = np.sort(rank[np.array(groups, dtype=np.int64)], axis=1)
                makespan = self._exchanged(replay, sorted_batch, limit, rows, budget)
                if best is None or makespan < best[0]:
                    best = makespan, rows, f"{begin}, exchanged, under {name}"
        if best is None:  # no rule applies: sums are all there is to go by
            return largest_differencing(work.tolist(), replicas), "largest differencing"
        return [tuple(sorted(rising[row].tolist())) for row in best[1]], best[2]

    def _exchanged(
        self, replay: Replay, batch: Batch, limit: IntArray, rows: IntArray, budget: SearchBudget
    ) -> int:
        """Exchange members of rows in place until that gains nothing for long; return the makespan."""
        state, makespan, idle_rounds = self.seed & 0x7FFFFFFF, TOO_MUCH, 0
        arrays = batch.spans, batch.lags, batch.memory
        while idle_rounds < ROUNDS_WITHOUT_GAIN:
            trials = 0 if budget.is_over else EXCHANGES_A_ROUND
            state, shorter = exchange(replay, *arrays, limit, rows, trials, state)
            idle_rounds = 0 if shorter < makespan else idle_rounds + 1
            makespan = min(makespan, shorter)
            budget.charge(4 * OPERATIONS_A_WAIT * (trials + len(rows)) * len(replay.before))
            if not trials:
                break
        return makespan

    def consecutive(self, replicas: int) -> list[tuple[int, ...]]:
        """Return consecutive runs whose slowest is as fast as it can be in the given order."""
        number = self.batch.micro_batches
        timed: dict[tuple[int, int], int] = {}
        limit = limits_array(self.placement, self.limits)

        def time_of(first: int, last: int) -> int:
            if (first, last) not in timed:
                row = np.arange(first, last, dtype=np.int64)
                own = [_timed(replay, self.batch, limit, row) for _, replay in self._replays(last - first)]
                work = int(self.batch.spans[first:last].sum())
                timed[first, last] = min(own, default=work)
            return timed[first, last]

        low, high = 0, max(time_of(first, first + 1) for first in range(number))
        while _runs_within(high, number, replicas, time_of) is None:
            low, high = high, 2 * high
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if _runs_within(middle, number, replicas, time_of) else (middle, high)
        runs = _runs_within(high, number, replicas, time_of)
        assert runs is not None
        return [tuple(range(first, last)) for first, last in runs]

    def schedules(
        self, groups: Sequence[Sequence[int]], bound: int, budget: SearchBudget
    ) -> tuple[Schedule, ...]:
        """Return the schedule of each group; the slowest are improved as long as all wait for them."""
        found = [self._first(group, budget.part(1 / (2 * len(groups)))) for group in groups]
        rounds = [0] * len(groups)
        while not budget.is_over:
            slowest = max(range(len(found)), key=lambda row: found[row].makespan)
            if rounds[slowest] == 1 + self.searches_blocks or found[slowest].makespan <= bound:
                break
            improve = self._sequenced if rounds[slowest] == 0 else self._searched
            rounds[slowest] += 1
            again = improve(groups[slowest], budget.part(0.25))
            if again is not None and again.makespan < found[slowest].makespan:
                found[slowest] = again
        return tuple(found)

    def _first(self, group: Sequence[int], budget: SearchBudget) -> Schedule:
        """Return the best hand-written schedule of a group; where none fits, one that is searched."""
        own = self.batch.taken(group)
        by_hand = rule_sequences(self.of_all, own, self.limits)
        if not by_hand:
            return self._searched(group, budget)
        return schedule_of_sequence(self.placement, own, by_hand[0], self.limits)

    def _sequenced(self, group: Sequence[int], budget: SearchBudget) -> Schedule | None:
        """Return the best schedule of a rule after improving sequences; None where no rule fits."""
        own = self.batch.taken(group)
        by_hand = rule_sequences(self.of_all, own, self.limits)
        if not by_hand:
            return None
        best = improved_sequences(by_hand, self.placement, own, self.limits, budget=budget, seed=self.seed)
        return schedule_of_sequence(self.placement, own, best, self.limits)

    def _searched(self, group: Sequence[int], budget: SearchBudget) -> Schedule:
        own = self.batch.taken(group)
        return find_batch_schedule(self.placement, own, memory=self.limits, budget=budget, seed=self.seed)

    def _replays(self, micro_batches: int) -> tuple[tuple[str, Replay], ...]:
        return self.of_replicas.of(micro_batches) or self.of_all.of(micro_batches)


def _timed(replay: Replay, batch: Batch, limit: IntArray, row: IntArray) -> int:
    if not keeps_limits(replay, batch.memory, limit, row):
        return TOO_MUCH
    start = np.zeros(len(replay.block), dtype=np.int64)
    return sequence_makespan(replay, batch.spans, batch.lags, row, start)


def _equal_runs(number: int, replicas: int) -> list[tuple[int, ...]]:
    size = number // replicas
    return [tuple(range(row * size, (row + 1) * size)) for row in range(replicas)]


def _runs_within(
    most: int, number: int, replicas: int, time_of: Callable[[int, int], int]
) -> list[tuple[int, int]] | None:
    """Return as many consecutive runs as replicas, none longer than `most`; None where they do not suffice.

    Each run takes as many micro-batches as fit and leaves one for each replica that comes after.
    """
    runs, first = [], 0
    for row in range(replicas):
        last, end = first + 1, number - (replicas - row - 1)
        if time_of(first, last) > most:
            return None
        while last < end and time_of(first, last + 1) <= most:
            last += 1
        runs.append((first, last))
        first = last
    return runs if first == number else None
