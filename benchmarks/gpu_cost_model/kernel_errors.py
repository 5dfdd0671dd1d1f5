"""Errors and coverage of predicted kernels, by family."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.gpu_cost_model.samples import read_samples
from cost_model.gpu.kernel_model import QUANTITIES, GpuKernelModel, GpuPrediction
from cost_model.gpu.kernels import Family
from cost_model.gpu.training import GpuSample


def print_families(model: GpuKernelModel) -> None:
    """Print what training itself found when it held out each known device in turn."""
    print("Known devices held out in turn, by training itself\n")
    print(
        "| family | mean error | share of the blind forest | half-width, known | unknown "
        "| for a doubling, at most |"
    )
    print("|---|---|---|---|---|---|")
    for family, found in model.manifest.families.items():
        widths = found.known_widths.values()
        ends = zip(found.widening, QUANTITIES, found.least, found.most, strict=True)
        widening, quantity = max((width, name) for width, name, least, most in ends if most > least)
        print(
            f"| {family} | {100 * (np.exp(found.new_device_error) - 1):.1f} % | {found.blind_share:.2f} "
            f"| × {np.exp(min(widths)):.2f} to {np.exp(max(widths)):.2f} "
            f"| × {np.exp(found.unknown_width):.2f} | × {np.exp(widening):.2f} ({quantity}) |"
        )
    print()


def print_kernels(root: Path, model: GpuKernelModel) -> None:
    """Print errors and coverage of the kernels that were held out, by family and kind of device."""
    paths = [
        root / "data/dataset/test" / f"{name}.csv" for name in ("bmm", "linear", "elem", "softmax", "ln")
    ]
    samples = list(read_samples(paths))
    predictions = model.predict([sample.query for sample in samples])
    trained_on = {name for family in model.manifest.families.values() for name in family.overheads_us}
    print("\nKernels that were held out\n")
    print(
        "| family | device | kernels | MAPE | median error | intervals cover | median width "
        "| in range: kernels | cover | width | beyond: cover | width |"
    )
    print("|---|" + "---|" * 11)
    all_pairs = list(zip(samples, predictions, strict=True))
    for family in (*Family, None):
        for known in (True, False):
            pairs = [
                (sample, prediction)
                for sample, prediction in all_pairs
                if family in (None, sample.query.kernel.family)
                and (sample.query.device.name in trained_on) == known
            ]
            if pairs:
                _print_row("all" if family is None else str(family), "known" if known else "unknown", pairs)
    for device in sorted({sample.query.device.name for sample in samples} - trained_on):
        pairs = [pair for pair in all_pairs if pair[0].query.device.name == device]
        _print_row("all", device, pairs)


def _print_row(family: str, device: str, pairs: list[tuple[GpuSample, GpuPrediction]]) -> None:
    truth = np.array([sample.latency_us for sample, _ in pairs])
    errors = np.abs(np.array([prediction.latency_us for _, prediction in pairs]) / truth - 1)
    low, high = (
        np.array([getattr(prediction, end) for _, prediction in pairs]) for end in ("low_us", "high_us")
    )
    held, widths = (low <= truth) & (truth <= high), high / low
    inside = np.array([prediction.out_of_range == 0 for _, prediction in pairs])
    every = np.ones(len(pairs), dtype=bool)
    print(
        f"| {family} | {device} | {len(pairs)} | {100 * errors.mean():.1f} % "
        f"| {100 * np.median(errors):.1f} % | {_cells(held, widths, every)} | {inside.sum()} "
        f"| {_cells(held, widths, inside)} | {_cells(held, widths, ~inside)} |"
    )


def _cells(held: np.ndarray, widths: np.ndarray, chosen: np.ndarray) -> str:
    """Return coverage and median width of those that are chosen."""
    if not chosen.any():
        return "– | –"
    return f"{100 * held[chosen].mean():.1f} % | {np.median(widths[chosen]):.2f} ×"
