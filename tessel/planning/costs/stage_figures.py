"""Figures of each stage, hop and collective of a layout: time and memory, before blocks are made of them.

The times are a profile's, at the speed of the slowest device of a position. A hop's bytes go over the link
between the two positions: beside the blocks, or, where the runtime's hops are blocking, as a part of the
blocks at both ends, so that a micro-batch keeps a device busy that much longer; between stages of unequal
tensor-parallel degrees it is cut anew (`tessel.planning.costs.hop_figures`). The optimizer takes what was
measured, or else moves weights, gradients and state through memory once. `figures_of_sums` is O(stages): a
plan tries many thousand layouts.

Left out: contention between hops, and between collectives and compute; the global norm of gradients; loading
of data. Checked in tests/tessel/planning/costs/test_training_step.py against a recomputation that shares no
code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from tessel.batches.mixture import Mixture
from tessel.errors import ScheduleError
from tessel.planning.cluster import Cluster
from tessel.planning.costs.collectives import (
    Collective,
    gathers_us,
    hidden_collectives,
    synchronisations,
    ties_of,
)
from tessel.planning.costs.degree_sums import DegreeSums
from tessel.planning.costs.held_bytes import HeldBytes, job_shares, layers_divided, static_bytes
from tessel.planning.costs.hop_figures import hop_ends, hop_link, hops_of
from tessel.planning.costs.replicas import (
    replicas_of,
)
from tessel.planning.costs.stage_costs import FloatArray, LayerSums, TableKey, largest, layer_sums
from tessel.planning.costs.stage_runs import StageRuns, sum_by_device
from tessel.planning.costs.tower_figures import TowerFigures, tower_figures
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.sharding import SHARDINGS, Shares
from tessel.profiles.classes import class_profile, mean_profile
from tessel.profiles.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageFigures:
    """Times and bytes of a layout's stages and hops, before blocks are made of them.

    Of an `xshape` placement stages P..2P-1 are the second copy of stages 0..P-1.

    Attributes:
        groups: devices, within one pipeline, of each stage: one, or all of those that it is divided over.
        forward_us: microseconds by stage. The same holds for
        backward_us: joint backward with its recomputation; None where its halves take no longer,
        backward_input_us: input half with the recomputation; None where it may not split, and
        backward_weight_us: weight half; None likewise.
        hop_us: microseconds from each stage to its next ones and back; 0 within a device, and between the
            copies of an `xshape`.
        kept_bytes: bytes from a forward to its backward, by stage, but what lies on the hosts; of inference,
            to the end of the step.
        halved_bytes: of a split backward, bytes kept from its input half to its weight half, by stage.
        trained_bytes: weights that have gradients and optimizer state, by device.
        frozen_bytes: weights that have none, by device.
        static_bytes: weights, gradients, optimizer state, the largest need of a running block, and room for
            activations on their way from and to the hosts, by device.
        memory_bytes: by device, or None where there is no limit.
        synchronisations: over the replicas.
        ties: between stages that share a tensor.
        update_us: of the optimizer, by device.
        gather_us: of gathering updated weights that replicas divided, after the update, by device.
        chains: stages of each copy of the model, in topological order: a chain, but for two branches.
        next_stages: the stages that take what each makes; none of the last of a copy.
        overlap_factor: share of its sum that a forward takes with a joint backward that runs beside it; None
            where each block runs by itself.
        mixture: micro-batches by class, where they differ: times above are then means, and bytes the most.
        by_class: figures of each class; empty where micro-batches are alike.
        tower: of a tower that runs in bubbles; None where there is none such. Bytes by device count its
            copies, times by stage do not.
        degrees: devices over which layers are split, by position, where these differ; else empty.
    """

    groups: tuple[tuple[int, ...], ...]
    forward_us: FloatArray
    backward_us: FloatArray | None
    backward_input_us: FloatArray | None
    backward_weight_us: FloatArray | None
    hop_us: FloatArray
    kept_bytes: FloatArray
    halved_bytes: FloatArray
    trained_bytes: tuple[int, ...]
    frozen_bytes: tuple[int, ...]
    static_bytes: tuple[int, ...]
    memory_bytes: tuple[int, ...] | None
    synchronisations: tuple[Collective, ...]
    ties: tuple[Collective, ...]
    update_us: tuple[float, ...]
    gather_us: tuple[float, ...]
    chains: tuple[tuple[int, ...], ...]
    next_stages: tuple[tuple[int, ...], ...]
    overlap_factor: float | None = None
    mixture: Mixture | None = None
    by_class: tuple[StageFigures, ...] = ()
    degrees: tuple[int, ...] = ()
    tower: TowerFigures | None = None

    @property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """Devices of each stage, and behind them of each copy of a tower in bubbles."""
        copies = () if self.tower is None else range(len(self.static_bytes))
        return (*self.groups, *((device,) for device in copies))

    @property
    def after_us(self) -> tuple[float, ...]:
        """Microseconds by device from its last collective to the end of the step."""
        return tuple(map(sum, zip(self.update_us, self.gather_us, strict=True)))

    @property
    def devices(self) -> tuple[int, ...]:
        """Device of each stage; the first of those that it is divided over."""
        return tuple(group[0] for group in self.groups)

    def by_device(self, values: FloatArray) -> FloatArray:
        """Return the sum by device of values by stage; a divided stage counts on each of its devices."""
        return sum_by_device(self.groups, values, len(self.static_bytes))

    @property
    def headroom(self) -> tuple[int, ...] | None:
        """Bytes that each device has for activations; negative where not even the rest fits."""
        if self.memory_bytes is None:
            return None
        return tuple(
            limit - static for limit, static in zip(self.memory_bytes, self.static_bytes, strict=True)
        )

    @property
    def has_backward(self) -> bool:
        """Whether it is trained."""
        return self.backward_us is not None or self.backward_input_us is not None

    def device_work_us(self) -> FloatArray:
        """Return the least microseconds of blocks that one micro-batch of each chain has on each device.

        Of classes it is the mean over all micro-batches.
        """
        if self.mixture is not None:
            own = [each.device_work_us() for each in self.by_class]
            found: FloatArray = np.average(own, axis=0, weights=self.mixture.counts)
            return found
        return self.by_device(self.forward_us + self.least_backward_us())

    def least_backward_us(self) -> FloatArray:
        """Return microseconds of the backward by stage, joint or in halves, whichever takes less."""
        nothing = np.zeros(len(self.groups))
        if self.backward_input_us is not None and self.backward_weight_us is not None:
            halves = self.backward_input_us + self.backward_weight_us
            return halves if self.backward_us is None else np.minimum(halves, self.backward_us)
        return nothing if self.backward_us is None else self.backward_us


# Many layouts of one plan read the same table.
@lru_cache(maxsize=64)
def _sums(profile: Profile, key: TableKey) -> LayerSums:
    return layer_sums(profile, key)


@lru_cache(maxsize=8)
def _degree_sums(profile: Profile, keys: frozenset[TableKey]) -> DegreeSums:
    return DegreeSums.of({key.tensor_parallel: _sums(profile, key) for key in keys})


def _layout_sums(profile: Profile, layout: Layout) -> LayerSums:
    """Return the sums of a layout's layers, each at the tensor-parallel degree of its stage."""
    key = table_key(layout)
    if not layout.has_own_degrees:
        return _sums(profile, key)
    degrees = layout.tensor_degrees
    keys = frozenset(key._replace(tensor_parallel=each) for each in degrees)
    return _degree_sums(profile, keys).of_stages(layout.cuts, degrees)


@lru_cache(maxsize=8)
def _by_class(profile: Profile, mixture: Mixture) -> tuple[Profile, ...]:
    """Return the mean over the micro-batches, and each class."""
    own = [class_profile(profile, name) for name in mixture.classes]
    return (mean_profile(own, mixture.counts), *own)


def stage_figures(
    profile: Profile,
    layout: Layout,
    job: Job,
) -> StageFigures:
    """Return times and bytes of a layout's stages; O(stages).

    Args:
        profile: layers and their costs.
        layout: its cuts cover all layers.
        job: devices and links, what a device holds beside the weights, and who runs the step.

    Raises:
        ScheduleError: the profile has no table for the layout's micro-batch and tensor-parallel degree, or no
            branches where the layout has some.
    """
    if layout.branches not in (None, profile.branches):
        raise ScheduleError(
            f"the layout has branches at {layout.branches}, and {profile.name} at {profile.branches}; cut "
            "where the model's begin and meet"
        )
    if job.mixture is None:
        return figures_of_sums(_layout_sums(profile, layout), layout, job)
    mean, *own = (_layout_sums(each, layout) for each in _by_class(profile, job.mixture))
    return figures_of_classes(mean, own, layout, job)


def figures_of_classes(
    mean: LayerSums, by_class: Sequence[LayerSums], layout: Layout, job: Job
) -> StageFigures:
    """Return times and bytes of a layout's stages where micro-batches differ.

    Args:
        mean: running sums of times on average, and of the most bytes.
        by_class: of each class of the job's mixture.
        layout: one stage a device and time; micro-batches of different replicas meet in no block.
        job: its mixture says how many micro-batches are of each class.
    """
    run = StageRuns.of(mean, layout)
    found = [_block_figures(sums, layout, job, run) for sums in (mean, *by_class)]
    if len({each["backward_us"] is None for each in found}) > 1:  # a class is better off with joint ones
        found = [_block_figures(sums, layout, job, run, keeps_joint=True) for sums in (mean, *by_class)]
    whole = replace(figures_of_sums(mean, layout, job), **found[0])
    own = tuple(replace(whole, **each) for each in found[1:])
    return replace(whole, mixture=job.mixture, by_class=own)


def halves_replace_joint(
    joint_us: FloatArray, input_us: FloatArray, weight_us: FloatArray, holds_more: npt.NDArray[np.bool_]
) -> bool:
    """Return whether no order is better with a joint backward of any stage than with its halves in its place.

    Halves that take no longer, one after the other, replace it everywhere; with recomputation, or with
    activations on the hosts, they hold more in between.
    """
    return bool((input_us + weight_us <= joint_us * (1 + 1e-9)).all() and not holds_more.any())


def figures_of_sums(sums: LayerSums, layout: Layout, job: Job) -> StageFigures:
    """Return the same for the running sums of the layout's table."""
    cluster, optimizer, runtime = job.cluster, job.optimizer, job.runtime
    run = StageRuns.of(sums, layout)
    trained = sums.has_backward
    shares = layout_shares(layout, job, trains=trained)
    tower = tower_figures(sums, layout, job, _tower_hops(sums, layout, job))
    held = _held(sums, layout, run, shares, job.buffers if trained else 0, tower)
    found = StageFigures(
        groups=run.groups,
        trained_bytes=tuple(round(each.trained) for each in held),
        frozen_bytes=tuple(round(each.weights - each.trained) for each in held),
        static_bytes=tuple(
            static_bytes(each, optimizer if trained else None, runtime, shares) for each in held
        ),
        memory_bytes=memory_limits(layout, cluster),
        synchronisations=synchronisations(sums, layout, job) if trained else (),
        ties=ties_of(sums, layout, cluster, optimizer) if trained else (),
        update_us=_updates(sums, layout, job, run) if trained else (0.0,) * layout.pipeline,
        gather_us=gathers_us(sums, layout, job, run) if trained else (0.0,) * layout.pipeline,
        chains=run.chains,
        next_stages=run.next_stages,
        overlap_factor=job.overlap_factor if trained else None,
        degrees=layout.tensor_degrees if layout.has_own_degrees else (),
        **_block_figures(sums, layout, job, run),
    )
    return found if tower is None else _with_tower(found, tower, sums, layout, job)


def _with_tower(
    figures: StageFigures, tower: TowerFigures, sums: LayerSums, layout: Layout, job: Job
) -> StageFigures:
    """Return the figures of stages whose devices hold copies of a tower beside them."""
    measured, moved = update_sums(sums, layout, job, copies=layout.pipeline)
    own = layout.cuts[0][0]
    updated_us = float(measured[own]) / job.cluster.speed_of(0) + float(moved[own])
    return replace(
        figures,
        tower=tower,
        trained_bytes=tuple(each + tower.trained_bytes for each in figures.trained_bytes),
        frozen_bytes=tuple(each + tower.frozen_bytes for each in figures.frozen_bytes),
        static_bytes=tuple(each + tower.static_bytes for each in figures.static_bytes),
        synchronisations=(*figures.synchronisations, *tower.reduced(len(figures.groups))),
        update_us=tuple(each + updated_us for each in figures.update_us),
        gather_us=tuple(each + tower.gather_us for each in figures.gather_us),
    )


def _tower_hops(sums: LayerSums, layout: Layout, job: Job) -> FloatArray:
    """Return microseconds of what a tower in bubbles makes, from each device to the first stage's."""
    cluster, found = job.cluster, np.zeros(layout.pipeline)
    if layout.bubbles is None:
        return found
    num_bytes, first = float(sums.boundary[layout.cuts[0][0] - 1]), layout.device_of(0)
    for device in set(range(layout.pipeline)) - {first}:
        link = hop_link(layout, cluster, device, first)
        _, found[device] = hop_ends(num_bytes, layout.tensor_parallel, link, cluster, job.runtime)
    return found


class _BlockFigures(TypedDict):
    """What `StageFigures` say of a micro-batch, and of nothing else."""

    forward_us: FloatArray
    backward_us: FloatArray | None
    backward_input_us: FloatArray | None
    backward_weight_us: FloatArray | None
    hop_us: FloatArray
    kept_bytes: FloatArray
    halved_bytes: FloatArray


def _block_figures(
    sums: LayerSums, layout: Layout, job: Job, run: StageRuns, *, keeps_joint: bool = False
) -> _BlockFigures:
    speed = _speeds(layout, job, run)
    recompute_us = np.where(run.recomputes, run.of_sums(sums.recompute), 0.0) / speed
    splits = layout.split_backward and sums.is_splittable
    hops = hops_of(sums, layout, job.cluster, job.runtime, run)
    added_us = recompute_us + hops.backward_us
    hidden = hidden_collectives(sums, layout, job, run)
    kept_bytes = _saved_bytes(sums, run)
    offloads = job.offloads_activations and sums.has_backward
    copy_us = kept_bytes * job.copy_us_per_byte * offloads
    back_us = np.maximum(copy_us - recompute_us, hidden.gather_us)  # beside the backward itself
    forward_us = (
        np.maximum(run.of_sums(sums.forward) / speed, np.maximum(copy_us, hidden.gather_us)) + hops.forward_us
    )
    backward_us = (
        np.maximum(
            run.of_sums(sums.backward) / speed, np.maximum(back_us, hidden.gather_us + hidden.scatter_us)
        )
        + added_us
    )
    input_us = np.maximum(run.of_sums(sums.backward_input) / speed, back_us) + added_us
    weight_us = np.maximum(run.of_sums(sums.backward_weight) / speed, hidden.scatter_us)
    holds_more = run.recomputes | offloads  # between the halves than beside a joint backward
    is_dominated = splits and halves_replace_joint(backward_us, input_us, weight_us, holds_more)
    return _BlockFigures(
        forward_us=forward_us,
        # Only whole backwards run beside a forward.
        backward_us=backward_us
        if sums.has_backward and (keeps_joint or job.overlap_factor or not is_dominated)
        else None,
        backward_input_us=input_us if splits else None,
        backward_weight_us=weight_us if splits else None,
        hop_us=hops.lag_us,
        kept_bytes=kept_bytes * (not offloads),
        halved_bytes=np.where(
            run.recomputes, run.of_sums(sums.recomputed_for_weight), run.of_sums(sums.saved_for_weight)
        ),
    )


def _saved_bytes(sums: LayerSums, run: StageRuns) -> FloatArray:
    """Return the bytes that each stage's forward saves for its backward, wherever they lie."""
    return np.where(run.recomputes, run.of_sums(sums.kept), run.of_sums(sums.saved))


def _speeds(layout: Layout, job: Job, run: StageRuns) -> FloatArray:
    """Return how fast each stage runs: as its slowest device."""
    by_position = position_speeds(layout, job.cluster)
    return np.array([min(by_position[device] for device in group) for group in run.groups])


def table_key(layout: Layout) -> TableKey:
    """Return which figures of a profile a layout runs with; of several degrees, those of the largest."""
    return TableKey(
        layout.micro_batch,
        layout.tensor_parallel,
        layout.shards,
        layout.joined,
        layout.context_parallel,
        layout.expert_parallel,
    )


def layout_shares(layout: Layout, job: Job, *, trains: bool) -> Shares:
    """Return what a replica holds of a layout's weights, gradients and state."""
    return job_shares(
        job, trains=trains, replicas=replicas_of(layout), expert_replicas=replicas_of(layout, experts=True)
    )


def position_speeds(layout: Layout, cluster: Cluster) -> FloatArray:
    """Return how fast each position of the pipeline is: as its slowest device."""
    if not cluster.device_speed:
        return np.ones(layout.pipeline)
    return np.array(
        [
            min(cluster.speed_of(device) for device in layout.devices_at(position))
            for position in range(layout.pipeline)
        ]
    )


def memory_limits(layout: Layout, cluster: Cluster) -> tuple[int, ...] | None:
    """Return the memory limit of each position: that of its smallest device; None for no limit."""
    limits = cluster.device_memory_bytes
    if not limits:
        return None if cluster.memory_bytes is None else (cluster.memory_bytes,) * layout.pipeline
    positions = map(layout.devices_at, range(layout.pipeline))
    return tuple(min(limits[device] for device in devices) for devices in positions)


def update_us(sums: LayerSums, layout: Layout, job: Job) -> tuple[float, ...]:
    """Return microseconds of the optimizer by device."""
    return _updates(sums, layout, job, StageRuns.of(sums, layout))


def _held(
    sums: LayerSums,
    layout: Layout,
    run: StageRuns,
    shares: Shares,
    buffers: int,
    tower: TowerFigures | None,
) -> list[HeldBytes]:
    """Return what each device holds beside activations; a tied tensor counts once on each."""
    buffered = buffers * _saved_bytes(sums, run)
    weights, trained, experts, expert_trained = (
        run.of_sums(each) for each in (sums.weights, sums.trained, sums.expert_weights, sums.expert_trained)
    )
    recomputes = layout.recompute or (False,) * len(layout.cuts)
    peak = np.where(recomputes, largest(sums.recomputed_peak, layout.cuts), largest(sums.peak, layout.cuts))
    peak = np.tile(peak, len(run.chains))
    most, most_trained = (
        np.tile(largest(each, layout.cuts), len(run.chains)) for each in layers_divided(sums, shares)
    )
    found = []
    beside = 0.0 if tower is None else tower.peak_bytes
    stages: list[list[int]] = [[] for _ in range(layout.pipeline)]
    for stage, group in enumerate(run.groups):
        for device in group:
            stages[device].append(stage)
    for here in stages:
        twice, trained_twice = sums.twice_held((int(run.first[s]), int(run.after[s]) - 1) for s in here)
        found.append(
            HeldBytes(
                weights=sum(float(weights[stage]) for stage in here) - twice,
                trained=sum(float(trained[stage]) for stage in here) - trained_twice,
                running=max(beside, *(float(peak[stage]) for stage in here)),
                layer_weights=max(float(most[stage]) for stage in here),
                layer_trained=max(float(most_trained[stage]) for stage in here),
                experts=sum(float(experts[stage]) for stage in here),
                expert_trained=sum(float(expert_trained[stage]) for stage in here),
                buffered=max(float(buffered[stage]) for stage in here),
            )
        )
    return found


def _updates(sums: LayerSums, layout: Layout, job: Job, run: StageRuns) -> tuple[float, ...]:
    """Return microseconds of the optimizer by device."""
    speed = _speeds(layout, job, run)
    measured, moved = (run.of_sums(each) for each in update_sums(sums, layout, job))
    num_devices = 1 + max(max(group) for group in run.groups)
    return tuple(sum_by_device(run.groups, measured / speed + moved, num_devices).tolist())


def update_sums(
    sums: LayerSums, layout: Layout, job: Job, *, copies: int = 1
) -> tuple[FloatArray, FloatArray]:
    """Return running sums of the optimizer's microseconds over layers: as measured, and by traffic.

    Without a measurement the traffic is that of one fused step, which reads weights, gradients and state and
    writes weights and state; of the part that a replica has where they divide it. State that lies in the
    memory of hosts comes from there and goes back besides. Only what was measured depends on the device.

    Sums of gradients that lie whole on each replica are passed over besides: they are set to zero, looked
    through for what is not finite, and, of several replicas, scaled before they are summed (Megatron Core,
    `_ParamAndGradBucketGroup`).

    Args:
        sums: of the layout's table.
        layout: who holds which layer.
        job: how state is held.
        copies: of the layers on each replica of the pipeline.
    """
    optimizer, nothing = job.optimizer, 0.0 * sums.update
    if not optimizer.updates:
        return nothing, nothing
    replicas, expert_replicas = (
        1 if job.sharding == "none" else copies * replicas_of(layout, experts=experts)
        for experts in (False, True)
    )

    def own(every: FloatArray, experts: FloatArray) -> FloatArray:
        return (every - experts) / replicas + experts / expert_replicas

    trained = own(sums.trained, sums.expert_trained)
    moved = nothing
    if not sums.has_update:
        ratio = 2 + optimizer.gradient_ratio + 2 * optimizer.state_ratio
        moved = trained * ratio / job.runtime.update_bytes_per_s * 1e6
    if job.offloads_state and job.cluster.host is not None:
        moved = moved + trained * 2 * optimizer.state_ratio / job.cluster.host.bytes_per_s * 1e6
    passes = 0 if job.sharding not in SHARDINGS[:2] else 2 if copies * replicas_of(layout) == 1 else 4
    return own(sums.update, sums.expert_update) + passes * sums.gradient_pass, moved
