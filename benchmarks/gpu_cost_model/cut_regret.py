"""What a pipeline's cut loses when it is chosen by predicted instead of measured latencies.

The operators before a network's repeated block, the blocks and those after it are the layers; they are cut
into stages so that the slowest stage is as fast as possible. The regret is how much slower the slowest stage
of the cut chosen by predictions is, by the measured latencies, than that of the best cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gpu_cost_model.network_errors import predicted_operators, prices_of
from benchmarks.gpu_cost_model.networks import NetworkRun, network_runs
from cost_model.gpu.kernel_model import GpuKernelModel

NUM_STAGES = (2, 4, 8)


class _Layers(NamedTuple):
    """Latencies of the layers in order, milliseconds."""

    measured: list[float]
    predicted: list[float]


def print_regret(root: Path, model: GpuKernelModel) -> None:
    """Print the regret of cuts over all networks of repeated blocks, on seen and on unseen devices."""
    runs = [run for run in network_runs(root) if run.num_layers and run.measured_by_operator()]
    prices = prices_of(runs, model)
    layers = [(run.is_unseen, _layers(run, predicted_operators(run, prices))) for run in runs]
    print("\nCuts chosen by predictions\n\n| | stages | networks | mean regret | largest | best cut found |")
    print("|---|---|---|---|---|---|")
    for unseen, count in itertools.product((False, True), NUM_STAGES):
        found = [
            slowest(each.measured, best_cut(each.predicted, count))
            / slowest(each.measured, best_cut(each.measured, count))
            - 1
            for is_unseen, each in layers
            if is_unseen == unseen and len(each.measured) >= count
        ]
        title = "unseen" if unseen else "seen"
        print(
            f"| {title} | {count} | {len(found)} | {np.mean(found):.1%} | {max(found):.1%} "
            f"| {np.mean(np.array(found) < 1e-9):.0%} |"
        )


def best_cut(latencies: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Return where each stage but the first begins, such that the slowest is as fast as possible.

    By bisection over the latency allowed to a stage, filled from the front; of equal cuts the first.
    """
    ends = np.concatenate([[0.0], np.cumsum(latencies)])
    count = len(latencies)
    # The best bottleneck is a sum of neighbours: the least of them that suffices.
    sums = np.unique(
        [ends[last] - ends[first] for first in range(count) for last in range(first + 1, count + 1)]
    )
    low, high = 0, len(sums) - 1
    while low < high:
        middle = (low + high) // 2
        if len(_filled(latencies, sums[middle])) < num_stages:
            high = middle
        else:
            low = middle + 1
    return _filled(latencies, sums[low])


def slowest(latencies: Sequence[float], cut: Sequence[int]) -> float:
    """Return the latency of the slowest stage of a cut."""
    ends = (0, *cut, len(latencies))
    return max(sum(latencies[first:last]) for first, last in itertools.pairwise(ends))


def _filled(latencies: Sequence[float], limit: float) -> tuple[int, ...]:
    cut: list[int] = []
    total = 0.0
    for index, latency in enumerate(latencies):
        if index and total + latency > limit * (1 + 1e-12):
            cut.append(index)
            total = 0.0
        total += latency
    return tuple(cut)


def _layers(run: NetworkRun, predicted: Sequence[float]) -> _Layers:
    measured = run.measured_by_operator()
    columns = [(operator.count, measured.get(operator.name, 0.0)) for operator in run.operators]
    return _Layers(
        _grouped([(count, ms) for count, ms in columns]),
        _grouped([(count, ms) for (count, _), ms in zip(columns, predicted, strict=True)]),
    )


def _grouped(operators: Sequence[tuple[int, float]]) -> list[float]:
    """Return what comes before the block, the block as often as it is repeated, and what comes after it."""
    in_block = [index for index, (count, _) in enumerate(operators) if count > 1]
    if not in_block:
        return [sum(ms for _, ms in operators)]
    first, last = in_block[0], in_block[-1] + 1
    block = sum(ms for _, ms in operators[first:last])
    before, after = (sum(ms for _, ms in part) for part in (operators[:first], operators[last:]))
    return [before, *[block] * operators[first][0], after]
