"""Job of a plan: a step of so many samples, on these devices, with this optimizer and framework."""

from __future__ import annotations

from dataclasses import dataclass

from tessel.planning.cluster import OPTIMIZERS, Cluster, Optimizer
from tessel.planning.runtime import OVERLAPPED, Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a step is to do, and on what.

    Attributes:
        cluster: devices, their memory, and links.
        global_batch: samples of a step over all replicas; 0 where a layout says how many there are.
        optimizer: what training holds beside the weights.
        runtime: the framework that runs it.
        sharding: what replicas divide among them: one of `SHARDINGS`.
    """

    cluster: Cluster
    global_batch: int = 0
    optimizer: Optimizer = OPTIMIZERS["adam"]
    runtime: Runtime = OVERLAPPED
    sharding: str = "none"
