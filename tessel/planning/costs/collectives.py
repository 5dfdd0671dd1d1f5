"""Collectives of a training step: gradients that replicas sum, weights that they gather, ties of tensors.

Gradients are summed over replicas by a ring. Checked in tests/tessel/planning/costs/test_training_step.py
against a recomputation that shares no code.

Source of the ring: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms (2009): each of n devices
sends 2 (n - 1) / n of the bytes in 2 (n - 1) messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tessel.planning.cluster import Cluster, Optimizer
from tessel.planning.costs.replicas import collective_link, copies_of, replicas_of, rings_of
from tessel.planning.costs.stage_costs import FloatArray, LayerSums
from tessel.planning.costs.stage_runs import StageRuns, sum_by_device
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.sharding import SHARDINGS


@dataclass(frozen=True, slots=True)
class Collective:
    """Gradients that are summed over devices.

    Attributes:
        stages: stages of the placement whose last weight gradients it waits for.
        us: microseconds it takes.
        devices: within one pipeline, that take part; empty for all that hold the stages.
    """

    stages: tuple[int, ...]
    us: float
    devices: tuple[int, ...] = ()


def synchronisations(sums: LayerSums, layout: Layout, job: Job) -> tuple[Collective, ...]:
    """Return what each stage's replicas exchange after its last weight gradient.

    That is an all-reduce of its gradients, or a reduce-scatter where they divide the optimizer's state; where
    gradients are divided, each backward has done it.
    """
    if SHARDINGS.index(job.sharding) >= 2:
        return ()
    found = []
    num_stages = len(layout.cuts)
    for stage, (first, last) in enumerate(layout.cuts):
        num_bytes, expert_bytes = (
            float(each[last + 1] - each[first]) * job.optimizer.gradient_ratio
            for each in (sums.reduced, sums.expert_reduced)
        )
        us = rings_of(layout, job.cluster, stage).scatter_us(num_bytes, expert_bytes)
        us *= 2 if job.sharding == "none" else 1
        if us:
            found.append(Collective((stage, stage + num_stages)[: copies_of(layout)], us))
    return tuple(found)


class Hidden(NamedTuple):
    """Collectives of each micro-batch that run beside its blocks, in microseconds by stage."""

    gather_us: FloatArray | float
    scatter_us: FloatArray | float


def hidden_collectives(sums: LayerSums, layout: Layout, job: Job, run: StageRuns) -> Hidden:
    """Return the all-gather of a stage's weights, and the reduce-scatter of its gradients."""
    level = SHARDINGS.index(job.sharding)
    if replicas_of(layout) == 1 or level < 2:
        return Hidden(0.0, 0.0)
    optimizer = job.optimizer
    gathered = _exchanged(sums.weights, sums.expert_weights, optimizer.exchanged_ratio, layout, job, run)
    reduced = _exchanged(sums.reduced, sums.expert_reduced, optimizer.gradient_ratio, layout, job, run)
    return Hidden(gathered if level == 3 else 0.0, reduced if sums.has_backward else 0.0)


def _exchanged(
    sums: FloatArray, expert_sums: FloatArray, ratio: float, layout: Layout, job: Job, run: StageRuns
) -> FloatArray:
    """Return microseconds by stage of a reduce-scatter or an all-gather over its replicas.

    Args:
        sums: running sums of the bytes of weights.
        expert_sums: the same of routed experts alone.
        ratio: bytes exchanged for each of them.
        layout: who holds which stage.
    """
    rings = [rings_of(layout, job.cluster, stage) for stage in range(len(layout.cuts))] * copies_of(layout)
    sizes = [(run.of_sums(each) * ratio).tolist() for each in (sums, expert_sums)]
    return np.array([each.scatter_us(*own) for each, *own in zip(rings, *sizes, strict=True)])


def gathers_us(sums: LayerSums, layout: Layout, job: Job, run: StageRuns) -> tuple[float, ...]:
    """Return microseconds by device of gathering the weights that replicas have updated a part of each."""
    if job.sharding not in ("optimizer", "gradients") or not job.optimizer.updates:
        return (0.0,) * layout.pipeline
    us = _exchanged(sums.trained, sums.expert_trained, job.optimizer.exchanged_ratio, layout, job, run)
    return tuple(sum_by_device(run.groups, us, layout.pipeline).tolist())


def ties_of(
    sums: LayerSums, layout: Layout, cluster: Cluster, optimizer: Optimizer
) -> tuple[Collective, ...]:
    """Return the exchanges of tensors that layers on different devices share."""
    found = []
    num_stages = len(layout.cuts)
    for tensor in sums.tied:
        stages = [
            next(stage for stage, (first, last) in enumerate(layout.cuts) if first <= layer <= last)
            for layer in tensor.layers
        ]
        held_by = {layout.devices_of(stage) for stage in stages}
        # Stages divided over the same devices hold the same part of it on each.
        positions = sorted({device for group in held_by for device in group}) if len(held_by) > 1 else [0]
        link = collective_link(layout, cluster, positions)
        # A part of a tensor that another stage holds whole is the smallest: all of it is exchanged.
        parts = max(map(len, held_by)) / min(map(len, held_by))
        degrees = [layout.tensor_degree_at(layout.device_of(stage)) for stage in stages]
        parts *= max(degrees) / min(degrees)
        num_bytes = tensor.trained_bytes * parts * optimizer.gradient_ratio
        us = link.all_reduce_us(num_bytes, len(positions))
        if us:
            copies = (0, num_stages) if layout.placement == "xshape" else (0,)
            found.append(Collective(tuple(sorted({s + c for s in stages for c in copies})), us))
    return tuple(found)
