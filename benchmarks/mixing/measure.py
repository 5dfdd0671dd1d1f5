"""Measure a row: partition its network, then run all contenders in turn."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.mixing.contenders import (
    Run,
    compiled_by_torch,
    eager,
    onnxruntime_alone,
    program_arguments,
    programs,
)
from benchmarks.mixing.row import CODES, Row
from benchmarks.network_models import hybrid, untuned
from tuner.frontend.torch.program import import_module
from tuner.measuring.race import paired_ratio
from tuner.pricing.protocol import Pricing
from tuner.tuning.partition_model import PartitionedModel, partition_model
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition
from tuner.tuning.session import SessionSettings, TuningProgress, start_session

NETWORKS = {
    "two_tower": hybrid.two_tower,
    "tiny_tower": hybrid.tiny_tower,
    "resnet18": untuned.resnet18,
    "llama_block": untuned.llama_block,
    "swin_t": untuned.swin_t,
}

TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
"""Largest error over largest output, against torch in the same type: sums in another order, and layers that
each round."""

LEAST_ROUNDS, MOST_ROUNDS = 7, 300

REST_S = 0.01
"""Of a rest, after which it is asked whether threads still wait in a loop for their next work."""

MOST_REST_S = 1.0
"""TVM's threads do for up to a third of a second, OpenBLAS's for 30 ms, others for some milliseconds."""


def measure_row(row: Row, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a row's figures."""
    torch.set_num_threads(row.threads)
    if row.network not in NETWORKS:
        sys.exit(f"there is no network {row.network!r}; choose {', '.join(NETWORKS)}")
    module, inputs = NETWORKS[row.network](row.batch)
    float_module, float_inputs = module, inputs
    if row.dtype == "bfloat16":
        float_module, float_inputs = NETWORKS[row.network](row.batch)
        module = module.to(torch.bfloat16)
        inputs = tuple(each.to(torch.bfloat16) if each.is_floating_point() else each for each in inputs)
    model = import_module(module, inputs, row.name)
    backends = arguments.backends.split(",") if arguments.backends else None
    started = time.perf_counter()
    with start_session(
        CODES[row.code],
        SessionSettings(backend_names=backends, num_threads=row.threads),
        records_url=arguments.records,
        pricing=Pricing(prune=arguments.prune or row.dtype == "bfloat16"),
        on_progress=_progress(row.name),
    ) as session:
        result = partition_model(model, session, coarser=arguments.coalesce)
    partition_s = time.perf_counter() - started
    functions = {"mix": result.function, **result.alone}
    rivals: dict[str, Callable[[], Run]] = {
        "torch eager": lambda: eager(module, inputs),
        "onnxruntime": lambda: onnxruntime_alone(module, inputs, row.threads),
    }
    if row.dtype == "bfloat16":
        rivals["onnxruntime in float32"] = lambda: onnxruntime_alone(float_module, float_inputs, row.threads)
    if arguments.compile:
        rivals["torch.compile"] = lambda: compiled_by_torch(module, inputs)
    made, refused = _made(rivals)
    contenders = programs(functions, session, program_arguments(model, inputs)) | {
        _rival(label): run for label, run in made.items()
    }
    expected = eager(module, inputs)()
    errors = {label: _error(run(), expected) for label, run in contenders.items()}
    wrong = [label for label, error in errors.items() if not error <= TOLERANCE[row.dtype]]
    if "mix" in wrong:
        sys.exit(f"{row.name}: the mix differs from torch by {errors['mix']:.1e} of the largest output")
    refused |= {label: f"differs from torch by {errors[label]:.1e}" for label in wrong}
    contenders = {label: run for label, run in contenders.items() if label not in wrong}
    samples = run_in_turn(contenders, row.threads, seconds=arguments.seconds)
    return _figures(row, result, functions, samples) | {
        "errors": errors,
        "refused": refused,
        "partition_s": partition_s,
    }


def run_in_turn(contenders: Mapping[str, Run], threads: int, *, seconds: float) -> dict[str, list[float]]:
    """Return milliseconds of each contender, one execution of each in every round, each in its own order.

    With one thread the processor's time counts, so that other programs' does not; with more it is the time
    that passes, and between executions there is a rest, until the threads of the last one stop spinning.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    samples: dict[str, list[float]] = {label: [] for label in contenders}
    order = list(contenders.items())
    rng = random.Random(0)
    started = time.perf_counter()
    rounds = 0
    while rounds < LEAST_ROUNDS or (time.perf_counter() - started < seconds and rounds < MOST_ROUNDS):
        rounds += 1
        rng.shuffle(order)
        for label, run in order:
            if threads > 1:
                _rest()
            before = clock()
            run()
            samples[label].append(max(clock() - before, 1e-9) * 1e3)
    return samples


def _rest() -> None:
    """Return when no thread of this process runs any more."""
    ends = time.perf_counter() + MOST_REST_S
    while time.perf_counter() < ends:
        before = time.process_time()
        time.sleep(REST_S)
        if time.process_time() - before < REST_S / 10:
            return


def _made(makers: Mapping[str, Callable[[], Run]]) -> tuple[dict[str, Run], dict[str, str]]:
    """Return the contenders that can run here, and why others cannot."""
    made: dict[str, Run] = {}
    refused: dict[str, str] = {}
    for label, make in makers.items():
        try:
            made[label] = make()
            made[label]()
        except Exception as error:  # a missing compiler, package or kernel, by errors of any library
            made.pop(label, None)
            lines = [line for line in str(error).splitlines() if line.strip()]
            refused[label] = f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]
    return made, refused


def _rival(label: str) -> str:
    """Return a name that no backend has."""
    return "onnxruntime alone" if label == "onnxruntime" else label


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    largest = expected.float().abs().max()
    return float((found.float() - expected.float()).abs().max() / largest)


def _figures(
    row: Row,
    result: PartitionedModel,
    functions: Mapping[str, PartitionedFunction],
    samples: Mapping[str, list[float]],
) -> dict[str, Any]:
    named = {functions[label].fingerprint: label for label in reversed(list(functions)) if label in samples}
    same = {label: named[function.fingerprint] for label, function in functions.items()}
    priced = result.function.priced
    first = choose_partition(priced).partition
    sums_ms = {label: choose_partition(priced, only=label).partition.cost_us / 1e3 for label in result.alone}
    return {
        "row": row.name,
        "latency_ms": {label: statistics.median(values) for label, values in samples.items()},
        "quartiles_ms": {label: statistics.quantiles(values, n=4)[::2] for label, values in samples.items()},
        "rounds": len(samples["mix"]),
        "same_program": same,
        "ratio_to_mix": {label: _ratio(samples, label) for label in samples},
        "chosen_by": result.chosen_by,
        "tie": result.is_tie,
        "parts": Counter(part.backend for part in result.function.partition.chosen),
        "sum_ms": first.cost_us / 1e3,
        "bound_ms": first.lower_bound_us / 1e3,
        "proven": first.proven,
        "sums_ms": sums_ms,
        "operators": len(priced.graph),
        "candidates": len(priced.candidates),
        "states": result.num_states,
        "new_measurements": result.new_measurements,
    }


def _ratio(samples: Mapping[str, list[float]], label: str) -> tuple[float, float, float | None]:
    found = paired_ratio(samples["mix"], samples[label], error=0.05)
    return found.ratio, found.low, found.high


def _progress(name: str) -> Callable[[TuningProgress], None]:
    last = [time.monotonic()]

    def show(progress: TuningProgress) -> None:
        if time.monotonic() - last[0] > 15:
            last[0] = time.monotonic()
            share = "" if progress.total is None else f" {progress.completed}/{progress.total}"
            print(f"{name}: {progress.text}{share}", file=sys.stderr, flush=True)

    return show
