"""What a runtime costs, from the few runs that it may be calibrated on: OPT-350, at most two stages, GH200.

Four figures come out, each from what it alone explains: bandwidth of collectives from the measured seconds of
gradient reduction; the overhead of a hop from the steps of the two-stage runs; context and the allocator's
factor from the measured bytes. Each is the value on a grid with the least mean error, so that anybody finds
the same; ties take the smaller value.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from benchmarks.reality.numbers import mean_of
from benchmarks.reality.sailor_data import Collection, Run
from benchmarks.reality.sailor_runs import HOP, Variant, estimate, layout_of, profile_of, sound_runs
from tessel.planning.cluster import Link
from tessel.planning.runtime import DEEPSPEED, Runtime

Choice = TypeVar("Choice")

OVERHEADS_US = range(0, 5001, 100)
CONTEXTS_GB = tuple(tenth / 10 for tenth in range(30, 61))
PEAK_FACTORS = (1.0, 1.5, 2.0, 2.5, 3.0)


class Calibrated(NamedTuple):
    """What was found."""

    runtime: Runtime
    collective: Link


def runs_to_calibrate_on(collection: Collection) -> tuple[Run, ...]:
    """Return the runs that figures may be calibrated on."""
    return tuple(
        run
        for run in sound_runs(collection)
        if run.is_clariden and run.model == "OPT-350" and run.pipeline <= 2
    )


def calibrate(collection: Collection) -> Calibrated:
    """Return the runtime and the link of collectives with the least mean errors on those runs."""
    runs = runs_to_calibrate_on(collection)
    collective = calibrate_collective(collection, runs)

    def time_error(overhead_us: int) -> float:
        runtime = msgspec.structs.replace(DEEPSPEED, hop_overhead_us=float(overhead_us))
        variant = Variant(runtime, collective)
        return mean_of(
            abs(estimate(collection, run, variant).time_error) for run in runs if run.pipeline == 2
        )

    needed = {factor: [_without_context(collection, run, factor) for run in runs] for factor in PEAK_FACTORS}

    def memory_error(choice: tuple[float, float]) -> float:
        context_gb, factor = choice
        return mean_of(
            abs((num_bytes + context_gb * 1e9) / run.real_bytes - 1)
            for num_bytes, run in zip(needed[factor], runs, strict=True)
        )

    overhead_us = least(OVERHEADS_US, time_error)
    context_gb, factor = least([(gb, factor) for gb in CONTEXTS_GB for factor in PEAK_FACTORS], memory_error)
    runtime = msgspec.structs.replace(
        DEEPSPEED,
        hop_overhead_us=float(overhead_us),
        context_bytes=round(context_gb * 1e9),
        peak_factor=factor,
    )
    return Calibrated(runtime, collective)


def _without_context(collection: Collection, run: Run, factor: float) -> int:
    runtime = msgspec.structs.replace(DEEPSPEED, context_bytes=0, peak_factor=factor)
    return max(estimate(collection, run, Variant(runtime)).step.memory_bytes)


def calibrate_collective(collection: Collection, runs: Sequence[Run]) -> Link:
    """Return the link with the median bandwidth that the measured reductions of gradients had, in a ring.

    A run whose reduction has the figure of another run's whole step is left out.
    """
    found = []
    for run in runs:
        if run.data_parallel == 1 or run.reduce_s > 0.5 * run.real_s:
            continue
        profile = profile_of(run, collection)
        costs = profile.costs(micro_batch=run.micro_batch, tensor_parallel=run.tensor_parallel)
        num_bytes = max(
            sum(cost.weight_bytes for cost in costs[first : last + 1]) for first, last in layout_of(run).cuts
        )
        at_best_us = HOP.all_reduce_us(num_bytes, run.data_parallel)
        found.append(HOP.bytes_per_s * at_best_us / (run.reduce_s * 1e6))
    # Two digits: the reductions of one layout differ by half.
    return Link(bytes_per_s=float(f"{statistics.median(found):.2g}"), latency_us=HOP.latency_us)


def least(choices: Sequence[Choice], error: Callable[[Choice], float]) -> Choice:
    """Return the first choice with the least error."""
    return min(choices, key=error)
