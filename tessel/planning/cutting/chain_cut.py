"""The least bottleneck under memory, exactly, for one stage a device.

With at most K micro-batches in flight a device holds its weights and K times what a micro-batch saves, so
each run of layers fits a device or does not, with recomputation or without, and the cuts with the least
longest stage are a dynamic programme over (stage, layer), O(stages × layers²). Of the cuts with that
bottleneck the most even one is taken.

    layers     e 1 1 1 1 1 1 1 h                e 1 1 | 1 1 1 | 1 1 | h     heavy head: cut before it
    stages     0     1     2    3

Checked in tests/tessel/planning/cutting/test_cuts.py against all cuts of small models.

Source: Narayanan et al., PipeDream (SOSP 2019), section 3.1, and Fan et al., DAPPLE (PPoPP 2021), for the
dynamic programme; memory and recomputation a stage as in Adapipe (Sun et al., ASPLOS 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessel.planning.costs.stage_costs import FloatArray
from tessel.planning.cutting.cut import Cut
from tessel.planning.cutting.run_prices import IntArray, RunArrays, RunPrices
from tessel.search.jit.compiled import compiled

OPERATIONS_A_CELL = 2
"""Charged for each pair of layers of the dynamic programme, for each stage."""


def chain_cut(
    prices: Sequence[RunPrices],
    *,
    in_flight: Sequence[float],
    speeds: FloatArray,
    limits: Sequence[float] | None,
    may_recompute: bool,
) -> Cut | None:
    """Return the cut into one stage a device with the least longest stage; None where nothing fits.

    Args:
        prices: of all runs of layers: of each stage, or one for all.
        in_flight: micro-batches that each stage holds at once.
        speeds: of the stages' devices, shape (num_stages,).
        limits: their bytes; None for no limit.
        may_recompute: whether stages that do not fit otherwise may recompute.
    """
    num_stages, size = len(speeds), len(prices[0].time)
    distinct = list(dict.fromkeys(prices))
    table = np.array([distinct.index(each) for each in prices] * (num_stages if len(prices) == 1 else 1))
    arrays = _stacked(distinct)
    limited = np.full(num_stages, np.inf) if limits is None else np.array(limits, dtype=np.float64)
    flights = np.array(in_flight, dtype=np.float64)
    came_from = np.zeros((num_stages, size), dtype=np.int64)
    bottleneck = _least_bottleneck(arrays, table, flights, speeds, limited, may_recompute, np.inf, came_from)
    if not np.isfinite(bottleneck):
        return None
    _least_bottleneck(arrays, table, flights, speeds, limited, may_recompute, bottleneck, came_from)
    bounds = [size - 1]
    for stage in range(num_stages - 1, -1, -1):
        bounds.append(int(came_from[stage, bounds[-1]]))
    bounds.reverse()
    runs = table, bounds[:-1], bounds[1:]
    held = arrays.static[runs] + flights * arrays.saved[runs]
    return Cut(tuple(bounds), tuple((held > limited).tolist()))


def _stacked(prices: Sequence[RunPrices]) -> RunArrays:
    """Return the arrays of several tables, shape (num_tables, num_layers + 1, num_layers + 1)."""
    if len(prices) == 1:
        return RunArrays(*(each[np.newaxis] for each in prices[0].arrays))
    return RunArrays(*map(np.stack, zip(*(each.arrays for each in prices), strict=True)))


@compiled
def _least_bottleneck(
    prices: RunArrays,
    table: IntArray,
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
        prices: of runs, table by table.
        table: of each stage, int64.
        in_flight: micro-batches by stage.
        speeds: by stage.
        limits: bytes by stage, infinite for none.
        may_recompute: whether what does not fit otherwise may recompute.
        bottleneck: infinite, or a longest stage.
        came_from: first layer by stage and layer behind it, int64; overwritten.
    """
    size = prices.time.shape[1]
    is_even = np.isfinite(bottleneck)
    longest = bottleneck * (1 + 1e-12)
    best = np.full(size, np.inf)
    best[0] = 0.0
    for stage in range(len(speeds)):
        found = np.full(size, np.inf)
        own = table[stage]
        # Each stage ahead and behind has a layer at least.
        for after in range(stage + 1, size - (len(speeds) - 1 - stage)):
            for first in range(stage, after):
                if not np.isfinite(best[first]):
                    continue
                run = own, first, after
                time = prices.time[run]
                held = prices.static[run] + in_flight[stage] * prices.saved[run]
                if held > limits[stage]:
                    held = prices.recomputed_static[run] + in_flight[stage] * prices.kept[run]
                    if not may_recompute or held > limits[stage]:
                        continue
                    time += prices.recompute[run]
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
