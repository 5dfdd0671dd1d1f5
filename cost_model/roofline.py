"""The least time a program can take on a device: work over peak speed or traffic over bandwidth, and a call.

The device's speeds are measurements like any other: workloads of role `device` (a large matrix product, a
large copy, an empty call), kept in the records for each environment. The model leaves out caches, so a small
working set may be faster than its bound; the learnt correction takes that up.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 2009.
Checked in tests/cost_model/test_roofline.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cost_model.errors import CostModelError
from records import Measurement, Operator, Status, Tensor, Workload
from records.workload import describe

PROBE_EXTENT = 1024
"""Extent of the square matrix product that measures peak speed; 2 GFLOP, far above any call's overhead."""

PROBE_COPY_ELEMENTS = 1 << 24
"""Elements of the copy that measures bandwidth; 64 MiB read and as much written, above common caches."""


class DeviceSpeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a device can do at best, measured.

    Attributes:
        peak_gflops: 10⁹ float32 operations a second of a large matrix product.
        bandwidth_gb_s: 10⁹ bytes a second, read and written, of a large copy.
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


def device_speed(measurements: Iterable[Measurement]) -> DeviceSpeed:
    """Return a device's speed from measurements of its probes; the newest of each counts.

    Raises:
        CostModelError: a probe has no successful measurement.
    """
    probes = {"peak": peak_probe(), "bandwidth": bandwidth_probe(), "call": call_probe()}
    names = {workload.fingerprint: name for name, workload in probes.items()}
    newest: dict[str, Measurement] = {}
    for measurement in measurements:
        name = names.get(measurement.workload_fingerprint)
        if name is None or measurement.status is not Status.OK:
            continue
        if name not in newest or measurement.measured_at >= newest[name].measured_at:
            newest[name] = measurement
    missing = sorted(probes.keys() - newest.keys())
    if missing:
        raise CostModelError(
            f"the records hold no {missing[0]} probe of this device, which every prediction starts from; "
            "run `tessel tune` or `tessel records collect` on it once"
        )
    return DeviceSpeed(
        peak_gflops=probes["peak"].flops / newest["peak"].latency_us / 1e3,
        bandwidth_gb_s=2 * 4 * PROBE_COPY_ELEMENTS / newest["bandwidth"].latency_us / 1e3,
        call_us=newest["call"].latency_us,
    )


def roofline_us(workload: Workload, speed: DeviceSpeed) -> float:
    """Return the roofline bound in microseconds: the larger of work and traffic time, plus one call."""
    num_bytes = workload.input_bytes + workload.constant_bytes + workload.output_bytes
    return bound_us(workload.flops, num_bytes, speed)


def bound_us(flops: int, num_bytes: int, speed: DeviceSpeed) -> float:
    """Return the bound of so many operations and so many bytes read and written."""
    work_us = flops / speed.peak_gflops / 1e3
    return max(work_us, num_bytes / speed.bandwidth_gb_s / 1e3) + max(speed.call_us, 0.1)
