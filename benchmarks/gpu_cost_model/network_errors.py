"""Errors of predicted networks and their operators, of this project's model and of four others."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gpu_cost_model.networks import COLUMNS, UNSEEN_DEVICES, NetworkRun, network_runs
from cost_model.gpu.devices import find_gpu
from cost_model.gpu.kernel_model import GpuKernelModel, GpuPrediction, GpuQuery
from cost_model.gpu.kernels import GpuKernel

SYSTEMS = {"roofline": "roofline", "habitat": "Habitat", "micro": "Li et al.", "neusight": "NeuSight"}

OURS = "this project"
_MS = 1e3


class Errors(NamedTuple):
    """Percentages: by (is unseen, column), and of whole networks by (is unseen, trains)."""

    columns: dict[tuple[bool, str], list[float]]
    whole: dict[tuple[bool, bool], list[float]]


def errors_of_system(runs: Sequence[NetworkRun], system: str) -> Errors:
    """Return the errors of what one of their systems predicted."""
    return _errors((run, run.predicted_by_column(system), run.predicted_ms(system)) for run in runs)


def errors_of_model(runs: Sequence[NetworkRun], model: GpuKernelModel) -> Errors:
    """Return the errors of a model's predictions."""
    prices = prices_of(runs, model)
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


def prices_of(
    runs: Sequence[NetworkRun], model: GpuKernelModel
) -> dict[tuple[GpuKernel, str], GpuPrediction]:
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


def predicted_operators(run: NetworkRun, prices: dict[tuple[GpuKernel, str], GpuPrediction]) -> list[float]:
    """Return milliseconds of one occurrence of each operator."""
    device = find_gpu(run.device)
    return [
        sum(
            call.copied_bytes / device.bandwidth_gb_s / _MS
            if call.kernel is None
            else prices[call.kernel, run.device].latency_us
            for call in operator.calls
        )
        / _MS
        for operator in run.operators
    ]


def _predicted(
    run: NetworkRun, prices: dict[tuple[GpuKernel, str], GpuPrediction]
) -> tuple[dict[str, float], float]:
    sums, whole = dict.fromkeys(COLUMNS, 0.0), 0.0
    for operator, ms in zip(run.operators, predicted_operators(run, prices), strict=True):
        whole += operator.count * ms
        if operator.column is not None:
            sums[operator.column] += operator.count * ms
    return sums, whole


def print_networks(root: Path, model: GpuKernelModel) -> None:
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
        cells = [mean_of(errors.columns[unseen, column]) for unseen in (False, True) for column in COLUMNS]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(
        "\nWhole networks\n\n| | all | seen, inference | seen, training "
        "| unseen, inference | unseen, training | runs |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, errors in found.items():
        every = [error for part in errors.whole.values() for error in part]
        parts = [
            mean_of(errors.whole[unseen, trains]) for unseen in (False, True) for trains in (False, True)
        ]
        print(f"| {name} | {mean_of(every)} | " + " | ".join(parts) + f" | {len(every)} |")
    print_devices(runs, model)


def print_devices(runs: Sequence[NetworkRun], model: GpuKernelModel) -> None:
    """Print errors of whole networks by device, ours and NeuSight's, and which way ours are off."""
    prices = prices_of(runs, model)
    ours: dict[str, list[float]] = collections.defaultdict(list)
    theirs: dict[str, list[float]] = collections.defaultdict(list)
    for run in runs:
        name = find_gpu(run.device).name + (" (unseen)" if run.device in UNSEEN_DEVICES else "")
        ours[name].append(100 * (_predicted(run, prices)[1] / run.measured_ms - 1))
        theirs[name].append(100 * ((run.predicted_ms("neusight") or 0.0) / run.measured_ms - 1))
    print(f"\n| device | runs | {OURS} | NeuSight | {OURS}, signed |\n|---|---|---|---|---|")
    for name, errors in sorted(ours.items()):
        print(
            f"| {name} | {len(errors)} | {np.mean(np.abs(errors)):.1f} | {np.mean(np.abs(theirs[name])):.1f} "
            f"| {np.mean(errors):+.1f} |"
        )
    differences = [
        abs(one) - abs(other) for name in ours for one, other in zip(ours[name], theirs[name], strict=True)
    ]
    rng = np.random.default_rng(0)
    drawn = rng.choice(differences, (10_000, len(differences))).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    num_closer = sum(each < 0 for each in differences)
    print(
        f"\ncloser than NeuSight in {num_closer} of {len(differences)}; difference of means "
        f"{np.mean(differences):+.3f} points, {low:+.1f} to {high:+.1f} in 95 % of bootstraps over runs"
    )


def mean_of(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f}" if values else "–"
