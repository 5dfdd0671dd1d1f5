"""How far the GPU model is off on a GPU that it was not trained on and that was measured here.

`python -m benchmarks.gpu_cost_model.measured RECORDS --cost-model DIR` predicts the kernels and whole
networks of a JSON Lines file of records, such as `benchmarks/data/gpu/kernels_nvidia-h200.jsonl.gz`, with a
model of `tessel cost-model train --gpu`. A prediction does not depend on the backend; the table says how far
each backend is from it. Programs that only rename their inputs, and types that the model does not know, are
left out and counted.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cost_model.errors import CostModelError
from cost_model.gpu.devices import find_gpu
from cost_model.gpu.kernel_model import GpuKernelModel, load_gpu_model
from cost_model.gpu.programs import kernels_of_program, predict_programs
from records import Measurement, Status, Workload
from records.files.exchange import read_records

_KNOWN_TYPES = frozenset(("float32", "int64", "int32", "bool"))
_CHOICES = ("mix", "torch-alone", "tvm-alone")
"""Whole networks as the tuner timed them: by backends in turn, and by one alone."""


@dataclass(frozen=True)
class Compared:
    """One program: what it is, who ran it, and its latency as measured and as predicted."""

    family: str
    backend: str
    measured_us: float
    predicted_us: float
    low_us: float
    high_us: float


def compared(
    records: Iterable[tuple[Workload, Measurement]], model: GpuKernelModel
) -> tuple[list[Compared], int]:
    """Return every program that was measured and can be predicted, and how many cannot.

    Raises:
        CostModelError: the device has no data sheet here.
    """
    found: list[Compared] = []
    num_left_out = 0
    for workload, measurement in records:
        is_network = workload.role == "model" and measurement.backend in _CHOICES
        if measurement.status is not Status.OK or not (workload.role == "kernel" or is_network):
            continue
        types = {tensor.dtype for tensor in workload.inputs}
        try:
            kernels = kernels_of_program(workload) if types <= _KNOWN_TYPES else ()
            if not kernels:
                num_left_out += 1
                continue
            device = find_gpu(measurement.environment.device_model)
            (predicted,) = predict_programs(model, [workload], device)
        except CostModelError:
            num_left_out += 1
            continue
        families = sorted({str(kernel.family) for kernel in kernels})
        found.append(
            Compared(
                family="whole network" if is_network else " + ".join(families),
                backend=measurement.backend,
                measured_us=measurement.latency_us,
                predicted_us=predicted.latency_us,
                low_us=predicted.low_us,
                high_us=predicted.high_us,
            )
        )
    return found, num_left_out


def print_table(found: Sequence[Compared], num_left_out: int) -> None:
    """Print errors, and coverage and median width of the intervals, by backend and kind of kernel."""
    groups: dict[tuple[str, str], list[Compared]] = collections.defaultdict(list)
    for each in found:
        groups[each.backend, each.family].append(each)
    columns = ("measured on", "kernels", "programs", "MAPE", "predicted over measured", "cover", "width")
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for (backend, family), group in sorted(groups.items()):
        measured, predicted, low, high = (
            np.array([getattr(each, name) for each in group])
            for name in ("measured_us", "predicted_us", "low_us", "high_us")
        )
        ratio = predicted / measured
        error, bias = np.abs(ratio - 1).mean(), np.exp(np.log(ratio).mean())
        covered, width = ((low <= measured) & (measured <= high)).mean(), np.median(high / low)
        figures = f"{len(group)} | {error:.0%} | {bias:.2f} | {covered:.0%} | {width:.1f}"
        print(f"| {backend} | {family} | {figures} |")
    print(f"\n{num_left_out} programs were left out: they only rename inputs, or are of an unknown type.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_cost_model.measured", description=__doc__)
    parser.add_argument("records", type=Path)
    parser.add_argument("--cost-model", type=Path, required=True)
    options = parser.parse_args(arguments)
    print_table(*compared(read_records(options.records), load_gpu_model(options.cost_model)))


if __name__ == "__main__":
    main()
