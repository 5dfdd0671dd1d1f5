"""Document of `tessel check --trace`."""

from __future__ import annotations

import msgspec


class PrintedStraggler(msgspec.Struct, frozen=True, kw_only=True):
    """A stage, a replica or a worker, and what its own durations cost.

    Attributes:
        stage: of the model; null for a replica.
        replica: its number; null for a stage.
        slowdown: the mean step with only its durations as recorded, over the ideal one.
        ratio: its mean time a micro-batch over that of its peers.
    """

    stage: int | None
    replica: int | None
    slowdown: float
    ratio: float


class PrintedSlowMicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A micro-batch that takes long, and its time over the mean."""

    step: int
    replica: int
    micro_batch: int
    ratio: float


class PrintedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change and what it would have given alone, predicted by a replay of the recorded durations.

    Attributes:
        change: what to do.
        kind: `repair`, `balance`, `cut`, `order` or `assignment`.
        is_ideal: whether it supposes that layers or samples can be cut anywhere.
        predicted_pipeline_s: mean over steps.
        saves_ratio: part of the mean pipeline.
        least: the same in the step that gains least.
        most: in the step that gains most.
    """

    change: str
    kind: str
    is_ideal: bool
    predicted_pipeline_s: float
    saves_ratio: float
    least: float
    most: float


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
    by_stage: tuple[PrintedStraggler, ...]
    by_replica: tuple[PrintedStraggler, ...]
    by_worker: tuple[PrintedStraggler, ...]
    length_correlation: float
    spread: float
    slow_micro_batches: tuple[PrintedSlowMicroBatch, ...]
    path_step: int
    path_replica: int
    path_blocks: int
    path_shares: tuple[PrintedPathShare, ...]
    changes: tuple[PrintedChange, ...]
