"""Hand-written schedules on micro-batches that differ, and the order in which those take their turn.

A rule's orders hold for positions; candidates of sequences are the given one, the longest first, the shortest
first, the shortest at both ends (short ramps), and the longest at both ends. The best few of all pairs of a
rule and a sequence are improved by exchanging and moving micro-batches, which keeps the rule's orders. What
the rules themselves cannot say, such as a forward held back for a long backward, is left to the search of
blocks (`tessel.search.batches.find_batch_schedule`). Checked in
tests/tessel/search/batches/test_replay.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tessel.batches.batch import Batch, IntArray
from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.placement import Placement
from tessel.search.batches.replay import TOO_MUCH, Replay, keeps_limits, replay_of, sequence_makespan
from tessel.search.budget import SearchBudget
from tessel.search.jit.compiled import compiled
from tessel.search.jit.random_generator import below, next_state

NUM_IMPROVED = 3
"""Pairs of a rule and a sequence that are improved; on 60 random batches a fourth was the best once."""

TRIALS_A_ROUND = 500
"""Sequences tried between two looks at the budget."""

ROUNDS_WITHOUT_GAIN = 4
"""After so many rounds in which nothing was shorter, a pair is left."""

OPERATIONS_A_WAIT = 3
"""Charged for each wait of a task that is replayed."""

UNLIMITED = TOO_MUCH
"""A limit of memory that cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequenced:
    """A rule's orders, taken by the micro-batches in a sequence.

    Attributes:
        sequence: which micro-batch takes each position.
        replay: the orders.
        makespan: steps.
    """

    rule: str
    sequence: tuple[int, ...]
    replay: Replay
    makespan: int


@dataclass(slots=True)
class RuleReplays:
    """The orders of hand-written rules by number of micro-batches, made when first asked for.

    Attributes:
        placement: blocks of one micro-batch.
        names: rules; all that apply if None.
    """

    placement: Placement
    names: tuple[str, ...] | None = None
    _made: dict[int, tuple[tuple[str, Replay], ...]] = field(default_factory=dict)

    def of(self, micro_batches: int) -> tuple[tuple[str, Replay], ...]:
        """Return name and orders of each rule that applies to so many micro-batches."""
        if micro_batches not in self._made:
            self._made[micro_batches] = tuple(self._make(micro_batches))
        return self._made[micro_batches]

    def _make(self, micro_batches: int) -> Iterator[tuple[str, Replay]]:
        for rule in HANDWRITTEN:
            wanted = self.names is None or rule.name in self.names
            if not wanted or rule.needs_limit or rule.why_not(self.placement, micro_batches) is not None:
                continue
            try:
                orders = rule.orders(self.placement, micro_batches=micro_batches)
                yield rule.name, replay_of(self.placement, orders)
            except ScheduleError:
                continue  # the rule adds a wait of its own without which its orders are no orders


def candidate_sequences(batch: Batch) -> dict[str, tuple[int, ...]]:
    """Return sequences by what they are called, the given one first; equal micro-batches keep their order."""
    work = batch.spans.sum(axis=1)
    rising = np.argsort(work, kind="stable").tolist()
    falling = np.argsort(-work, kind="stable").tolist()
    return {
        "as given": tuple(range(batch.micro_batches)),
        "longest first": tuple(falling),
        "shortest first": tuple(rising),
        "shortest at both ends": tuple(rising[::2] + rising[1::2][::-1]),
        "longest at both ends": tuple(falling[::2] + falling[1::2][::-1]),
    }


def rule_sequences(replays: RuleReplays, batch: Batch, limits: Sequence[int] | None) -> tuple[Sequenced, ...]:
    """Return all pairs of a rule and a candidate sequence that keep the limits, the shortest first."""
    limit = limits_array(replays.placement, limits)
    found = []
    for name, replay in replays.of(batch.micro_batches):
        start = np.zeros(len(replay.block), dtype=np.int64)
        for sequence in candidate_sequences(batch).values():
            order = np.array(sequence, dtype=np.int64)
            if keeps_limits(replay, batch.memory, limit, order):
                makespan = sequence_makespan(replay, batch.spans, batch.lags, order, start)
                found.append(Sequenced(rule=name, sequence=sequence, replay=replay, makespan=makespan))
    return tuple(sorted(found, key=lambda each: each.makespan))


def improved_sequences(
    found: Sequence[Sequenced],
    placement: Placement,
    batch: Batch,
    limits: Sequence[int] | None,
    *,
    budget: SearchBudget,
    seed: int = 0,
) -> Sequenced:
    """Return the best of some pairs after exchanging and moving micro-batches, never longer than the best.

    Args:
        found: pairs that keep the limits, the shortest first; at least one.
        placement: blocks of one micro-batch.
        batch: the micro-batches.
        limits: units by device; None for none.
        budget: what may be spent.
    """
    limit = limits_array(placement, limits)
    best = found[0]
    state = seed & 0x7FFFFFFF
    for begin in found[:NUM_IMPROVED]:
        order, makespan, idle_rounds = np.array(begin.sequence, dtype=np.int64), begin.makespan, 0
        while idle_rounds < ROUNDS_WITHOUT_GAIN and not budget.is_over:
            state, shorter = improve_sequence(
                begin.replay, batch.spans, batch.lags, batch.memory, limit, order, TRIALS_A_ROUND, state
            )
            idle_rounds = 0 if shorter < makespan else idle_rounds + 1
            makespan = shorter
            budget.charge(OPERATIONS_A_WAIT * TRIALS_A_ROUND * len(begin.replay.before))
        if makespan < best.makespan:
            best = Sequenced(
                rule=begin.rule, sequence=tuple(order.tolist()), replay=begin.replay, makespan=makespan
            )
    return best


def limits_array(placement: Placement, limits: Sequence[int] | None) -> IntArray:
    """Return limits by device, beyond reach where there is none."""
    return np.array([UNLIMITED] * placement.devices if limits is None else list(limits), dtype=np.int64)


@compiled
def improve_sequence(
    replay: Replay,
    spans: IntArray,
    lags: IntArray,
    memory: IntArray,
    limits: IntArray,
    order: IntArray,
    trials: int,
    state: int,
) -> tuple[int, int]:
    """Exchange or move micro-batches at random, keeping what is no longer; return state and makespan.

    `order` is changed in place. Equally long sequences are kept too, so that the search drifts.
    """
    start = np.zeros(len(replay.block), dtype=np.int64)
    best = sequence_makespan(replay, spans, lags, order, start)
    trial = order.copy()
    count = len(order)
    for _ in range(trials):
        state = next_state(state)
        first = below(state, count)
        state = next_state(state)
        second = below(state, count)
        state = next_state(state)
        if first == second:
            continue
        trial[:] = order
        if below(state, 2) == 0:
            trial[first], trial[second] = order[second], order[first]
        elif first < second:
            trial[first:second] = order[first + 1 : second + 1]
            trial[second] = order[first]
        else:
            trial[second + 1 : first + 1] = order[second:first]
            trial[second] = order[first]
        makespan = sequence_makespan(replay, spans, lags, trial, start)
        if makespan <= best and keeps_limits(replay, memory, limits, trial):
            best = makespan
            order[:] = trial
    return state, best
