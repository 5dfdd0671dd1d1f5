"""Prices of each run of consecutive layers, time and memory, as arrays that searches of cuts look up.

Arrays of all runs take O(layers²) numbers, and every cut of thousands is priced by a look at them. Checked in
tests/tessel/planning/cutting/test_cuts.py against the figures of stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.planning.costs.held_bytes import layers_divided
from tessel.planning.costs.stage_costs import FloatArray, LayerSums
from tessel.planning.sharding import Shares

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunPrices:
    """What each run of layers i..j-1 takes, as arrays of shape (num_layers + 1, num_layers + 1).

    Entries with i >= j are not runs: their times are infinite.

    Attributes:
        time: microseconds of a micro-batch, the faster backward taken.
        recompute: microseconds that running the forward again adds; below 0 where it saves copies.
        static: weights, gradients, optimizer state and the largest need of a running layer.
        recomputed_static: the same under recomputation.
        saved: bytes in flight a micro-batch, but what lies on the hosts.
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

    def of_layers(self, first: int, after: int) -> RunPrices:
        """Return the prices of the runs within layers first..after-1."""
        inner = slice(first, after + 1)
        return RunPrices(
            time=self.time[inner, inner],
            recompute=self.recompute[inner, inner],
            static=self.static[inner, inner],
            recomputed_static=self.recomputed_static[inner, inner],
            saved=self.saved[inner, inner],
            kept=self.kept[inner, inner],
        )

    def with_times(self, time: FloatArray) -> RunPrices:
        """Return the same with other microseconds of a micro-batch."""
        return replace(self, time=time)


def run_prices(
    sums: LayerSums, *, splits: bool, shares: Shares, buffers: int = 0, copy_us_per_byte: float = 0.0
) -> RunPrices:
    """Return the prices of all runs of layers.

    Args:
        splits: whether backwards may run in halves.
        shares: what a replica holds for each byte of weights.
        buffers: stages' activations that a device has room for, if these lie on the hosts; else 0.
        copy_us_per_byte: microseconds of their way there, or back; 0 where it is not counted.
    """
    time = layer_times(sums, splits=splits)
    is_run = np.tri(sums.num_layers + 1, dtype=bool).T & ~np.eye(sums.num_layers + 1, dtype=bool)
    twice, trained_twice = _held_twice(sums)
    static = shares.held(
        _differences(sums.weights) - twice,
        _differences(sums.trained) - trained_twice,
        _differences(sums.expert_weights),
        _differences(sums.expert_trained),
    )
    if shares.gathered or shares.gradient:
        divided, trained_divided = layers_divided(sums, shares)
        static += shares.gathered * _maxima(divided) + shares.gradient * _maxima(trained_divided)
    found = RunPrices(
        time=np.where(is_run, _differences(time), np.inf),
        recompute=_differences(sums.recompute),
        static=static + _maxima(sums.peak),
        recomputed_static=static + _maxima(sums.recomputed_peak),
        saved=_differences(sums.saved),
        kept=_differences(sums.kept),
    )
    if not buffers or not sums.has_backward:
        return found
    return _offloaded(found, _differences(sums.forward), buffers, copy_us_per_byte)


def _offloaded(prices: RunPrices, forward: FloatArray, buffers: int, copy_us_per_byte: float) -> RunPrices:
    """Return prices with activations on the hosts: forward and backward take their copies' time at least."""

    def longer(time: FloatArray, saved: FloatArray) -> FloatArray:
        copy_us = copy_us_per_byte * saved
        return np.maximum(forward, copy_us) + np.maximum(time - forward, copy_us)

    time = longer(prices.time, prices.saved)
    again = longer(prices.time + prices.recompute, prices.kept)
    return RunPrices(
        time=time,
        recompute=np.where(np.isfinite(time), again, 0.0) - np.where(np.isfinite(time), time, 0.0),
        static=prices.static + buffers * prices.saved,
        recomputed_static=prices.recomputed_static + buffers * prices.kept,
        saved=0.0 * prices.saved,
        kept=0.0 * prices.kept,
    )


def _held_twice(sums: LayerSums) -> tuple[FloatArray, FloatArray]:
    """Return bytes of tied tensors that a run of layers would count more than once, and of trained ones."""
    weights, trained = np.zeros((2, sums.num_layers + 1, sums.num_layers + 1))
    for tensor in sums.tied:
        before = np.searchsorted(tensor.layers, np.arange(sums.num_layers + 1))
        times = np.maximum(before[None, :] - before[:, None] - 1, 0)
        weights += tensor.num_bytes * times
        trained += tensor.trained_bytes * times
    return weights, trained


def layer_times(sums: LayerSums, *, splits: bool) -> FloatArray:
    """Return running sums of each layer's forward and its faster backward; shape (num_layers + 1,)."""
    if sums.work is not None:
        return sums.work
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


class RunArrays(NamedTuple):
    """`RunPrices` as the compiled searches take them; all float64, shape (num_layers + 1,) twice."""

    time: FloatArray
    recompute: FloatArray
    static: FloatArray
    recomputed_static: FloatArray
    saved: FloatArray
    kept: FloatArray
