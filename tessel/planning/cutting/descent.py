"""Move boundaries by a layer as long as devices' loads become more even; compiled.

A descent looks at each boundary in both directions, and at layers that move over several stages; each step
takes the best. What a stage adds to its devices is taken off and added again, so a move costs O(copies).
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
    chunks: Chunks,
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
    chunks: Chunks,
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
