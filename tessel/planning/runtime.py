"""Runtime overheads of the framework that runs a plan: how it sends, what it keeps, what each message costs.

Two frameworks take different times for one schedule on the same devices. A `Runtime` states the differences
that a training step's estimate uses; a plan for no framework in particular is made with `OVERLAPPED`, which
adds nothing. Figures that were calibrated say on what; `benchmarks/reality` holds the estimates against real
runs. Left out: what depends on a version, and contention between a transfer and other traffic.
"""

from __future__ import annotations

import msgspec

from tessel.errors import ScheduleError


class Runtime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a framework runs a pipeline.

    Attributes:
        name: as named on the command line.
        has_blocking_hops: whether both ends of a transfer wait until it is over, as with a send and a receive
            in the order of the blocks; if not, transfers run beside blocks.
        buffered_bytes: longest message that a blocking sender hands over at once, without waiting for it.
        hop_overhead_us: microseconds that each end loses at a hop beside the transfer.
        splits_hops: whether each device of a tensor-parallel group sends its part of the tensor only, and the
            receiving group gathers the parts over the link within a node.
        bucket_bytes: most bytes of gradients that are copied into a flat buffer for the all-reduce, which the
            allocator then keeps; 0 for none.
        context_bytes: bytes of a device that no tensor holds: driver context, kernels, communicators.
        peak_factor: bytes that the allocator takes for each byte that a layer needs only while it runs.
        update_bytes_per_s: memory bandwidth of the optimizer's step where it was not measured.
    """

    name: str
    has_blocking_hops: bool = False
    buffered_bytes: int = 0
    hop_overhead_us: float = 0.0
    splits_hops: bool = False
    bucket_bytes: int = 0
    context_bytes: int = 0
    peak_factor: float = 1.0
    update_bytes_per_s: float = 1e12

    def __post_init__(self) -> None:
        least = min(
            self.hop_overhead_us,
            self.buffered_bytes,
            self.bucket_bytes,
            self.context_bytes,
            self.peak_factor,
        )
        if least < 0:
            raise ScheduleError(
                f"runtime {self.name!r} has {least} for a figure that is at least 0; correct it"
            )
        if self.update_bytes_per_s <= 0:
            raise ScheduleError(
                f"runtime {self.name!r} updates at {self.update_bytes_per_s} bytes/s, which never ends; "
                "give a bandwidth above 0"
            )


OVERLAPPED = Runtime(name="overlapped")
"""Transfers run beside blocks, and the framework costs nothing: what a schedule's own figures assume."""

DEEPSPEED = Runtime(
    name="deepspeed",
    has_blocking_hops=True,
    buffered_bytes=4 << 20,
    hop_overhead_us=1800.0,
    splits_hops=True,
    bucket_bytes=2_000_000_000,
    context_bytes=4_400_000_000,
    peak_factor=2.0,
)
"""DeepSpeed's pipeline engine, in float32 over NCCL. Sends and receives are blocking and in lock-step between
neighbours, beyond what NCCL buffers (NCCL_BUFFSIZE, 4 MiB). Each device of a tensor-parallel group sends its
part and a description of it, which the receiving host reads: while it does, its device drains, which is the
overhead of a hop. Gradients are reduced after the last micro-batch, through flat buffers of 5·10⁸ elements.
Overhead, context and peak factor were calibrated on OPT-350 runs of at most two stages on GH200
(benchmarks/reports/step_time_against_reality_2026-11.md)."""

RUNTIMES = {runtime.name: runtime for runtime in (OVERLAPPED, DEEPSPEED)}
"""By name."""
