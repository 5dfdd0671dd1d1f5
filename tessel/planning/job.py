"""Job of a plan: a step of so many samples, on these devices, with this optimizer and framework."""

from __future__ import annotations

from dataclasses import dataclass

from tessel.batches.mixture import Mixture
from tessel.errors import ScheduleError
from tessel.planning.cluster import OPTIMIZERS, Cluster, Optimizer
from tessel.planning.runtime import OVERLAPPED, Runtime

OFFLOADS = ("none", "optimizer", "activations", "optimizer+activations")
"""What may lie in the memory of the hosts: nothing, optimizer state, what forwards save, or both.

Of state a device updates its weights itself, layer by layer: it comes and goes back, one after the other,
once a step (Ren et al., ZeRO-Offload, USENIX ATC 2021). What a forward saves leaves beside the device's
blocks and comes back before its backward (Rhu et al., vDNN, MICRO 2016; torch's `save_on_cpu`; Megatron
Core's fine-grained activation offloading). The link carries both ways at once: a forward takes no less than
its bytes take to leave, a backward no less than they take to come."""

BUFFERS = 3
"""Blocks whose activations are on a device at once: one that runs, one whose leave, and one whose come.

So many are enough: where each block takes as long as its own copy, a copy that begins at the end of its
forward, or as late as its backward allows, waits for no more than the largest of another block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a step is to do, and on what.

    Attributes:
        cluster: devices, their memory, and links.
        global_batch: samples of a step over all replicas; 0 where a layout says how many there are.
        optimizer: what training holds beside the weights.
        runtime: the framework that runs it.
        sharding: what replicas divide among them: one of `SHARDINGS`.
        offload: what lies in the memory of the hosts: one of `OFFLOADS`.
        overlap_factor: share of its sum that a forward takes with a backward that runs beside it
            (`tessel.schedule.overlap`); None where each block runs by itself.
        mixture: micro-batches of a step by class, where they differ; the profile has these classes.

    Raises:
        ScheduleError: something is to lie in the memory of hosts, and no link to them is known; or replicas
            whose micro-batches differ exchange something in each of them, or run pairs together; or a share
            is none.
    """

    cluster: Cluster
    global_batch: int = 0
    optimizer: Optimizer = OPTIMIZERS["adam"]
    runtime: Runtime = OVERLAPPED
    sharding: str = "none"
    offload: str = "none"
    overlap_factor: float | None = None
    mixture: Mixture | None = None

    def __post_init__(self) -> None:
        if self.mixture is not None and self.sharding not in ("none", "optimizer"):
            raise ScheduleError(
                f"sharding {self.sharding} has replicas exchange weights or gradients in every micro-batch, "
                "and those of unequal micro-batches are not in step; plan with sharding optimizer or none"
            )
        if self.offload not in OFFLOADS:
            raise ScheduleError(f"there is no offload {self.offload!r}; there are {', '.join(OFFLOADS)}")
        if self.overlap_factor is not None and not 0 < self.overlap_factor <= 1:
            raise ScheduleError(
                f"overlap_factor is {self.overlap_factor:g}, and a pair takes a share of its sum, above 0, 1 "
                "at most"
            )
        if self.overlap_factor is not None and self.mixture is not None:
            raise ScheduleError(
                "micro-batches differ, and blocks run together (overlap_factor); give one of both"
            )
        if (self.offloads_state or self.offloads_activations) and self.cluster.host is None:
            raise ScheduleError(
                f"offload is {self.offload}, and the cluster has no link to its hosts' memory; give one"
            )

    @property
    def offloads_state(self) -> bool:
        """Whether optimizer state lies in the memory of the hosts, and there is any."""
        return "optimizer" in self.offload and self.optimizer.state_ratio > 0

    @property
    def offloads_activations(self) -> bool:
        """Whether what forwards save lies in the memory of the hosts."""
        return "activations" in self.offload

    @property
    def buffers(self) -> int:
        """Blocks whose activations are on a device at once, if these are offloaded: two may run; else 0."""
        return BUFFERS + (self.overlap_factor is not None) if self.offloads_activations else 0

    @property
    def copy_us_per_byte(self) -> float:
        """Microseconds that a byte of activations takes to the hosts, or back; 0 where none goes there."""
        host = self.cluster.host
        return 1e6 / host.bytes_per_s if host is not None and self.offloads_activations else 0.0
