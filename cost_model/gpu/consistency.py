"""Find devices that measured linear layers in another state than batched products, and by how much others do.

Both are matrix products of the same library: large ones of equal work take about as long on a device, in
whichever family they were measured. A device may have been in another state while one of the tables was made,
at a clock that heat or power had lowered, for example. Nothing in the records says so, but its ratio of the
two then stands out from that of other devices. What was measured so must not be learnt: it is not what the
device does on another day, and says of other devices what is not so. What such a comparison cannot see is a
device that was in that state all the time.

The same ratio says how far tables of one device are apart that were measured one after the other: what is
asked of a prediction is measured on yet another day. Checked in tests/cost_model/gpu/test_consistency.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from cost_model.gpu.features import bound_us
from cost_model.gpu.kernel_model import GpuQuery
from cost_model.gpu.kernels import Family

logger = logging.getLogger(__name__)

PRODUCTS = (Family.LINEAR, Family.BATCHED_PRODUCT)
"""Families that one library computes, at the clock that a device holds."""
_LEAST_FLOPS = 2e9
_LEAST_EXTENT = 256
"""Smaller products are ruled by launches and padding, which differ between the families."""
_FEW = 10
"""Kernels of a family and a class of work below which their median would be a guess."""
_LEAST_DEVICES = 3
"""Of two devices nobody can say which of them is the odd one."""
MOST_APART = 2.0
"""Factor between a device's ratio and that of the median device; of five that were
measured in full four differ by at most 1.4, and one by 2.3."""


def devices_in_another_state(measured: Iterable[tuple[GpuQuery, float]]) -> frozenset[tuple[Family, str]]:
    """Return families and names of devices whose measurements of that family are not to be believed.

    Args:
        measured: kernels of any family with their latencies in microseconds.
    """
    by_device = _slowness_of_both(measured)
    found = set()
    for device, apart in _apart(by_device).items():
        pair = by_device[device]
        if abs(apart) > math.log(MOST_APART):
            family = _less_usual(pair, [*by_device.values()])
            found.add((family, device))
            logger.warning(
                "%s kernels of %s are left out: its linear layers, over batched products of equal work, "
                "take %.1f times as long as those of other devices, as if it had been in another state; "
                "measure them again",
                family.value,
                device,
                math.exp(apart),
            )
    return frozenset(found)


def width_between_tables(measured: Iterable[tuple[GpuQuery, float]], coverage: float) -> float:
    """Return half the width, a logarithm, that a table of products keeps within of another of its device.

    Two tables of each device are compared, so that one of them is off by the square root of a half of what
    they are apart. What sets a device apart for other reasons counts too, so the width is too large rather
    than too small.

    Args:
        measured: kernels of any family with their latencies in microseconds, of devices that are believed.
        coverage: share of tables within, if their errors are normal.

    Returns:
        0 where fewer than three devices measured both kinds of products.
    """
    apart = [*_apart(_slowness_of_both(measured)).values()]
    if not apart:
        return 0.0
    spread = math.sqrt(float(np.mean(np.square(apart))) / 2)
    return spread * NormalDist().inv_cdf((1 + coverage) / 2)


def _slowness_of_both(measured: Iterable[tuple[GpuQuery, float]]) -> dict[str, tuple[float, float]]:
    """Return each device's medians of linear layers and batched products, over work that it did both of."""
    slowness = _slowness(measured)
    by_device: dict[str, tuple[float, float]] = {}
    for device in sorted({name for _, name in slowness}):
        linear, batched = (slowness.get((family, device), {}) for family in PRODUCTS)
        if shared := sorted(linear.keys() & batched.keys()):
            first, second = (float(np.median([part[work] for work in shared])) for part in (linear, batched))
            by_device[device] = (first, second)
    return by_device


def _apart(by_device: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return how far each device's ratio is from the median one, a logarithm; none of too few devices."""
    if len(by_device) < _LEAST_DEVICES:
        return {}
    usual = float(np.median([first - second for first, second in by_device.values()]))
    return {device: first - second - usual for device, (first, second) in by_device.items()}


def _less_usual(pair: tuple[float, float], every: Sequence[tuple[float, float]]) -> Family:
    """Return the family in which a device is farther from the median of the devices."""
    far = np.abs(np.array(pair) - np.median(every, axis=0))
    return PRODUCTS[int(far.argmax())]


def _slowness(
    measured: Iterable[tuple[GpuQuery, float]],
) -> Mapping[tuple[Family, str], Mapping[int, float]]:
    """Return the median logarithm of latencies over bounds, by family and device, by class of work."""
    values: dict[tuple[Family, str, int], list[float]] = {}
    for query, latency_us in measured:
        kernel = query.kernel
        is_large = kernel.flops >= _LEAST_FLOPS and min(kernel.extents[1:]) >= _LEAST_EXTENT
        if kernel.family in PRODUCTS and is_large:
            key = kernel.family, query.device.name, kernel.flops.bit_length() // 2
            values.setdefault(key, []).append(math.log(latency_us / bound_us(kernel, query.device)))
    found: dict[tuple[Family, str], dict[int, float]] = {}
    for (family, device, work), each in values.items():
        if len(each) >= _FEW:
            found.setdefault((family, device), {})[work] = float(np.median(each))
    return found
