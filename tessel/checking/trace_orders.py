"""Other orders of a trace's micro-batches, and other assignments to replicas, with the recorded durations.

Durations become whole microseconds. A micro-batch that moves to another replica takes the durations that it
had, times the ratio of the two workers' speeds; differences of less than `SAME_SPEED` are taken for chance.
A step is never longer than recorded: what was run remains a candidate. Checked in
tests/tessel/checking/test_trace_assessment.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from tessel.batches.batch import Batch, IntArray, MicroBatchClass
from tessel.checking.trace_replay import TraceReplay
from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.profiles.step_trace import StepTrace
from tessel.search.batches.assignment import assign_micro_batches
from tessel.search.batches.replay import FloatArray
from tessel.search.batches.sequences import RuleReplays, Sequenced, improved_sequences, rule_sequences
from tessel.search.budget import SearchBudget

US = 1e6
"""Microseconds of a second."""

SAME_SPEED = 0.1
"""Workers whose speeds differ by less are taken for equally fast; see `trace_assessment.SLOW_WORKER`."""


@dataclass(frozen=True, slots=True, eq=False)
class OrderSearch:
    """Searches of orders and assignments, a step at a time.

    Attributes:
        ratios: float64, shape (replicas, stages), how slow each worker is; 1 for as fast as its peers.
        rules: hand-written orders, of which the recorded ones mostly are.
    """

    replayed: TraceReplay
    ratios: FloatArray
    rules: RuleReplays
    seed: int

    @classmethod
    def of(cls, replayed: TraceReplay, ratios: FloatArray, *, seed: int) -> OrderSearch:
        """Return the searches of a trace."""
        slow = np.where(np.abs(ratios - 1) < SAME_SPEED, 1.0, ratios)
        return cls(replayed, slow, RuleReplays(_mean_placement(replayed.trace)), seed)

    def reordered(self, budget: SearchBudget) -> FloatArray:
        """Return what steps take with each replica's micro-batches in the best order found."""
        recorded = self.replayed.pipeline_s
        after: FloatArray = recorded.max(axis=1).copy()
        for step in range(len(after)):
            part = budget.part(1 / (len(after) - step))
            done = 0.0
            for replica in np.argsort(-recorded[step], kind="stable").tolist():
                if recorded[step, replica] <= done or part.is_over:
                    done = max(done, float(recorded[step, replica]))
                    break
                done = max(done, self._best_order(step, replica, part))
            after[step] = min(after[step], done)
        return after

    def reassigned(self, budget: SearchBudget) -> FloatArray:
        """Return what steps take with the best assignment found, each replica in its best order."""
        recorded = self.replayed.pipeline_s
        after: FloatArray = recorded.max(axis=1).copy()
        for step in range(len(after)):
            if budget.is_over:
                break
            part = budget.part(1 / (len(after) - step))
            after[step] = min(after[step], self._best_assignment(step, part))
        return after

    def _best_order(self, step: int, replica: int, budget: SearchBudget) -> float:
        """Return the seconds of a replica's best order, its recorded one among them."""
        trace = self.replayed.trace
        batch = _batch_of(trace.spans_s[step, replica], trace.lags_s[step, replica])
        placement, recorded = self.rules.placement, float(self.replayed.pipeline_s[step, replica])
        own = self.replayed.replays[int(trace.order_of[step, replica])]
        as_run = Sequenced(
            rule="recorded",
            sequence=tuple(range(trace.micro_batches)),
            replay=own,
            makespan=round(recorded * US),
        )
        found = sorted((as_run, *rule_sequences(self.rules, batch, None)), key=lambda each: each.makespan)
        best = improved_sequences(found, placement, batch, None, budget=budget, seed=self.seed)
        return min(recorded, best.makespan / US)

    def _best_assignment(self, step: int, budget: SearchBudget) -> float:
        """Return the seconds of the slowest replica after sharing out a step's micro-batches."""
        trace = self.replayed.trace
        replicas, micro_batches = len(trace.replicas), trace.micro_batches
        factor = np.tile(self.ratios, 2)[:, None, :]
        spans = (trace.spans_s[step] / factor).reshape(replicas * micro_batches, -1)
        lags = trace.lags_s[step].reshape(replicas * micro_batches, -1)
        try:
            found = assign_micro_batches(
                self.rules.placement,
                _batch_of(spans, lags),
                replicas=replicas,
                searches_blocks=False,
                budget=budget,
                seed=self.seed,
            )
        except ScheduleError:  # no rule fits the recorded stages, so that nothing else is known to
            return float("inf")
        if (self.ratios == 1).all():
            return found.makespan / US
        return self._on_workers(found.replicas, spans, lags)

    def _on_workers(self, groups: tuple[tuple[int, ...], ...], spans: FloatArray, lags: FloatArray) -> float:
        """Return the slowest replica's seconds; the group with least work goes to the slowest replica."""
        work = [float(spans[list(group)].sum()) for group in groups]
        slow = np.argsort(-self.ratios.max(axis=1), kind="stable").tolist()
        lightest = np.argsort(work, kind="stable").tolist()
        worst = 0.0
        for replica, group in zip(slow, lightest, strict=True):
            members = list(groups[group])
            factor = np.tile(self.ratios[replica], 2)[None, :]
            batch = _batch_of(spans[members] * factor, lags[members])
            best = rule_sequences(self.rules, batch, None)[0]
            timed = improved_sequences(
                (best,), self.rules.placement, batch, None, budget=SearchBudget(0), seed=self.seed
            )
            worst = max(worst, timed.makespan / US)
        return worst


def _mean_placement(trace: StepTrace) -> Placement:
    """Return the trace's stages with their mean durations, which some rules look at."""
    mean_us = _whole(trace.spans_s.mean(axis=(0, 1, 2))).tolist()
    blocks = tuple(
        msgspec.structs.replace(block, span=span)
        for block, span in zip(trace.placement.blocks, mean_us, strict=True)
    )
    return msgspec.structs.replace(trace.placement, blocks=blocks)


def _batch_of(spans_s: FloatArray, lags_s: FloatArray) -> Batch:
    """Return micro-batches with durations of their own as a batch, each a class; in microseconds."""
    spans, lags = _whole(spans_s), _whole(lags_s)
    nothing = (0,) * spans.shape[1]
    return Batch(
        classes=tuple(
            MicroBatchClass(
                name=str(number), spans=tuple(own.tolist()), memory=nothing, lags=tuple(lag.tolist())
            )
            for number, (own, lag) in enumerate(zip(spans, lags, strict=True))
        ),
        sequence=tuple(range(len(spans))),
    )


def _whole(seconds: FloatArray) -> IntArray:
    return np.round(seconds * US).astype(np.int64)
