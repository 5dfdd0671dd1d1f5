"""Assessment of a trace: how much stragglers cost, who they are, and what would help.

*Slowdown* is what steps took in the mean, over what they would have taken had every forward and every
backward been as long as the mean of all, and every transfer the median of its direction. That of a stage, a
replica or a worker is the same with only its own durations as recorded and all others ideal; the effect of
repairing one is the other way round, recorded durations and only its own changed. Both are of the pipeline
alone; the published analysis counts collectives and the optimizer as well, which changes the slowdown of the
three published jobs by less than 1 %.

What would help is tried one change at a time on the recorded durations:

- a slow worker as fast as its peers: the median over the other replicas of the same stage;
- a cut in which all stages take equally long, and micro-batches that all take equally long, in the recorded
  order: both ideal, as layers and samples cannot be cut anywhere;
- another order of micro-batches in each replica, and another assignment to replicas: both searched, with the
  durations that were recorded; a micro-batch that moves takes as much longer as the worker is slower.

Checked in tests/tessel/checking/test_trace_assessment.py, and against the published figures of three jobs in
benchmarks/reports.

Source: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025),
section 3, equations 1, 2 and 4; here the worker's slowdown is replayed, not the lesser of its rows'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tessel.checking.trace_orders import OrderSearch
from tessel.checking.trace_replay import PathPiece, TraceReplay, critical_path
from tessel.profiles.step_trace import StepTrace
from tessel.search.batches.replay import FloatArray
from tessel.search.budget import SearchBudget

SLOW_WORKER = 1.1
"""A worker this much slower than its peers is taken for slow; of the 87 healthy workers of the published jobs
none is more than 1.05 times as slow, and the ailing one is 2.35 times."""

MAX_WORKERS = 16
"""Slow workers whose repair is tried one by one."""

NUM_SHOWN = 5
"""Slow micro-batches that are named."""

LENGTHS_CORRELATE = 0.9
"""Correlation of forwards and backwards of a micro-batch from which lengths explain both."""

ChangeKind = Literal["repair", "balance", "cut", "order", "assignment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A stage, a replica or a worker.

    Attributes:
        stage: of the model; None for a replica.
        replica: its number; None for a stage.
        slowdown: the mean step with only its durations as recorded, over the ideal one.
        ratio: its mean time a micro-batch over that of its peers: other stages, other replicas, or the same
            stage of other replicas, their lengths apart (`worker_ratios`).
    """

    stage: int | None
    replica: int | None
    slowdown: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowMicroBatch:
    """A micro-batch that takes long: where it ran, and its time over the mean of its job's."""

    step: int
    replica: int
    micro_batch: int
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChange:
    """A change and what it would have given, alone.

    Attributes:
        change: what to do, in words.
        kind: what it changes.
        is_ideal: whether it supposes that layers or samples can be cut anywhere.
        predicted_pipeline_s: mean over steps after it, by a replay of the recorded durations.
        saves_ratio: what it saves of the mean step.
        least, most: the same in the step that gains least, and most.
    """

    change: str
    kind: ChangeKind
    is_ideal: bool
    predicted_pipeline_s: float
    saves_ratio: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAssessment:
    """What is said of a trace; see the module.

    Attributes:
        trace: what was read.
        step_s: mean of whole steps, recorded.
        pipeline_s: mean over steps of the slowest replica's pipeline, replayed.
        ideal_s: the same with ideal durations.
        error_mean: mean over steps and replicas of how far a replayed pipeline is from the recorded one.
        error_worst: the largest.
        stages: the one that costs most first.
        replicas: likewise.
        workers: likewise.
        length_correlation: of forward and backward times of a micro-batch, within stages.
        spread: standard deviation of a stage's micro-batches over their mean, the mean of all stages.
        slow_micro_batches: the slowest.
        path_step: number of the step whose critical path is shown: the one of median length.
        path_replica: its slowest replica.
        path: of that replica.
        path_shares: part of the path by stage, -1 for transfers and waits, the largest first.
        changes: the one that saves most first.
    """

    trace: StepTrace
    step_s: float
    pipeline_s: float
    ideal_s: float
    error_mean: float
    error_worst: float
    stages: tuple[Straggler, ...]
    replicas: tuple[Straggler, ...]
    workers: tuple[Straggler, ...]
    length_correlation: float
    spread: float
    slow_micro_batches: tuple[SlowMicroBatch, ...]
    path_step: int
    path_replica: int
    path: tuple[PathPiece, ...]
    path_shares: tuple[tuple[int, float], ...]
    changes: tuple[TraceChange, ...]

    @property
    def slowdown(self) -> float:
        """The pipeline's mean step over the ideal one."""
        return self.pipeline_s / self.ideal_s

    @property
    def lengths_explain(self) -> bool:
        """Whether the micro-batches' own lengths explain their spread."""
        return self.length_correlation >= LENGTHS_CORRELATE


def assess_trace(
    trace: StepTrace,
    *,
    budget: SearchBudget,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda text: None,
) -> TraceAssessment:
    """Return the assessment of a trace.

    Args:
        trace: what was recorded.
        budget: of the searches of orders and assignments; what is under way when it ends is kept.
        on_progress: told what is done next.
    """
    on_progress("replaying")
    replayed = TraceReplay.of(trace)
    errors = np.abs(replayed.pipeline_s / trace.pipeline_s - 1)
    pipeline = replayed.pipeline_s.max(axis=1)
    none = np.zeros((len(trace.replicas), trace.stages), dtype=bool)
    ideal_s = replayed.ideal_with(none)
    middle = int(np.argsort(pipeline, kind="stable")[len(pipeline) // 2])
    slowest = int(replayed.pipeline_s[middle].argmax())
    path = critical_path(replayed, middle, slowest)
    budget.has_answer = True  # an interrupt ends the searches, and what they found so far is kept
    return TraceAssessment(
        trace=trace,
        step_s=float(trace.step_s.mean()),
        pipeline_s=float(pipeline.mean()),
        ideal_s=ideal_s,
        error_mean=float(errors.mean()),
        error_worst=float(errors.max()),
        stages=_stragglers(replayed, ideal_s, by_stage=True, by_replica=False),
        replicas=_stragglers(replayed, ideal_s, by_stage=False, by_replica=True),
        workers=_stragglers(replayed, ideal_s, by_stage=True, by_replica=True),
        length_correlation=_length_correlation(trace),
        spread=_spread(trace),
        slow_micro_batches=_slow_micro_batches(trace),
        path_step=trace.steps[middle],
        path_replica=trace.replicas[slowest],
        path=path,
        path_shares=_shares(path),
        changes=_changes(replayed, pipeline, budget, seed, on_progress),
    )


def worker_ratios(trace: StepTrace) -> FloatArray:
    """Return how slow each worker is, 1 for as its peers; float64, shape (replicas, stages).

    That is its mean time over the median of the same stage of other replicas. A replica whose micro-batches
    are longer has more of that in all its stages alike, which is no worker's fault: the least of its stages
    is taken off. So nothing is said of a replica all of whose workers are slow, and where there is but one
    stage lengths count too.
    """
    mean_s = _by_stage(trace.spans_s).mean(axis=(0, 2))
    replicas = range(len(mean_s))
    if len(replicas) == 1:
        return np.ones_like(mean_s)
    peers = np.stack([np.median(np.delete(mean_s, replica, axis=0), axis=0) for replica in replicas])
    ratios: FloatArray = mean_s / _positive(peers)
    if trace.stages > 1:
        ratios = ratios / _positive(ratios.min(axis=1, keepdims=True))
    return ratios


def _by_stage(spans: FloatArray) -> FloatArray:
    """Return forward and backward together: (steps, replicas, micro-batches, stages)."""
    stages = spans.shape[3] // 2
    both: FloatArray = spans[..., :stages] + spans[..., stages:]
    return both


def _positive(values: FloatArray) -> FloatArray:
    return np.maximum(values, 1e-12)


def _stragglers(
    replayed: TraceReplay, ideal_s: float, *, by_stage: bool, by_replica: bool
) -> tuple[Straggler, ...]:
    trace = replayed.trace
    mean_s = _by_stage(trace.spans_s).mean(axis=(0, 2))
    ratios = worker_ratios(trace)
    found = []
    for replica in range(len(trace.replicas)) if by_replica else (None,):
        for stage in range(trace.stages) if by_stage else (None,):
            kept = np.zeros(mean_s.shape, dtype=bool)
            kept[slice(None) if replica is None else replica, slice(None) if stage is None else stage] = True
            if replica is not None and stage is not None:
                ratio = float(ratios[replica, stage])
            else:
                others = mean_s[~kept] if not kept.all() else mean_s
                ratio = float(mean_s[kept].mean() / max(others.mean(), 1e-12))
            found.append(
                Straggler(
                    stage=stage,
                    replica=None if replica is None else trace.replicas[replica],
                    slowdown=replayed.ideal_with(kept) / ideal_s,
                    ratio=ratio,
                )
            )
    return tuple(sorted(found, key=lambda each: -each.slowdown))


def _spread(trace: StepTrace) -> float:
    """Return standard deviation over mean of a block's durations, the mean of all blocks."""
    mean_s = trace.spans_s.mean(axis=(0, 1, 2))
    return float((trace.spans_s.std(axis=(0, 1, 2)) / _positive(mean_s)).mean())


def _length_correlation(trace: StepTrace) -> float:
    """Return the correlation of forwards and backwards, each over its worker's mean; 0 where all agree."""
    relative = trace.spans_s / _positive(trace.spans_s.mean(axis=(0, 2), keepdims=True))
    forward, backward = relative[..., : trace.stages].ravel(), relative[..., trace.stages :].ravel()
    if forward.std() < 1e-9 or backward.std() < 1e-9:
        return 0.0
    return float(np.corrcoef(forward, backward)[0, 1])


def _slow_micro_batches(trace: StepTrace) -> tuple[SlowMicroBatch, ...]:
    whole = trace.spans_s.sum(axis=3)
    ratios = whole / max(float(whole.mean()), 1e-12)
    slowest = np.argsort(-ratios, axis=None, kind="stable")[:NUM_SHOWN]
    places = zip(*np.unravel_index(slowest, ratios.shape), strict=True)
    return tuple(
        SlowMicroBatch(
            step=trace.steps[step],
            replica=trace.replicas[replica],
            micro_batch=int(micro_batch),
            ratio=float(ratios[step, replica, micro_batch]),
        )
        for step, replica, micro_batch in places
    )


def _shares(path: tuple[PathPiece, ...]) -> tuple[tuple[int, float], ...]:
    seconds: Counter[int] = Counter()
    for piece in path:
        seconds[piece.stage] += piece.duration_s  # type: ignore[assignment]  # a Counter of seconds
        seconds[-1] += piece.transfer_s  # type: ignore[assignment]
    whole = max(sum(seconds.values()), 1e-12)
    return tuple((stage, each / whole) for stage, each in seconds.most_common() if each)


def _changes(
    replayed: TraceReplay,
    before: FloatArray,
    budget: SearchBudget,
    seed: int,
    on_progress: Callable[[str], None],
) -> tuple[TraceChange, ...]:
    trace = replayed.trace
    found = [
        _change(
            "cut the model into stages that take equally long", "cut", True, before, _even_stages(replayed)
        ),
        _change(
            "pack samples into micro-batches that take equally long",
            "balance",
            True,
            before,
            replayed.step_s(_even_micro_batches(trace)),
        ),
        *_repairs(replayed, before),
    ]
    search = OrderSearch.of(replayed, worker_ratios(trace), seed=seed)
    on_progress("searching orders of micro-batches")
    found.append(
        _change(
            "run each replica's micro-batches in another order",
            "order",
            False,
            before,
            search.reordered(budget.part(0.3)),
        )
    )
    if len(trace.replicas) > 1:
        on_progress("sharing out micro-batches to replicas")
        found.append(
            _change(
                "share out each step's micro-batches to replicas in another way",
                "assignment",
                False,
                before,
                search.reassigned(budget.part(1.0)),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.saves_ratio))


def _change(
    change: str, kind: ChangeKind, is_ideal: bool, before: FloatArray, after: FloatArray
) -> TraceChange:
    saves = 1 - after / _positive(before)
    return TraceChange(
        change=change,
        kind=kind,
        is_ideal=is_ideal,
        predicted_pipeline_s=float(after.mean()),
        saves_ratio=float(1 - after.mean() / max(before.mean(), 1e-12)),
        least=float(saves.min()),
        most=float(saves.max()),
    )


def _even_stages(replayed: TraceReplay) -> FloatArray:
    """Return the steps with each stage's blocks scaled to the mean stage."""
    trace = replayed.trace
    mean_s = _by_stage(trace.spans_s).mean(axis=(0, 1, 2))
    return replayed.step_s(trace.spans_s * np.tile(mean_s.mean() / _positive(mean_s), 2))


def _even_micro_batches(trace: StepTrace) -> FloatArray:
    """Return durations with each step's work spread evenly; a slow worker stays as slow as it is."""
    ratios = np.tile(worker_ratios(trace), 2)[None, :, None, :]
    own = trace.spans_s / ratios
    even: FloatArray = np.broadcast_to(own.mean(axis=(1, 2), keepdims=True), own.shape) * ratios
    return even


def _repairs(replayed: TraceReplay, before: FloatArray) -> list[TraceChange]:
    trace, ratios = replayed.trace, worker_ratios(replayed.trace)
    slow = [
        (float(ratios[replica, stage]), replica, stage)
        for replica in range(len(trace.replicas))
        for stage in range(trace.stages)
        if ratios[replica, stage] >= SLOW_WORKER
    ]
    found = []
    for ratio, replica, stage in sorted(slow, reverse=True)[:MAX_WORKERS]:
        spans = trace.spans_s.copy()
        spans[:, replica, :, trace.stage_of_block == stage] /= ratio
        words = f"repair replica {trace.replicas[replica]}, stage {stage}: {ratio:.2f} times its peers' time"
        found.append(_change(words, "repair", False, before, replayed.step_s(spans)))
    return found
