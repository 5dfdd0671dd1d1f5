"""Documents of `tessel plan`."""

from __future__ import annotations

import msgspec

from tessel.planning.layout import PlacedTower
from tessel.search.budget import StoppedBy


class PrintedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a training step.

    Attributes:
        data_parallel: replicas of the pipeline.
        pipeline: devices of one pipeline, each a group of `tensor_parallel` devices.
        tensor_parallel: devices over which each layer is split; the most, where stages differ.
        stage_tensor_parallel: of each stage, where these differ; left out elsewhere.
        context_parallel: devices over which the sequence of each sample is split.
        expert_parallel: devices over which the routed experts are divided.
        chunks: stages per device.
        micro_batch: samples of a micro-batch.
        micro_batches: micro-batches of one replica.
        placement: which device runs which stage.
        stage_devices: of each stage, the devices of the cluster that hold it, over all replicas and copies.
        cuts: first and last layer of each stage, inclusive.
        recompute: of each stage, whether its forward runs again before its backward.
        split_backward: whether the order may split backwards.
        sharding: what replicas divide among them: `none`, `optimizer`, `gradients` or `parameters`.
        offload: what lies in the memory of the hosts: one of `OFFLOADS`.
        overlap_factor: share of its sum that a forward takes with a backward beside it; left out where each
            block runs by itself.
        order: the rule that gives the order, or `searched`.
        step_ms: milliseconds of the training step.
        lower_bound_ms: no allowed plan takes less; of an alternative, no order of its layout.
        memory_bytes: most bytes held, one a device.
        trained_bytes: weights of each device that have gradients and optimizer state.
        not_trained_bytes: weights of each device that have none.
        fits: whether every device keeps its limit.
        tower: where the tower stands that is not cut with the language model: `own` or `bubbles`, its layers,
            and whether it recomputes; left out where there is none.
        replicas: of the best plan of micro-batches that differ, the classes that each replica runs, in the
            order in which they begin; left out where all are alike.
    """

    data_parallel: int
    pipeline: int
    tensor_parallel: int
    context_parallel: int
    expert_parallel: int
    chunks: int
    micro_batch: int
    micro_batches: int
    placement: str
    stage_devices: tuple[tuple[int, ...], ...]
    cuts: tuple[tuple[int, int], ...]
    recompute: tuple[bool, ...]
    split_backward: bool
    sharding: str
    offload: str
    order: str
    step_ms: float
    lower_bound_ms: float
    memory_bytes: tuple[int, ...]
    trained_bytes: tuple[int, ...]
    not_trained_bytes: tuple[int, ...]
    fits: bool
    stage_tensor_parallel: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    overlap_factor: float | msgspec.UnsetType = msgspec.UNSET
    tower: PlacedTower | msgspec.UnsetType = msgspec.UNSET
    replicas: tuple[tuple[str, ...], ...] | msgspec.UnsetType = msgspec.UNSET


class PrintedBaseline(msgspec.Struct, frozen=True, kw_only=True):
    """A hand-written way, with its own best degrees and cut; null where there is none, for that reason."""

    name: str
    step_ms: float | None
    ratio: float | None
    fits: bool
    reason: str
    plan: PrintedStep | None


class PrintedChange(msgspec.Struct, frozen=True, kw_only=True):
    """What planning again finds if one thing were different."""

    change: str
    step_ms: float
    saves_ms: float
    plan: str


class PrintedSpread(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan's step takes where durations vary, in milliseconds.

    Attributes:
        plan: in a few words.
        step_ms: with every block at its mean.
        mean_ms: on average.
        quantiles_ms: by percentile, `p50`, `p95` and `p99`.
        greedy_ratio: a greedy runtime's percentile over the static order's; null where it was not replayed.
        chosen: whether this is the plan.
    """

    plan: str
    step_ms: float
    mean_ms: float
    quantiles_ms: dict[str, float]
    greedy_ratio: float | None
    chosen: bool


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel plan` found.

    Attributes:
        model: name of the profile.
        layers: names of its layers, which the cuts count.
        devices: in all.
        global_batch: samples of a training step.
        best: the fastest plan found.
        gap: how far it may be from the least one, as a share of the bound.
        optimal: whether it is proven optimal.
        interval_ms: where the layers' times are predicted, what the step takes with all of them at the low
            and at the high ends of their 90 % intervals; null where they were measured.
        baselines: hand-written ways to use the devices; their ratio is their step over the best one's.
        alternatives: the best steps of other degrees or placements, fastest first.
        explanation: sentences that say why.
        changes: what would change it.
        notes: what the profile's file does not say and was assumed.
        plan: the file it was saved to; null where it was not.
        stopped_by: what ended the search.
        search_seconds: wall-clock time.
        spreads: where durations vary, the finalists' steps, the shortest first; left out where they do not.
        stage_spreads: sigma by stage of the best plan, where the table says how much its layers vary.
    """

    model: str
    layers: tuple[str, ...]
    devices: int
    global_batch: int
    best: PrintedStep
    gap: float
    optimal: bool
    interval_ms: tuple[float, float] | None
    baselines: tuple[PrintedBaseline, ...]
    alternatives: tuple[PrintedStep, ...]
    explanation: tuple[str, ...]
    changes: tuple[PrintedChange, ...]
    notes: tuple[str, ...]
    plan: str | None
    stopped_by: StoppedBy
    search_seconds: float
    spreads: tuple[PrintedSpread, ...] | msgspec.UnsetType = msgspec.UNSET
    stage_spreads: tuple[float, ...] | msgspec.UnsetType = msgspec.UNSET
