"""A lower bound on a program's latency: work over peak speed or traffic over bandwidth, plus a call.

The device's speeds are measurements like any other: workloads of role `device` (a large matrix product, a
large copy, an empty call), kept in the records for each environment. Disturbances only slow a probe down, so
the fastest of each kind is used, whatever its date: a probe taken under load is harmless once there is
another. The speed that kernels have reached on the device is evidence too: a probe that reports less is
contradicted by them, and their speed is used instead until it is repeated. Caches are not modelled, so a
small working set may be faster than its bound; the learnt correction accounts for that.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 2009.
Checked in tests/cost_model/test_roofline.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from cost_model.errors import CostModelError
from records import Measurement, Operator, Record, Status, Tensor, Workload
from records.workload import describe

PROBE_EXTENT = 1024
"""Extent of the square matrix product that measures peak speed; 2 GFLOP, far above any call's overhead."""

PROBE_COPY_ELEMENTS = 1 << 24
"""Elements of the copy that measures bandwidth; 64 MiB read and as much written, above common caches."""


_PROBE_COPY_BYTES = 2 * 4 * PROBE_COPY_ELEMENTS

_CONTRADICTION = 1.3
"""Kernels may be a little faster than a probe: a compiler's best matrix products reach 1.18 times what the
library reaches in the probe."""

_READING_KINDS = frozenset((0, 1, 3, 4))
"""Kinds of operators that read all of their inputs: element-wise, broadcasting, reducing, and products."""

_BUSY = 2.0
"""No compiler's matrix products are this much faster than the library's; the machine had no time for it."""


class DeviceSpeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a device can do at best, measured.

    Attributes:
        peak_gflops: 10⁹ float32 operations a second of a large matrix product.
        bandwidth_gb_s: 10⁹ bytes per second, read and written, of a large copy.
        call_us: microseconds of a call that does nothing.
    """

    peak_gflops: float
    bandwidth_gb_s: float
    call_us: float

    def __post_init__(self) -> None:
        if min(self.peak_gflops, self.bandwidth_gb_s) <= 0 or self.call_us < 0:
            raise ValueError("a device's speeds are positive numbers; measure them again")


def peak_probe() -> Workload:
    """Return the workload whose latency gives the peak speed."""
    square = Tensor((PROBE_EXTENT, PROBE_EXTENT), "float32")
    product = Operator(name="matmul", kind=4, inputs=(0, 1), outputs=(square,), flops=2 * PROBE_EXTENT**3)
    return describe("device", [square, square], [product], [2], [("probe", "peak")])


def bandwidth_probe() -> Workload:
    """Return the workload whose latency gives the bandwidth."""
    vector = Tensor((PROBE_COPY_ELEMENTS,), "float32")
    copy = Operator(name="copy", kind=0, inputs=(0,), outputs=(vector,))
    return describe("device", [vector], [copy], [1], [("probe", "bandwidth")])


def call_probe() -> Workload:
    """Return the workload whose latency is a call's own cost."""
    return describe("device", [Tensor((1,), "float32")], [], [0], [("probe", "call")])


class ReachedSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """What kernels have reached on a device: a lower bound on what it can do. Zero, or infinity, for nothing.

    Attributes:
        gflops: 10⁹ operations a second of float32 matrix products.
        bandwidth_gb_s: 10⁹ bytes per second of kernels whose traffic is as large as the bandwidth probe's.
        call_us: microseconds of the shortest kernels, each of which is one call at least.
    """

    gflops: float = 0.0
    bandwidth_gb_s: float = 0.0
    call_us: float = math.inf


def reached_speed(found: Iterable[Record]) -> ReachedSpeed:
    """Return what successful kernels of one device have reached.

    Of each figure the second best program counts: one alone may be a mistake.
    """
    gflops, bandwidth, calls = _Best(), _Best(), _Best()
    for record in found:
        workload, measurement = record.workload, record.measurement
        if workload.role != "kernel" or measurement.status is not Status.OK:
            continue
        latency_us = measurement.latency_us
        calls.offer(workload.fingerprint, -latency_us)
        num_bytes = workload.input_bytes + workload.constant_bytes + workload.output_bytes
        if num_bytes >= _PROBE_COPY_BYTES and _reads_everything(workload):
            bandwidth.offer(workload.fingerprint, num_bytes / latency_us / 1e3)
        if _is_plain_product(workload):
            gflops.offer(workload.fingerprint, workload.flops / latency_us / 1e3)
    return ReachedSpeed(
        gflops=gflops.second or 0.0,
        bandwidth_gb_s=bandwidth.second or 0.0,
        call_us=math.inf if calls.second is None else -calls.second,
    )


def contradictions(speed: DeviceSpeed, reached: ReachedSpeed) -> tuple[str, ...]:
    """Return, in a sentence each, which probes claim less than what kernels have reached."""
    found = []
    if reached.gflops > _CONTRADICTION * speed.peak_gflops:
        found.append(f"kernels reached {reached.gflops:.3g} GFLOPS, its probe {speed.peak_gflops:.3g}")
    if reached.bandwidth_gb_s > _CONTRADICTION * speed.bandwidth_gb_s:
        found.append(f"kernels moved {reached.bandwidth_gb_s:.3g} GB/s, its probe {speed.bandwidth_gb_s:.3g}")
    if reached.call_us * _CONTRADICTION < speed.call_us:
        found.append(f"kernels took {reached.call_us:.3g} us, its empty call {speed.call_us:.3g}")
    return tuple(found)


def supported_speed(speed: DeviceSpeed, reached: ReachedSpeed) -> DeviceSpeed:
    """Return the speed with what kernels have reached in place of each figure that they contradict.

    Hardly a kernel reads and writes as much as the bandwidth's probe does. So where the peak is contradicted
    by far, the machine was busy when it was probed, and the bandwidth is taken to be too low by as much.
    """
    peak, bandwidth, call = speed.peak_gflops, speed.bandwidth_gb_s, speed.call_us
    if reached.gflops > _CONTRADICTION * peak:
        factor, peak = reached.gflops / peak, reached.gflops
        bandwidth = bandwidth * factor if factor > _BUSY else bandwidth
    if reached.bandwidth_gb_s > _CONTRADICTION * bandwidth:
        bandwidth = reached.bandwidth_gb_s
    if reached.call_us * _CONTRADICTION < call:
        call = reached.call_us
    return DeviceSpeed(peak_gflops=peak, bandwidth_gb_s=bandwidth, call_us=call)


def device_speed(measurements: Iterable[Measurement]) -> DeviceSpeed:
    """Return a device's speed from measurements of its probes; the fastest of each counts.

    Raises:
        CostModelError: a probe has no successful measurement.
    """
    probes = {"peak": peak_probe(), "bandwidth": bandwidth_probe(), "call": call_probe()}
    names = {workload.fingerprint: name for name, workload in probes.items()}
    fastest: dict[str, float] = {}
    for measurement in measurements:
        name = names.get(measurement.workload_fingerprint)
        if name is not None and measurement.status is Status.OK:
            fastest[name] = min(fastest.get(name, math.inf), measurement.latency_us)
    missing = sorted(probes.keys() - fastest.keys())
    if missing:
        raise CostModelError(
            f"the records hold no {missing[0]} probe of this device, which every prediction starts from; "
            "run `tessel tune` or `tessel records collect` on it once"
        )
    return DeviceSpeed(
        peak_gflops=probes["peak"].flops / fastest["peak"] / 1e3,
        bandwidth_gb_s=_PROBE_COPY_BYTES / fastest["bandwidth"] / 1e3,
        call_us=fastest["call"],
    )


def roofline_us(workload: Workload, speed: DeviceSpeed) -> float:
    """Return the roofline bound in microseconds: the larger of work and traffic time, plus one call."""
    num_bytes = workload.input_bytes + workload.constant_bytes + workload.output_bytes
    return bound_us(workload.flops, num_bytes, speed)


def bound_us(flops: int, num_bytes: int, speed: DeviceSpeed) -> float:
    """Return the bound of so many operations and so many bytes read and written."""
    work_us = flops / speed.peak_gflops / 1e3
    return max(work_us, num_bytes / speed.bandwidth_gb_s / 1e3) + max(speed.call_us, 0.1)


def _reads_everything(workload: Workload) -> bool:
    """Say whether all bytes of the inputs are read; gathers and slices read a part, a reshape nothing."""
    return all(operator.kind in _READING_KINDS for operator in workload.operators)


class _Best:
    """The two best values of different programs."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def offer(self, program: str, value: float) -> None:
        if len(self._values) < 2 or program in self._values or value > min(self._values.values()):
            self._values[program] = max(value, self._values.get(program, -math.inf))
            if len(self._values) > 2:
                del self._values[min(self._values, key=self._values.__getitem__)]

    @property
    def second(self) -> float | None:
        return min(self._values.values()) if len(self._values) == 2 else None


def _is_plain_product(workload: Workload) -> bool:
    """Say whether the operations are float32 matrix products: others may do fewer than are counted."""
    tensors = (*workload.inputs, *(tensor for each in workload.operators for tensor in each.outputs))
    products = sum(operator.flops for operator in workload.operators if operator.name == "matmul")
    return products > 0.99 * workload.flops > 0 and all(tensor.dtype == "float32" for tensor in tensors)
