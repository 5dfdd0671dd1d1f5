"""Figures of a tower that runs in bubbles: each device of the pipeline holds a copy, and some device runs it.

    device 0   t0 t2 f0 f1 f2 .  b0 b1 b2 . w2      t: the tower's forward of a micro-batch, on any device
    device 1   t1 .  .  f0 f1 b0 f2 b1 b2 w0 w1     ahead of its first stage's; w: its backward, behind, there

What it makes goes to the first stage, and its gradient comes back, over the link between the two devices.
From its forward to its backward a device keeps what the tower saves, and what it makes: that may wait for the
first stage as long. Gradients are summed over all copies, of every replica of the pipeline; what replicas of
a layer divide, copies do. Checked in tests/tessel/planning/test_towers.py against sums written out by hand.

Source of the idea: Feng et al., Optimus: Accelerating Large-Scale Multi-Modal LLM Training by Bubble
Exploitation (USENIX ATC 2025), which divides the tower into kernels; here a block is a whole forward or
backward of it, and its order is searched with all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tessel.errors import ScheduleError
from tessel.planning.costs.collectives import Collective
from tessel.planning.costs.held_bytes import HeldBytes, job_shares, static_bytes
from tessel.planning.costs.replicas import collective_link
from tessel.planning.costs.stage_costs import FloatArray, LayerSums
from tessel.planning.job import Job
from tessel.planning.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TowerFigures:
    """Times and bytes of a tower in bubbles, of a micro-batch unless said otherwise.

    Attributes:
        forward_us: microseconds of its forward, on any device.
        backward_us: of its backward, with its recomputation; 0 where nothing of it is trained.
        hop_us: from each device to the first stage's, and back.
        kept_bytes: from its forward to its backward, with what it hands on.
        static_bytes: of a copy: weights, gradients, optimizer state.
        peak_bytes: the largest need of a layer while it runs.
        reduced_us: of summing its gradients over all copies, once a step.
        gather_us: of gathering updated weights that copies divided.
        trained_bytes: weights of a copy that have gradients and optimizer state.
        frozen_bytes: weights of a copy that have none.
    """

    forward_us: float
    backward_us: float
    hop_us: FloatArray
    kept_bytes: int
    static_bytes: int
    peak_bytes: float
    reduced_us: float
    gather_us: float
    trained_bytes: int
    frozen_bytes: int

    def reduced(self, num_stages: int) -> tuple[Collective, ...]:
        """Return the sum of its gradients as what waits for all copies, which stand behind the stages."""
        copies = range(num_stages, num_stages + len(self.hop_us))
        return (Collective(tuple(copies), self.reduced_us),) if self.reduced_us else ()


def check_bubbles(job: Job, *, is_training: bool) -> None:
    """Refuse jobs whose towers cannot run in bubbles.

    Raises:
        ScheduleError: it is one; says what to change.
    """
    wrong = {
        "is for inference": not is_training,
        f"divides {job.sharding}, which are exchanged in every micro-batch": job.sharding
        not in ("none", "optimizer"),
        "has activations on the hosts": job.offloads_activations,
        "has micro-batches that differ": job.mixture is not None,
        "has blocks that run together (overlap factor)": job.overlap_factor is not None,
        f"has hops that block ({job.runtime.name})": job.runtime.has_blocking_hops,
        "has devices of several speeds": len(set(job.cluster.device_speed)) > 1,
    }
    for what, is_wrong in wrong.items():
        if is_wrong:
            raise ScheduleError(
                f"a tower in bubbles is planned for training steps of equal blocks, and this job {what}; "
                "leave that out, or run the tower first"
            )


def tower_figures(sums: LayerSums, layout: Layout, job: Job, hop_us: FloatArray) -> TowerFigures | None:
    """Return the figures of a layout's tower in bubbles; None where it has none such.

    Args:
        sums: of all layers, the tower's first.
        layout: how the language model is cut.
        job: as `check_bubbles` allows it.
        hop_us: of what the tower makes, from each device to the first stage's.

    Raises:
        ScheduleError: the job cannot have it.
    """
    tower = layout.bubbles
    if tower is None:
        return None
    check_bubbles(job, is_training=sums.has_backward)
    own, optimizer = tower.layers, job.optimizer
    copies = layout.weight_replicas * layout.pipeline
    shares = job_shares(job, trains=True, replicas=copies, expert_replicas=copies)
    weights, trained = float(sums.weights[own]), float(sums.trained[own])
    link = collective_link(layout, job.cluster, range(layout.pipeline))
    reduced_us = link.scatter_us(float(sums.reduced[own]) * optimizer.gradient_ratio, copies)
    is_divided = job.sharding == "optimizer" and optimizer.updates
    backward_us = float(sums.backward[own])
    if tower.recompute and backward_us:
        backward_us += float(sums.recompute[own])
    speed = job.cluster.speed_of(0)
    kept = sums.kept if tower.recompute else sums.saved
    return TowerFigures(
        forward_us=float(sums.forward[own]) / speed,
        backward_us=backward_us / speed,
        hop_us=hop_us,
        kept_bytes=math.ceil(kept[own] + sums.boundary[own - 1]),
        static_bytes=static_bytes(HeldBytes(weights, trained, 0.0), optimizer, job.runtime, shares)
        - job.runtime.context_bytes,
        peak_bytes=float(np.max((sums.recomputed_peak if tower.recompute else sums.peak)[:own])),
        reduced_us=reduced_us * (2 if job.sharding == "none" else 1),
        gather_us=link.scatter_us(trained * optimizer.exchanged_ratio, copies) if is_divided else 0.0,
        trained_bytes=round(trained),
        frozen_bytes=round(weights - trained),
    )
