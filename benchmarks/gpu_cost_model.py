"""Is a kernel's latency known on a GPU that nobody here has? On what NeuSight's authors measured.

`python -m benchmarks.gpu_cost_model FOLDER` trains the project's GPU model on the kernels of five devices
(P4, P100, V100, T4, A100 of 40 GB), predicts the operators of networks on those and on H100, L4 and A100 of
80 GB, and sets it beside what four systems predicted for the same runs, all errors computed here. FOLDER is
sitar-lab/NeuSight's repository. A run's error in a column is that of the sum of its operators of that kind.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gpu_networks import COLUMNS, NetworkRun, network_runs
from cost_model.errors import CostModelError
from cost_model.gpu.devices import find_gpu
from cost_model.gpu.kernel_model import GpuKernelModel, GpuPrediction, GpuQuery
from cost_model.gpu.kernels import Family, GpuKernel, kernel_of
from cost_model.gpu.training import GpuSample, train_gpu_model
from records.files.neusight import read_table

SYSTEMS = {"roofline": "roofline", "habitat": "Habitat", "micro": "Li et al.", "neusight": "NeuSight"}
OURS = "this project"
_MS = 1e3


class Errors(NamedTuple):
    """Percentages: by (is unseen, column), and of whole networks by (is unseen, trains)."""

    columns: dict[tuple[bool, str], list[float]]
    whole: dict[tuple[bool, bool], list[float]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_cost_model", description=__doc__)
    parser.add_argument("folder", type=Path, help="sitar-lab/NeuSight's repository")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="folder to save the model to")
    options = parser.parse_args(arguments)
    root = options.folder / "scripts/asplos"
    started = time.process_time()
    samples = list(read_samples(sorted((root / "data/dataset/train/collect").glob("*/*/*.csv"))))
    model = train_gpu_model(samples, seed=options.seed)
    print(
        f"trained on {model.manifest.num_samples} kernels in {time.process_time() - started:.0f} s",
        file=sys.stderr,
    )
    if options.model is not None:
        model.save(options.model)
    _print_networks(root, model)
    _print_kernels(root, model)


def read_samples(paths: Sequence[Path]) -> Iterator[GpuSample]:
    """Yield the kernels of tables that the model knows; convolutions are passed over."""
    number = 0
    for path in paths:
        for workload, measurement in read_table(path):
            number += 1
            try:
                query = GpuQuery(kernel_of(workload), find_gpu(measurement.environment.device_model))
            except CostModelError:
                continue
            yield GpuSample(query, measurement.latency_us, number)


def errors_of_system(runs: Sequence[NetworkRun], system: str) -> Errors:
    """Return the errors of what one of their systems predicted."""
    return _errors((run, run.predicted_by_column(system), run.predicted_ms(system)) for run in runs)


def errors_of_model(runs: Sequence[NetworkRun], model: GpuKernelModel) -> Errors:
    """Return the errors of a model's predictions."""
    prices = _prices(runs, model)
    return _errors((run, *_predicted(run, prices)) for run in runs)


def _errors(predicted: Iterator[tuple[NetworkRun, dict[str, float], float | None]]) -> Errors:
    errors = Errors(collections.defaultdict(list), collections.defaultdict(list))
    for run, by_column, whole_ms in predicted:
        if whole_ms is not None:
            errors.whole[run.is_unseen, run.trains].append(100 * abs(whole_ms / run.measured_ms - 1))
        measured = run.measured_by_column()
        for column in COLUMNS if by_column else ():
            if measured.get(column, 0) > 0:
                error = 100 * abs(by_column.get(column, 0.0) / measured[column] - 1)
                errors.columns[run.is_unseen, column].append(error)
    return errors


def _prices(runs: Sequence[NetworkRun], model: GpuKernelModel) -> dict[tuple[GpuKernel, str], GpuPrediction]:
    """Return a prediction for each distinct kernel on each device."""
    keys = {
        (call.kernel, run.device)
        for run in runs
        for operator in run.operators
        for call in operator.calls
        if call.kernel is not None
    }
    ordered = sorted(keys, key=str)
    predictions = model.predict([GpuQuery(kernel, find_gpu(device)) for kernel, device in ordered])
    return dict(zip(ordered, predictions, strict=True))


def _predicted(
    run: NetworkRun, prices: dict[tuple[GpuKernel, str], GpuPrediction]
) -> tuple[dict[str, float], float]:
    device, sums, whole = find_gpu(run.device), dict.fromkeys(COLUMNS, 0.0), 0.0
    for operator in run.operators:
        us = sum(
            call.copied_bytes / device.bandwidth_gb_s / _MS
            if call.kernel is None
            else prices[call.kernel, run.device].latency_us
            for call in operator.calls
        )
        whole += operator.count * us / _MS
        if operator.column is not None:
            sums[operator.column] += operator.count * us / _MS
    return sums, whole


def _print_networks(root: Path, model: GpuKernelModel) -> None:
    runs = list(network_runs(root))
    found = {name: errors_of_system(runs, system) for system, name in SYSTEMS.items()}
    found[OURS] = errors_of_model(runs, model)
    print("Mean absolute percentage errors of the sums of a network's operators\n")
    print(
        "| | "
        + " | ".join(f"{kind} {COLUMNS[column]}" for kind in ("seen", "unseen") for column in COLUMNS)
        + " |"
    )
    print("|---|" + "---|" * (2 * len(COLUMNS)))
    for name, errors in found.items():
        cells = [_mean(errors.columns[unseen, column]) for unseen in (False, True) for column in COLUMNS]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(
        "\nWhole networks\n\n| | all | seen, inference | seen, training "
        "| unseen, inference | unseen, training | runs |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, errors in found.items():
        every = [error for part in errors.whole.values() for error in part]
        parts = [_mean(errors.whole[unseen, trains]) for unseen in (False, True) for trains in (False, True)]
        print(f"| {name} | {_mean(every)} | " + " | ".join(parts) + f" | {len(every)} |")


def _print_kernels(root: Path, model: GpuKernelModel) -> None:
    """Print errors and coverage of the kernels that were held out, by family and kind of device."""
    paths = [
        root / "data/dataset/test" / f"{name}.csv" for name in ("bmm", "linear", "elem", "softmax", "ln")
    ]
    samples = list(read_samples(paths))
    predictions = model.predict([sample.query for sample in samples])
    print("\nKernels that were held out\n")
    print("| family | device | kernels | MAPE | median error | intervals cover | median width |")
    print("|---|---|---|---|---|---|---|")
    for family in Family:
        for known in (True, False):
            pairs = [
                (sample, prediction)
                for sample, prediction in zip(samples, predictions, strict=True)
                if sample.query.kernel.family == family and prediction.is_known_device == known
            ]
            if pairs:
                _print_family(family, known, pairs)


def _print_family(family: Family, known: bool, pairs: list[tuple[GpuSample, GpuPrediction]]) -> None:
    truth = np.array([sample.latency_us for sample, _ in pairs])
    errors = np.abs(np.array([prediction.latency_us for _, prediction in pairs]) / truth - 1)
    low, high = (
        np.array([getattr(prediction, end) for _, prediction in pairs]) for end in ("low_us", "high_us")
    )
    covered = np.mean((low <= truth) & (truth <= high))
    device = "known" if known else "unknown"
    print(
        f"| {family} | {device} | {len(pairs)} | {100 * errors.mean():.1f} % "
        f"| {100 * np.median(errors):.1f} % | {100 * covered:.1f} % | {np.median(high / low):.2f} × |"
    )


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f}" if values else "–"


if __name__ == "__main__":
    main()
