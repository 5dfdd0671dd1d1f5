"""Run contenders in turn, and say how fast each is, how far from the processor's peak and how exact."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.networks.contenders import Run
from records.workload import Operator, Workload
from tuner.frontend import Model
from tuner.measuring.race import paired_ratio
from tuner.tuning.partition_model import PartitionedModel
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition

TOLERANCE = 1e-4
"""Largest error over largest output: float32 sums in another order, through some hundred layers."""

_PRODUCTS = frozenset({"matmul", "nn.conv2d", "nn.attention"})

_WINOGRAD_SAVES = 4
"""How many times fewer multiplications a 3 x 3 convolution with stride 1 takes in tiles of 4 x 4."""


def run_in_turn(contenders: dict[str, Run], *, repeats: int, seconds: float) -> dict[str, list[float]]:
    """Return milliseconds of each contender, one execution of each in every round.

    Every round has an order of its own: who runs after whom decides what is in the caches. One thread does
    all the work, so the processor's time is counted: what passes while another program has the processor is
    nobody's.
    """
    samples: dict[str, list[float]] = {label: [] for label in contenders}
    order = list(contenders.items())
    rng = random.Random(0)
    started = time.perf_counter()
    rounds = 0
    while rounds < repeats or (time.perf_counter() - started < seconds and rounds < 50 * repeats):
        rounds += 1
        rng.shuffle(order)
        for label, run in order:
            before = time.process_time()
            run()
            samples[label].append((time.process_time() - before) * 1e3)
    return samples


def products_gflop(workload: Workload) -> float:
    """Return the 10⁹ operations of products and convolutions, as few as any backend here needs for them."""
    return sum(_least_flops(workload, each) for each in workload.operators if each.name in _PRODUCTS) / 1e9


def _least_flops(workload: Workload, operator: Operator) -> float:
    attributes = dict(operator.attributes)
    is_winograd = (
        operator.name == "nn.conv2d"
        and workload.values[operator.inputs[1]].shape[2:] == (3, 3)
        and attributes["strides"] == "[1, 1]"
        and attributes["groups"] == "1"
    )
    return operator.flops / _WINOGRAD_SAVES if is_winograd else operator.flops


def sums_of_parts(result: PartitionedModel) -> dict[str, float]:
    """Return what the search adds up for its cheapest cover, and for the cheapest of each backend alone."""
    priced = result.function.priced
    covers = {"mix": choose_partition(priced)}
    covers |= {backend: choose_partition(priced, only=backend) for backend in result.alone}
    return {label: cover.partition.cost_us / 1e3 for label, cover in covers.items()}


def largest_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def figures_of(
    name: str,
    model: Model,
    result: PartitionedModel,
    functions: dict[str, PartitionedFunction],
    errors: dict[str, float],
    samples: dict[str, list[float]],
    partition_s: float,
    peak: float,
) -> dict[str, Any]:
    latency_ms = {label: statistics.median(values) for label, values in samples.items()}
    measured = {functions[label].fingerprint: latency_ms[label] for label in functions if label in samples}
    # Equal programs ran once.
    latency_ms |= {label: measured[function.fingerprint] for label, function in functions.items()}
    return {
        "network": name,
        "operators": len(result.function.priced.graph),
        "products_gflop": products_gflop(result.function.priced.workload),
        "peak_gflops": peak,
        "parameters": sum(int(np.prod(array.shape)) for array in model.parameters.values()),
        "latency_ms": latency_ms,
        "quartiles_ms": {label: statistics.quantiles(values, n=4)[::2] for label, values in samples.items()},
        "rounds": len(samples["mix"]),
        "ratio_to_mix": {label: ratio_to_mix(samples, label) for label in samples},
        "tie": result.is_tie,
        "errors": errors,
        "tolerance": TOLERANCE,
        "chosen_by": result.chosen_by,
        "sums_ms": sums_of_parts(result),
        "parts": {
            label: Counter(part.backend for part in function.partition.chosen)
            for label, function in functions.items()
        },
        "sum_of_parts_ms": result.sum_of_parts.latency_us / 1e3,
        "candidates": sum(result.num_candidates_by_rule.values()),
        "states": result.num_states,
        "new_measurements": result.new_measurements,
        "partition_s": partition_s,
    }


def ratio_to_mix(samples: dict[str, list[float]], label: str) -> tuple[float, float, float | None]:
    """Return a contender's latency over the mix's, paired by rounds, with its 95 % interval."""
    found = paired_ratio(samples["mix"], samples[label], error=0.05)
    return found.ratio, found.low, found.high
