"""Bytes that a device holds beside activations, of weights and experts whose replicas divide some of them.

Weights, gradients and optimizer state of those that are trained, the flat copy of gradients that a runtime
makes for the all-reduce, the runtime's own bytes, and the largest need of a layer while it runs. Every term
is at its most at once, though the copy and a layer's need come one after the other: an allocator keeps what
it was given. Checked in tests/tessel/planning/costs/test_experts.py and test_sharding.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from tessel.planning.cluster import Optimizer
from tessel.planning.costs.stage_costs import FloatArray, LayerSums
from tessel.planning.job import Job
from tessel.planning.runtime import OVERLAPPED, Runtime
from tessel.planning.sharding import Shares, shares_of


class HeldBytes(NamedTuple):
    """What a device holds beside activations.

    Attributes:
        weights: bytes of all weights.
        trained: of these, bytes that have gradients and optimizer state.
        running: the largest need of a block while it runs.
        layer_weights: of its largest layer, those that are divided over replicas.
        layer_trained: trained bytes of the layer that has most, likewise.
        experts: of the weights, bytes of routed experts.
        expert_trained: of these, bytes that have gradients and optimizer state.
        buffered: activations that are there for a while only, and else on the hosts.
    """

    weights: float
    trained: float
    running: float
    layer_weights: float = 0.0
    layer_trained: float = 0.0
    experts: float = 0.0
    expert_trained: float = 0.0
    buffered: float = 0.0


def static_bytes(
    held: HeldBytes, optimizer: Optimizer | None, runtime: Runtime = OVERLAPPED, shares: Shares | None = None
) -> int:
    """Return what a device holds throughout a step, and its largest need while one block runs.

    Args:
        held: bytes of its weights.
        optimizer: what trained weights have beside them; None where nothing is trained.
        runtime: what the framework adds.
        shares: what a replica holds of each; all if None.
    """
    shares = shares or shares_of("none", optimizer, 1)
    found = runtime.context_bytes + runtime.peak_factor * held.running + held.buffered
    found += shares.held(held.weights, held.trained, held.experts, held.expert_trained)
    found += shares.gathered * held.layer_weights + shares.gradient * held.layer_trained
    if optimizer is not None:
        found += min(held.trained * optimizer.gradient_ratio, runtime.bucket_bytes)
    return math.ceil(found)


def job_shares(job: Job, *, trains: bool, replicas: int, expert_replicas: int) -> Shares:
    """Return what a replica holds in a job.

    Args:
        job: how training state is held.
        trains: whether there is any.
        replicas: devices that hold the same weights.
        expert_replicas: devices that hold the same experts.
    """
    optimizer = job.optimizer if trains else None
    if optimizer is not None and job.offloads_state:
        optimizer = msgspec.structs.replace(optimizer, state_ratio=0.0)
    shares, experts = (shares_of(job.sharding, optimizer, each) for each in (replicas, expert_replicas))
    return shares if replicas == expert_replicas else replace(shares, experts=experts)


def layers_divided(sums: LayerSums, shares: Shares) -> tuple[FloatArray, FloatArray]:
    """Return bytes by layer of weights that are whole only while it runs, where any are, and of trained ones.

    Experts of which no other device holds the same are whole throughout.
    """
    left_out = 0.0 if shares.divides_experts else 1.0
    return (
        np.diff(sums.weights - left_out * sums.expert_weights),
        np.diff(sums.trained - left_out * sums.expert_trained),
    )
