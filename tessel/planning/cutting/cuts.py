"""Where to cut: the least bottleneck under memory, exactly for one stage a device, by descent for several.

One stage a device: with at most K micro-batches in flight a device holds its weights and K times what a
micro-batch saves, so each run of layers fits a device or does not, with recomputation or without, and the
cuts with the least longest stage are a dynamic programme over (stage, layer), O(stages × layers²). Of the
cuts with that bottleneck the most even one is taken. Several stages a device: boundaries move by a layer as
long as the devices' loads become more even; recomputation is turned on where memory needs it.

    layers     e 1 1 1 1 1 1 1 h                e 1 1 | 1 1 1 | 1 1 | h     heavy head: cut before it
    stages     0     1     2    3

Checked in tests/tessel/planning/cutting/test_cuts.py against all cuts of small models.

Source: Narayanan et al., PipeDream (SOSP 2019), section 3.1, and Fan et al., DAPPLE (PPoPP 2021), for the
dynamic programme; memory and recomputation a stage as in Adapipe (Sun et al., ASPLOS 2024).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.planning.costs.stage_costs import FloatArray, LayerSums
from tessel.planning.costs.stage_figures import StageFigures
from tessel.search.jit.compiled import compiled

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

OPERATIONS_A_CELL = 8
"""Charged for each pair of layers of the dynamic programme, for each stage."""

DESCENT_ROUNDS = 400
"""Moves of a boundary by a layer until a descent ends; each makes the loads more even."""

EVENNESS = 8
"""Exponent of the norm of loads that a descent lowers: near the largest load, and with a slope everywhere."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where stages begin, and which run their forward again.

    Attributes:
        bounds: 0, the first layer of each later stage, and the number of layers.
        recompute: by stage.
    """

    bounds: tuple[int, ...]
    recompute: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunPrices:
    """What each run of layers i..j-1 takes, as arrays of shape (num_layers + 1, num_layers + 1).

    Entries with i >= j are not runs: their times are infinite.

    Attributes:
        time: microseconds of a micro-batch, the faster backward taken.
        recompute: microseconds that running the forward again adds.
        static: weights, gradients, optimizer state and the largest need of a running layer.
        recomputed_static: the same under recomputation.
        saved: bytes in flight a micro-batch.
        kept: the same under recomputation.
    """

    time: FloatArray
    recompute: FloatArray
    static: FloatArray
    recomputed_static: FloatArray
    saved: FloatArray
    kept: FloatArray

    @property
    def arrays(self) -> RunArrays:
        """The same as the compiled searches take them."""
        return RunArrays(
            self.time, self.recompute, self.static, self.recomputed_static, self.saved, self.kept
        )

    def with_times(self, time: FloatArray) -> RunPrices:
        """Return the same with other microseconds of a micro-batch."""
        return replace(self, time=time)


def run_prices(sums: LayerSums, *, splits: bool, trained_ratio: float) -> RunPrices:
    """Return the prices of all runs of layers.

    Args:
        sums: of one table.
        splits: whether backwards may run in halves.
        trained_ratio: bytes of weights, gradients and optimizer state for each byte of weights.
    """
    time = layer_times(sums, splits=splits)
    is_run = np.tri(sums.num_layers + 1, dtype=bool).T & ~np.eye(sums.num_layers + 1, dtype=bool)
    static = trained_ratio * (_differences(sums.weights) - _held_twice(sums))
    return RunPrices(
        time=np.where(is_run, _differences(time), np.inf),
        recompute=_differences(sums.recompute),
        static=static + _maxima(sums.peak),
        recomputed_static=static + _maxima(sums.recomputed_peak),
        saved=_differences(sums.saved) * sums.has_backward,
        kept=_differences(sums.kept) * sums.has_backward,
    )


def _held_twice(sums: LayerSums) -> FloatArray:
    """Return bytes of tied tensors that a run of layers would count more than once."""
    found = np.zeros((sums.num_layers + 1,) * 2)
    for _, layers, num_bytes in sums.tied:
        before = np.searchsorted(layers, np.arange(sums.num_layers + 1))
        found += num_bytes * np.maximum(before[None, :] - before[:, None] - 1, 0)
    return found


def layer_times(sums: LayerSums, *, splits: bool) -> FloatArray:
    """Return running sums of each layer's forward and its faster backward; shape (num_layers + 1,)."""
    backward = sums.backward
    if splits and sums.is_splittable:
        halves = np.diff(sums.backward_input) + np.diff(sums.backward_weight)
        least = np.minimum(halves, np.diff(sums.backward))
        backward = np.concatenate(([0.0], np.cumsum(least)))
    return sums.forward + backward


def _differences(sums: FloatArray) -> FloatArray:
    found: FloatArray = sums[None, :] - sums[:, None]
    return found


def _maxima(values: FloatArray) -> FloatArray:
    """Return the largest of values i..j-1 by (i, j), 0 where there are none."""
    size = len(values)
    found = np.zeros((size + 1, size + 1))
    for first in range(size):
        found[first, first + 1 :] = np.maximum.accumulate(values[first:])
    return found


def chain_cut(
    prices: RunPrices,
    *,
    in_flight: Sequence[float],
    speeds: FloatArray,
    limits: Sequence[float] | None,
    may_recompute: bool,
) -> Cut | None:
    """Return the cut into one stage a device with the least longest stage; None where nothing fits.

    Args:
        prices: of all runs of layers.
        in_flight: micro-batches that each stage holds at once.
        speeds: of the stages' devices, shape (num_stages,).
        limits: their bytes; None for no limit.
        may_recompute: whether stages that do not fit otherwise may recompute.
    """
    num_stages, size = len(speeds), len(prices.time)
    limited = np.full(num_stages, np.inf) if limits is None else np.array(limits, dtype=np.float64)
    flights = np.array(in_flight, dtype=np.float64)
    came_from = np.zeros((num_stages, size), dtype=np.int64)
    bottleneck = _least_bottleneck(prices.arrays, flights, speeds, limited, may_recompute, np.inf, came_from)
    if not np.isfinite(bottleneck):
        return None
    _least_bottleneck(prices.arrays, flights, speeds, limited, may_recompute, bottleneck, came_from)
    bounds = [size - 1]
    for stage in range(num_stages - 1, -1, -1):
        bounds.append(int(came_from[stage, bounds[-1]]))
    bounds.reverse()
    held = prices.static[bounds[:-1], bounds[1:]] + flights * prices.saved[bounds[:-1], bounds[1:]]
    return Cut(tuple(bounds), tuple((held > limited).tolist()))


class RunArrays(NamedTuple):
    """`RunPrices` as the compiled searches take them; all float64, shape (num_layers + 1,) twice."""

    time: FloatArray
    recompute: FloatArray
    static: FloatArray
    recomputed_static: FloatArray
    saved: FloatArray
    kept: FloatArray


@compiled
def _least_bottleneck(
    prices: RunArrays,
    in_flight: FloatArray,
    speeds: FloatArray,
    limits: FloatArray,
    may_recompute: bool,
    bottleneck: float,
    came_from: IntArray,
) -> float:
    """Return the least longest stage of a chain that covers all layers; ties go to early bounds.

    With a finite `bottleneck`, the least sum of squares instead, of chains with no longer stage.

    Args:
        prices: of runs.
        in_flight: micro-batches by stage.
        speeds: by stage.
        limits: bytes by stage, infinite for none.
        may_recompute: whether what does not fit otherwise may recompute.
        bottleneck: infinite, or a longest stage.
        came_from: first layer by stage and layer behind it, int64; overwritten.
    """
    size = len(prices.time)
    is_even = np.isfinite(bottleneck)
    longest = bottleneck * (1 + 1e-12)
    best = np.full(size, np.inf)
    best[0] = 0.0
    for stage in range(len(speeds)):
        found = np.full(size, np.inf)
        # Each stage ahead and behind has a layer at least.
        for after in range(stage + 1, size - (len(speeds) - 1 - stage)):
            for first in range(stage, after):
                if not np.isfinite(best[first]):
                    continue
                time = prices.time[first, after]
                held = prices.static[first, after] + in_flight[stage] * prices.saved[first, after]
                if held > limits[stage]:
                    held = (
                        prices.recomputed_static[first, after] + in_flight[stage] * prices.kept[first, after]
                    )
                    if not may_recompute or held > limits[stage]:
                        continue
                    time += prices.recompute[first, after]
                time /= speeds[stage]
                if is_even:
                    value = best[first] + time * time if time <= longest else np.inf
                else:
                    value = max(best[first], time)
                if value < found[after]:
                    found[after] = value
                    came_from[stage, after] = first
        best = found
    return float(best[size - 1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkedDevices:
    """Devices with several stages each, as a descent sees them.

    Attributes:
        devices: of each stage of the chain; of an `xshape`, of both copies, one after the other.
        in_flight: micro-batches that each stage holds at once.
        speeds: by device, float64.
        limits: bytes by device; None for no limit.
        may_recompute: whether stages may recompute.
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

    Args:
        prices: of all runs of layers.
        chunked: the devices.
        num_stages: stages of the chain.
    """
    copies = len(chunked.devices) // num_stages
    limits = np.array(chunked.limits or (np.inf,) * len(chunked.speeds), dtype=np.float64)
    chunks = _Chunks(
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
    prices: RunPrices, chunks: _Chunks, bounds: IntArray, *, may_recompute: bool
) -> Cut | None:
    """Return a cut that recomputes nowhere, or in one more stage after the other until it fits."""
    recompute = np.zeros(len(bounds) - 1, dtype=np.bool_)
    while True:
        held = np.zeros(len(chunks.limits))
        _descend(prices.arrays, chunks, bounds, recompute, held)
        if (held <= chunks.limits).all():
            return Cut(tuple(bounds.tolist()), tuple(recompute.tolist()))
        if not may_recompute or recompute.all():
            return None
        _recompute_more(prices, chunks.devices, chunks.in_flight, bounds, recompute, held > chunks.limits)


def _recomputing_less(prices: RunPrices, chunks: _Chunks, bounds: IntArray) -> Cut | None:
    """Return a cut that recomputes everywhere but where its devices, once even, have room to spare."""
    recompute = np.ones(len(bounds) - 1, dtype=np.bool_)
    held = np.zeros(len(chunks.limits))
    _descend(prices.arrays, chunks, bounds, recompute, held)
    if (held > chunks.limits).any():
        return None
    known = Cut(tuple(bounds.tolist()), tuple(recompute.tolist()))
    extra = prices.recompute[bounds[:-1], bounds[1:]]
    for stage in sorted(range(len(recompute)), key=lambda stage: (-extra[stage], stage)):
        recompute[stage] = False
        if (_held(prices, chunks, bounds, recompute) > chunks.limits).any():
            recompute[stage] = True
    held[:] = 0.0
    _descend(prices.arrays, chunks, bounds, recompute, held)
    found = Cut(tuple(bounds.tolist()), tuple(recompute.tolist()))
    is_better = _largest_load(prices, chunks, found) < _largest_load(prices, chunks, known)
    return found if is_better and (held <= chunks.limits).all() else known


def _held(prices: RunPrices, chunks: _Chunks, bounds: IntArray, recompute: BoolArray) -> FloatArray:
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


def _largest_load(prices: RunPrices, chunks: _Chunks, cut: Cut) -> float:
    """Return the time of a micro-batch on the busiest device."""
    at = np.array(cut.bounds[:-1]), np.array(cut.bounds[1:])
    by_stage = prices.time[at] + np.array(cut.recompute) * prices.recompute[at]
    found = np.zeros(len(chunks.limits))
    for devices in chunks.devices:
        np.add.at(found, devices, by_stage)
    return float((found / chunks.speeds).max())


class _Chunks(NamedTuple):
    """`ChunkedDevices` as arrays: devices int64, shape (copies, num_stages), the others float64."""

    devices: IntArray
    in_flight: FloatArray
    speeds: FloatArray
    limits: FloatArray


def _even_bounds(prices: RunPrices, chunked: ChunkedDevices, num_stages: int) -> IntArray:
    """Return the chain's cut with the least longest stage, each stage on a device of its own."""
    speeds = chunked.speeds[np.array(chunked.devices[:num_stages])]
    found = chain_cut(prices, in_flight=(1,) * num_stages, speeds=speeds, limits=None, may_recompute=False)
    assert found is not None  # without limits there is always one
    return np.array(found.bounds, dtype=np.int64)


@compiled
def _descend(
    prices: RunArrays, chunks: _Chunks, bounds: IntArray, recompute: BoolArray, held: FloatArray
) -> None:
    """Move bounds by a layer, the best move first, as long as loads become more even or excess less.

    Args:
        prices: of runs.
        chunks: devices.
        bounds: where stages begin; changed.
        recompute: by stage.
        held: bytes by device, zeros; overwritten. Needs of running layers are added up, never too few.
    """
    num_devices, num_stages = len(chunks.speeds), len(bounds) - 1
    load = np.zeros(num_devices)
    for stage in range(num_stages):
        _add_stage(prices, chunks, stage, bounds[stage], bounds[stage + 1], recompute[stage], 1.0, load, held)
    mean = load.mean()
    total, excess = 0.0, 0.0
    for device in range(num_devices):
        total += (load[device] / mean) ** EVENNESS
        excess += max(0.0, held[device] / chunks.limits[device] - 1)
    for _ in range(DESCENT_ROUNDS):
        least = _unevenness(total, excess) * (1 - 1e-12)
        first, last, step = 0, 0, 0
        # A layer to the next stage; where that helps nowhere, to one further on: all bounds between move too.
        for reach in (1, num_stages):
            if step != 0:
                break
            for begin in range(1, num_stages):
                for sign in (1, -1):
                    giver = begin if sign > 0 else begin - 1
                    if bounds[giver + 1] - bounds[giver] < 2:
                        continue
                    changed_total, changed_excess, end = 0.0, 0.0, begin
                    while 0 < end < num_stages and abs(end - begin) < reach:
                        changed = _move(prices, chunks, bounds, recompute, end, sign, load, held, mean)
                        changed_total += changed[0]
                        changed_excess += changed[1]
                        moved = _unevenness(total + changed_total, excess + changed_excess)
                        if moved < least:
                            least, first, last, step = moved, begin, end, sign
                        end -= sign
                    while end != begin:
                        end += sign
                        _move(prices, chunks, bounds, recompute, end, -sign, load, held, mean)
        if step == 0:
            break
        end = first
        while True:
            changed = _move(prices, chunks, bounds, recompute, end, step, load, held, mean)
            total += changed[0]
            excess += changed[1]
            if end == last:
                break
            end -= step
    # Differences leave rounding errors behind.
    held[:] = 0.0
    for stage in range(num_stages):
        _add_stage(prices, chunks, stage, bounds[stage], bounds[stage + 1], recompute[stage], 1.0, load, held)


@compiled
def _move(
    prices: RunArrays,
    chunks: _Chunks,
    bounds: IntArray,
    recompute: BoolArray,
    bound: int,
    step: int,
    load: FloatArray,
    held: FloatArray,
    mean: float,
) -> tuple[float, float]:
    """Move a bound, bring the devices on both sides up to date, and return how their terms change."""
    total, excess = 0.0, 0.0
    for sign in (-1.0, 1.0):
        # The terms of the devices before the move are taken off, those after it are added.
        if sign > 0:
            bounds[bound] += step
            for stage in (bound - 1, bound):
                _add_stage(
                    prices, chunks, stage, bounds[stage], bounds[stage + 1], recompute[stage], 1.0, load, held
                )
        for place in range(2 * len(chunks.devices)):
            device = chunks.devices[place // 2, bound - place % 2]
            is_first = True
            for earlier in range(place):
                if chunks.devices[earlier // 2, bound - earlier % 2] == device:
                    is_first = False
            if is_first:
                total += sign * (load[device] / mean) ** EVENNESS
                excess += sign * max(0.0, held[device] / chunks.limits[device] - 1)
        if sign < 0:
            for stage in (bound - 1, bound):
                first, after = bounds[stage], bounds[stage + 1]
                _add_stage(prices, chunks, stage, first, after, recompute[stage], -1.0, load, held)
    return total, excess


@compiled
def _add_stage(
    prices: RunArrays,
    chunks: _Chunks,
    stage: int,
    first: int,
    after: int,
    recomputes: bool,
    sign: float,
    load: FloatArray,
    held: FloatArray,
) -> None:
    time = prices.time[first, after]
    num_bytes = prices.static[first, after] + chunks.in_flight[stage] * prices.saved[first, after]
    if recomputes:
        time += prices.recompute[first, after]
        num_bytes = (
            prices.recomputed_static[first, after] + chunks.in_flight[stage] * prices.kept[first, after]
        )
    for copy in range(len(chunks.devices)):
        device = chunks.devices[copy, stage]
        load[device] += sign * time / chunks.speeds[device]
        held[device] += sign * num_bytes


@compiled
def _unevenness(total: float, excess: float) -> float:
    """Return a norm of the loads, made large by memory in excess."""
    return float(max(total, 0.0) ** (1 / EVENNESS) + 100.0 * excess)


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


def neighbours(cut: Cut, figures: StageFigures, *, may_recompute: bool, reach: int = 1) -> Iterator[Cut]:
    """Yield the cuts that differ by one bound moved, or by recomputation of one stage; busiest devices first.

    Args:
        cut: where from.
        figures: its stages.
        may_recompute: whether recomputation may be turned on.
        reach: layers that a bound moves at most.
    """
    work = figures.device_work_us()
    num_stages = len(cut.recompute)
    load = [work[figures.devices[stage]] for stage in range(num_stages)]
    for stage in sorted(range(num_stages), key=lambda stage: (-load[stage], stage)):
        for bound, step in ((stage, 1), (stage + 1, -1)):
            for layers in range(1, reach + 1):
                moved = list(cut.bounds)
                moved[bound] += step * layers
                if 0 < bound < num_stages and moved[bound - 1] < moved[bound] < moved[bound + 1]:
                    yield Cut(tuple(moved), cut.recompute)
        if cut.recompute[stage] or may_recompute:
            flipped = (*cut.recompute[:stage], not cut.recompute[stage], *cut.recompute[stage + 1 :])
            yield Cut(cut.bounds, flipped)


def transfers(cut: Cut, prices: RunPrices) -> Iterator[Cut]:
    """Yield the cuts that take a layer from a stage to a shorter one further on, whatever stands between.

    All bounds between the two move by a layer. Of cuts whose devices are equally loaded, the ramps are
    shorter where the first stages of an interleaved pipeline are: single bounds cannot go there, since each
    move alone makes some device slower.

    Args:
        cut: where from.
        prices: of all runs of layers.
    """
    bounds = np.array(cut.bounds)
    time = prices.time[bounds[:-1], bounds[1:]]
    sizes = np.diff(bounds)
    for giver in range(len(sizes)):
        for taker in range(len(sizes)):
            if abs(giver - taker) < 2 or sizes[giver] < 2 or time[taker] >= time[giver] * (1 - 1e-9):
                continue
            moved = bounds.copy()
            if giver < taker:
                moved[giver + 1 : taker + 1] -= 1
            else:
                moved[taker + 1 : giver + 1] += 1
            yield Cut(tuple(moved.tolist()), cut.recompute)


def every_cut(num_layers: int, num_stages: int, *, may_recompute: bool) -> Iterator[Cut]:
    """Yield all cuts into so many stages, with every set of stages that recompute if any may."""
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
        sets = (
            itertools.product((False, True), repeat=num_stages) if may_recompute else [(False,) * num_stages]
        )
        for recompute in sets:
            yield Cut((0, *inner, num_layers), tuple(recompute))
