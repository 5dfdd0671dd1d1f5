"""What the bounds of one family of layouts are made of: running sums, and the least that any position takes.

Layers differ in what they take, and each figure here is the least of all places where a layer may run, so
that what `bounds` adds up of them stays a proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessel.planning.candidates.families import Family
from tessel.planning.costs.held_bytes import job_shares
from tessel.planning.costs.replicas import collective_link, replica_positions
from tessel.planning.costs.stage_costs import FloatArray, LayerSums
from tessel.planning.costs.stage_figures import (
    memory_limits,
    position_speeds,
    update_sums,
    update_us,
)
from tessel.planning.cutting.run_prices import layer_times
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.planning.sharding import SHARDINGS, Shares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundTerms:
    """What the bounds of one family share.

    Attributes:
        shares: what a replica holds for each byte of weights.
        micro_batches: that each chain runs.
        widths: devices over which layers are split, by position.
        shared_us: of unequal degrees, microseconds times devices that a micro-batch takes at least; else 0.
        speeds: by position.
        limits: bytes by position; None for no limit.
        hop_us: least microseconds from one device to the next.
        times: running sums of each layer's work.
        copies_us: running sums of microseconds of each layer's activations to the hosts and back, at least.
        weighed_us: what a micro-batch keeps all devices busy with at least, copies weighed with work.
        gradients: running sums of each layer's least microseconds from its output's gradient to its input's.
        overlap_factor: share of its sum that a forward takes with a backward beside it; None for no pairs.
        ends_with_gradient: whether the last block of a device is always a gradient that others wait for.
        synchronisation: microseconds of an all-reduce as latency, and per byte of reduced weights. The same
            holds for
        expert_synchronisation: that of routed experts; None where they are exchanged with all else.
        update_us: microseconds of the optimizer, of all layers and copies; 0 where devices differ.
        updates: running sums of each layer's part of that.
    """

    sums: LayerSums
    shares: Shares
    micro_batches: int
    widths: FloatArray
    shared_us: float
    copies: int
    speeds: FloatArray
    limits: tuple[int, ...] | None
    hop_us: float
    times: FloatArray
    copies_us: FloatArray
    weighed_us: float
    gradients: FloatArray
    overlap_factor: float | None
    ends_with_gradient: bool
    synchronisation: tuple[float, float]
    expert_synchronisation: tuple[float, float] | None
    update_us: float
    updates: FloatArray

    @property
    def is_waited_for(self) -> bool:
        """Whether others always run after a device's last block, as of joint backwards or forwards alone."""
        return self.ends_with_gradient or (not self.sums.has_backward and self.copies == 1)

    def work_us(self, times: FloatArray | float, forward: FloatArray | float) -> FloatArray:
        """Return the least that a device is busy with some layers for all micro-batches, pairs or not.

        Args:
            times: microseconds of the layers' blocks for a micro-batch.
            forward: of these, microseconds of their forwards.
        """
        once = np.asarray(times)
        if self.overlap_factor is not None:
            paired = np.maximum(forward, self.overlap_factor * once)
            once = np.where(np.isfinite(once), np.maximum(paired, once - forward), once)
        work: FloatArray = self.micro_batches * once
        return work

    def exchange_us(self, reduced: FloatArray, experts: FloatArray) -> FloatArray:
        """Return the least time from the last gradients of weights to the end of their all-reduce.

        Args:
            reduced: bytes of weights, experts included.
            experts: bytes of routed experts.
        """
        found = np.zeros_like(reduced)
        apart = [(reduced, self.synchronisation)]
        if self.expert_synchronisation is not None:
            apart = [(reduced - experts, self.synchronisation), (experts, self.expert_synchronisation)]
        for num_bytes, (latency, rate) in apart:
            if rate:
                found += np.where(num_bytes > 0, latency + rate * num_bytes, 0.0)
        return found


def family_shares(family: Family, sums: LayerSums, job: Job) -> Shares:
    """Return what each replica of a family's layouts holds for each byte of weights."""
    copies = 2 if family.placement == "xshape" else 1
    replicas = family.data_parallel * family.context_parallel * copies
    return job_shares(
        job,
        trains=sums.has_backward,
        replicas=replicas,
        expert_replicas=replicas // family.expert_parallel,
    )


def terms_of(degrees: Family, copies: int, sums: LayerSums, job: Job, options: PlanOptions) -> BoundTerms:
    """Return the terms of the families of these degrees.

    Args:
        degrees: a family with one stage a device.
        copies: chains that run side by side on the devices.
    """
    layout = degrees.any_layout(sums.num_layers)
    splits = degrees.split_backward and sums.is_splittable
    times = layer_times(sums, splits=splits)
    gradients = sums.backward
    if splits:
        least = np.minimum(np.diff(sums.backward), np.diff(sums.backward_input))
        gradients = np.concatenate(([0.0], np.cumsum(least)))
    speeds = position_speeds(layout, job.cluster)
    measured, moved = update_sums(sums, layout, job)
    copies_apart = copies if job.sharding == "none" else 1  # else each updates its part
    return BoundTerms(
        sums=sums,
        shares=job_shares(
            job,
            trains=sums.has_backward,
            replicas=copies * layout.weight_replicas,
            expert_replicas=copies * layout.expert_replicas,
        ),
        micro_batches=degrees.micro_batches // copies,
        widths=np.array(degrees.tensor_degrees, dtype=np.float64),
        shared_us=shared_us(sums, job, splits=splits),
        copies=copies,
        speeds=speeds,
        limits=memory_limits(layout, job.cluster),
        hop_us=_least_hop(sums, job, degrees.tensor_parallel),
        times=times,
        copies_us=(sums.kept if options.recompute else sums.saved) * _copy_rate(sums, job),
        weighed_us=_weighed_us(sums, times, float(speeds.min()), job, options),
        gradients=gradients,
        overlap_factor=job.overlap_factor if sums.has_backward else None,
        ends_with_gradient=sums.has_backward and not splits,
        synchronisation=_synchronisation(layout, copies, sums, job, experts=False),
        expert_synchronisation=None
        if layout.expert_parallel == 1
        else _synchronisation(layout, copies, sums, job, experts=True),
        updates=measured / speeds.max() + moved,
        update_us=sum(update_us(sums, layout, job)) * copies_apart
        if sums.has_backward and len(set(speeds.tolist())) == 1
        else 0.0,
    )


def shared_us(sums: LayerSums, job: Job, *, splits: bool) -> float:
    """Return microseconds times devices that a micro-batch takes at least, each layer at its best degree.

    With pairs a device takes no less than its forwards, than the share of all, nor than what is no forward.

    Args:
        sums: the least of several degrees; of one table it is 0.
        job: whether blocks run together.
        splits: whether backwards may run in halves.
    """
    if not sums.of_degrees:
        return 0.0
    factor = job.overlap_factor if sums.has_backward else None
    forms = []
    for degree, table in sums.of_degrees:
        times, forward = np.diff(layer_times(table, splits=splits)), np.diff(table.forward)
        own = [times] if factor is None else [forward, factor * times, times - forward]
        forms.append([degree * each for each in own])
    return float(np.min(forms, axis=0).sum(axis=-1).max())


def _copy_rate(sums: LayerSums, job: Job) -> float:
    """Return microseconds of a byte of activations to the hosts and back; of pairs, both ways at once."""
    return job.copy_us_per_byte * sums.has_backward * (2 if job.overlap_factor is None else 1)


def _weighed_us(sums: LayerSums, times: FloatArray, slowest: float, job: Job, options: PlanOptions) -> float:
    """Return the least work of a micro-batch whose activations go to the hosts; 0 where they do not.

    A stage takes its work and its copies at least, so any mean of both, which is a sum over its layers; each
    recomputes or not, whichever makes it less.
    """
    rate = _copy_rate(sums, job) * slowest
    if not rate:
        return 0.0
    own = [(times, sums.saved), (times + sums.recompute, sums.kept)][: 1 + options.recompute]
    part = job.overlap_factor or 1.0
    return max(
        float(
            np.min(
                [np.diff(weight * part * work + (1 - weight) * rate * num_bytes) for work, num_bytes in own],
                axis=0,
            ).sum()
        )
        for weight in np.linspace(0.0, 1.0, 9)
    )


def _least_hop(sums: LayerSums, job: Job, tensor_parallel: int) -> float:
    """Return what any hop takes at least; nothing where hops are a part of the blocks."""
    cluster, runtime = job.cluster, job.runtime
    if runtime.has_blocking_hops or sums.num_layers == 1:
        return 0.0
    links = [cluster.hop, *([cluster.intra_node] if cluster.intra_node is not None else [])]
    num_bytes = float(sums.boundary[:-1].min()) / (tensor_parallel if runtime.splits_hops else 1)
    return runtime.hop_overhead_us + min(link.transfer_us(num_bytes) for link in links)


def _synchronisation(
    layout: Layout, copies: int, sums: LayerSums, job: Job, *, experts: bool
) -> tuple[float, float]:
    """Return microseconds of latency and per byte of reduced weights of the fastest position's all-reduce."""
    cluster, ratio = job.cluster, job.optimizer.gradient_ratio
    replicas = layout.expert_replicas if experts else layout.weight_replicas
    if not sums.has_backward or replicas * copies == 1 or not ratio:
        return 0.0, 0.0
    if SHARDINGS.index(job.sharding) >= 2:
        return 0.0, 0.0  # hidden behind backwards, as far as they are longer
    large = 1e9
    found = []
    are_alike = cluster.intra_node is None and (copies == 1 or layout.pipeline % 2 == 0)
    for position in range(1 if are_alike else layout.pipeline):
        positions = replica_positions(position, pipeline=layout.pipeline, copies=copies)
        link = collective_link(layout, cluster, positions, experts=experts)
        devices = replicas * len(positions)
        exchange = link.all_reduce_us if job.sharding == "none" else link.scatter_us
        one, two = (exchange(factor * large * ratio, devices) for factor in (1, 2))
        found.append((max(0.0, 2 * one - two), (two - one) / large))
    return min(latency for latency, _ in found), min(rate for _, rate in found)
