"""Move boundaries by a layer as long as devices' loads become more even; compiled.

A descent looks at each boundary in both directions, and at layers that move over several stages; each step
takes the best. A move from stage to stage costs O(copies), as the devices' terms are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tessel.planning.costs.stage_costs import FloatArray
from tessel.planning.cutting.run_prices import BoolArray, IntArray, RunArrays
from tessel.search.jit.compiled import compiled

DESCENT_ROUNDS = 400
"""Moves of a boundary by a layer until a descent ends; each makes the loads more even."""


EVENNESS = 8
"""Exponent of the norm of loads that a descent lowers: near the largest load, and with a slope everywhere."""


class Chunks(NamedTuple):
    """`ChunkedDevices` as arrays: devices int64, shape (copies, num_stages), the others float64."""

    devices: IntArray
    in_flight: FloatArray
    speeds: FloatArray
    limits: FloatArray


@compiled
def descend(
    prices: RunArrays, chunks: Chunks, bounds: IntArray, recompute: BoolArray, held: FloatArray
) -> None:
    """Move bounds by a layer, the best move first, as long as loads become more even or excess less.

    Args:
        chunks: devices.
        bounds: where stages begin; changed.
        recompute: by stage.
        held: bytes by device; overwritten. Needs of running layers are added up, never too few.
    """
    num_stages = len(bounds) - 1
    load, own = np.zeros(len(chunks.speeds)), np.zeros((num_stages, 2))
    _loads(prices, chunks, bounds, recompute, 0.0, own, load, held)
    mean = load.mean()
    moved_load, moved_held = load.copy(), held.copy()
    for _ in range(DESCENT_ROUNDS):
        total, excess = _loads(prices, chunks, bounds, recompute, mean, own, load, held)
        least = _unevenness(total, excess) * (1 - 1e-12)
        first, last, step = 0, 0, 0
        # A layer to the next stage; where that helps nowhere, to one further on: all bounds between move too.
        for reach in (1, num_stages):
            if step != 0:
                break
            for begin in range(1, num_stages):
                for sign in (1, -1):
                    loser = begin if sign > 0 else begin - 1
                    if bounds[loser + 1] - bounds[loser] < 2:
                        continue
                    moved_load[:] = load
                    moved_held[:] = held
                    moved_total, moved_excess, end = total, excess, begin
                    time, num_bytes = own[loser, 0], own[loser, 1]
                    while 0 < end < num_stages and abs(end - begin) < reach:
                        # Behind the first bound the stage that loses a layer has just got one.
                        loser = end if sign > 0 else end - 1
                        winner = end - 1 if sign > 0 else end
                        run_first, run_after = bounds[loser], bounds[loser + 1]
                        if sign > 0 or end != begin:
                            run_first += sign
                        if sign < 0 or end != begin:
                            run_after += sign
                        left = _price(prices, chunks, recompute, loser, run_first, run_after)
                        changed = _add(
                            chunks, loser, left[0] - time, left[1] - num_bytes, mean, moved_load, moved_held
                        )
                        moved_total += changed[0]
                        moved_excess += changed[1]
                        run_first, run_after = bounds[winner], bounds[winner + 1]
                        if sign > 0:
                            run_after += 1
                        else:
                            run_first -= 1
                        time, num_bytes = _price(prices, chunks, recompute, winner, run_first, run_after)
                        changed = _add(
                            chunks,
                            winner,
                            time - own[winner, 0],
                            num_bytes - own[winner, 1],
                            mean,
                            moved_load,
                            moved_held,
                        )
                        moved_total += changed[0]
                        moved_excess += changed[1]
                        moved = _unevenness(moved_total, moved_excess)
                        if moved < least:
                            least, first, last, step = moved, begin, end, sign
                        end -= sign
        if step == 0:
            break
        end = first
        while end != last - step:
            bounds[end] += step
            end -= step
    _loads(prices, chunks, bounds, recompute, mean, own, load, held)


@compiled
def _loads(
    prices: RunArrays,
    chunks: Chunks,
    bounds: IntArray,
    recompute: BoolArray,
    mean: float,
    own: FloatArray,
    load: FloatArray,
    held: FloatArray,
) -> tuple[float, float]:
    """Write time and bytes by stage, loads and bytes by device; return the sums of the devices' terms.

    Args:
        prices: as `descend` takes it, and likewise
        chunks: devices,
        bounds: where stages begin, and
        recompute: by stage.
        mean: load; 0 if it is not known yet, and the sums are not wanted.
        own: shape (num_stages, 2); overwritten.
        load: by device; overwritten.
        held: by device; overwritten.
    """
    load[:] = 0.0
    held[:] = 0.0
    for stage in range(len(bounds) - 1):
        own[stage] = _price(prices, chunks, recompute, stage, bounds[stage], bounds[stage + 1])
        for copy in range(len(chunks.devices)):
            device = chunks.devices[copy, stage]
            load[device] += own[stage, 0] / chunks.speeds[device]
            held[device] += own[stage, 1]
    total, excess = 0.0, 0.0
    for device in range(len(load)):
        if mean > 0:
            total += (load[device] / mean) ** EVENNESS
            excess += max(0.0, held[device] / chunks.limits[device] - 1)
    return total, excess


@compiled
def _price(
    prices: RunArrays, chunks: Chunks, recompute: BoolArray, stage: int, first: int, after: int
) -> tuple[float, float]:
    """Return time and bytes of a stage with these layers."""
    time = prices.time[first, after]
    if recompute[stage]:
        num_bytes = (
            prices.recomputed_static[first, after] + chunks.in_flight[stage] * prices.kept[first, after]
        )
        return time + prices.recompute[first, after], num_bytes
    return time, prices.static[first, after] + chunks.in_flight[stage] * prices.saved[first, after]


@compiled
def _add(
    chunks: Chunks,
    stage: int,
    time: float,
    num_bytes: float,
    mean: float,
    load: FloatArray,
    held: FloatArray,
) -> tuple[float, float]:
    """Add time and bytes to a stage's devices, and return how their terms change."""
    total, excess = 0.0, 0.0
    for copy in range(len(chunks.devices)):
        device = chunks.devices[copy, stage]
        total -= (load[device] / mean) ** EVENNESS
        excess -= max(0.0, held[device] / chunks.limits[device] - 1)
        load[device] += time / chunks.speeds[device]
        held[device] += num_bytes
        total += (load[device] / mean) ** EVENNESS
        excess += max(0.0, held[device] / chunks.limits[device] - 1)
    return total, excess


@compiled
def _unevenness(total: float, excess: float) -> float:
    """Return a norm of the loads, made large by memory in excess."""
    return float(max(total, 0.0) ** (1 / EVENNESS) + 100.0 * excess)
