"""Document of `tessel check --trace`."""

from __future__ import annotations

import msgspec

from tessel.checking.trace_assessment import SlowMicroBatch, Straggler, TraceChange


class PrintedPathShare(msgspec.Struct, frozen=True, kw_only=True):
    """A stage's part of the critical path; the stage is null for transfers."""

    stage: int | None
    share: float


class TraceChecked(msgspec.Struct, frozen=True, kw_only=True):
    """An assessment of recorded steps.

    Attributes:
        trace: the file's name.
        num_steps: steps that were recorded.
        replicas: data-parallel ranks.
        stages: of the model.
        micro_batches: of a replica in a step.
        step_s: mean of whole steps, recorded.
        pipeline_s: mean of the slowest replica's pipeline, replayed.
        ideal_s: the same with every kind of block at its mean, and transfers at their median.
        slowdown: pipeline over ideal.
        error_mean: mean difference of replayed and recorded pipelines, as a part.
        error_worst: the largest.
        by_stage: the one that costs most first.
        by_replica: likewise.
        by_worker: likewise.
        length_correlation: of forward and backward times of a micro-batch.
        spread: standard deviation of a stage's micro-batches over their mean.
        slow_micro_batches: the slowest.
        path_step: the step of median length, whose critical path is shown.
        path_replica: its slowest replica.
        path_blocks: blocks on the path.
        path_shares: the largest first.
        changes: the one that saves most first.
    """

    trace: str
    num_steps: int
    replicas: int
    stages: int
    micro_batches: int
    step_s: float
    pipeline_s: float
    ideal_s: float
    slowdown: float
    error_mean: float
    error_worst: float
    by_stage: tuple[Straggler, ...]
    by_replica: tuple[Straggler, ...]
    by_worker: tuple[Straggler, ...]
    length_correlation: float
    spread: float
    slow_micro_batches: tuple[SlowMicroBatch, ...]
    path_step: int
    path_replica: int
    path_blocks: int
    path_shares: tuple[PrintedPathShare, ...]
    changes: tuple[TraceChange, ...]
