"""An even cut into several stages a device, with as little recomputation as memory allows, by descent.

Boundaries move by a layer as long as the devices' loads become more even; recomputation is turned on where
memory needs it, of all stages or of none first. Checked in tests/tessel/planning/cutting/test_cuts.py against
all cuts of small models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessel.planning.costs.stage_costs import FloatArray
from tessel.planning.cutting.chain_cut import chain_cut
from tessel.planning.cutting.cut import Cut
from tessel.planning.cutting.descent import Chunks, descend
from tessel.planning.cutting.run_prices import BoolArray, IntArray, RunPrices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkedDevices:
    """Devices with several stages each, as a descent sees them.

    Attributes:
        devices: of each stage of the chain; of an `xshape`, of both copies, one after the other.
        in_flight: micro-batches that each stage holds at once.
        speeds: by device, float64.
        limits: bytes by device; None for no limit.
    """

    devices: tuple[int, ...]
    in_flight: tuple[float, ...]
    speeds: FloatArray
    limits: tuple[float, ...] | None
    may_recompute: bool


def chunked_cut(prices: RunPrices, chunked: ChunkedDevices, num_stages: int) -> Cut | None:
    """Return an even cut into several stages a device, recomputing where it has to; None if none fits.

    Layers that move off a full device may cost more than recomputing there, and the other way round: of a cut
    that recomputes more and more, and one that recomputes less and less, the one is taken whose busiest
    device has less to do.
    """
    copies = len(chunked.devices) // num_stages
    limits = np.array(chunked.limits or (np.inf,) * len(chunked.speeds), dtype=np.float64)
    chunks = Chunks(
        devices=np.array(chunked.devices, dtype=np.int64).reshape(copies, num_stages),
        in_flight=np.array(chunked.in_flight, dtype=np.float64),
        speeds=chunked.speeds,
        limits=limits,
    )
    bounds = _even_bounds(prices, chunked, num_stages)
    found = [_recomputing_more(prices, chunks, bounds.copy(), may_recompute=chunked.may_recompute)]
    if chunked.may_recompute and chunked.limits is not None:
        found.append(_recomputing_less(prices, chunks, bounds.copy()))
    fitting = [cut for cut in found if cut is not None]
    return min(fitting, key=lambda cut: _largest_load(prices, chunks, cut), default=None)


def _recomputing_more(
    prices: RunPrices, chunks: Chunks, bounds: IntArray, *, may_recompute: bool
) -> Cut | None:
    """Return a cut that recomputes nowhere, or in one more stage after the other until it fits."""
    recompute = np.zeros(len(bounds) - 1, dtype=np.bool_)
    while True:
        held = np.zeros(len(chunks.limits))
        descend(prices.arrays, chunks, bounds, recompute, held)
        if (held <= chunks.limits).all():
            return Cut(tuple(bounds.tolist()), tuple(recompute.tolist()))
        if not may_recompute or recompute.all():
            return None
        _recompute_more(prices, chunks.devices, chunks.in_flight, bounds, recompute, held > chunks.limits)


def _recomputing_less(prices: RunPrices, chunks: Chunks, bounds: IntArray) -> Cut | None:
    """Return a cut that recomputes everywhere but where its devices, once even, have room to spare."""
    recompute = np.ones(len(bounds) - 1, dtype=np.bool_)
    held = np.zeros(len(chunks.limits))
    descend(prices.arrays, chunks, bounds, recompute, held)
    if (held > chunks.limits).any():
        return None
    known = Cut(tuple(bounds.tolist()), tuple(recompute.tolist()))
    extra = prices.recompute[bounds[:-1], bounds[1:]]
    for stage in sorted(range(len(recompute)), key=lambda stage: (-extra[stage], stage)):
        recompute[stage] = False
        if (_held(prices, chunks, bounds, recompute) > chunks.limits).any():
            recompute[stage] = True
    held[:] = 0.0
    descend(prices.arrays, chunks, bounds, recompute, held)
    found = Cut(tuple(bounds.tolist()), tuple(recompute.tolist()))
    is_better = _largest_load(prices, chunks, found) < _largest_load(prices, chunks, known)
    return found if is_better and (held <= chunks.limits).all() else known


def _held(prices: RunPrices, chunks: Chunks, bounds: IntArray, recompute: BoolArray) -> FloatArray:
    """Return the bytes that each device holds, needs of running layers added up."""
    at = bounds[:-1], bounds[1:]
    by_stage = np.where(
        recompute,
        prices.recomputed_static[at] + chunks.in_flight * prices.kept[at],
        prices.static[at] + chunks.in_flight * prices.saved[at],
    )
    found = np.zeros(len(chunks.limits))
    for devices in chunks.devices:
        np.add.at(found, devices, by_stage)
    return found


def _largest_load(prices: RunPrices, chunks: Chunks, cut: Cut) -> float:
    """Return the time of a micro-batch on the busiest device."""
    at = np.array(cut.bounds[:-1]), np.array(cut.bounds[1:])
    by_stage = prices.time[at] + np.array(cut.recompute) * prices.recompute[at]
    found = np.zeros(len(chunks.limits))
    for devices in chunks.devices:
        np.add.at(found, devices, by_stage)
    return float((found / chunks.speeds).max())


def _even_bounds(prices: RunPrices, chunked: ChunkedDevices, num_stages: int) -> IntArray:
    """Return the chain's cut with the least longest stage, each stage on a device of its own."""
    speeds = chunked.speeds[np.array(chunked.devices[:num_stages])]
    found = chain_cut((prices,), in_flight=(1,) * num_stages, speeds=speeds, limits=None, may_recompute=False)
    assert found is not None  # without limits there is always one
    return np.array(found.bounds, dtype=np.int64)


def _recompute_more(
    prices: RunPrices,
    devices: IntArray,
    in_flight: FloatArray,
    bounds: IntArray,
    recompute: BoolArray,
    is_in_excess: BoolArray,
) -> None:
    """Have one more stage of each device in excess recompute: the one that frees most for its time."""
    at = bounds[:-1], bounds[1:]
    freed = in_flight * (prices.saved[at] - prices.kept[at])
    worth = np.where(recompute, -1.0, freed / np.maximum(prices.recompute[at], 1e-9))
    is_any = False
    for device in np.flatnonzero(is_in_excess):
        here = np.flatnonzero((devices == device).any(axis=0) & ~recompute)
        if len(here):
            recompute[here[np.argmax(worth[here])]] = is_any = True
    if not is_any:
        recompute[int(np.argmax(worth))] = True
