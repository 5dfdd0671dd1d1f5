"""What a model of few records gives: against its forest alone, and against the nearest measured kernel."""

from __future__ import annotations

import numpy as np

from benchmarks.cost_model.nearest_kernel import nearest_labels
from cost_model.dataset import Dataset
from cost_model.evaluation import folds_by_split
from cost_model.features import feature_matrix, roofline_vector
from cost_model.kernel_training import train_kernel_model

NUM_RECORDS = 500
MIN_US = (0.0, 20.0, 100.0)


def few_records_table(
    dataset: Dataset, *, networks: dict[str, list[str]] | None, seed: int, num_records: int = NUM_RECORDS
) -> str:
    """Return a table of errors on held-out programs, by models of `num_records` others drawn at random.

    Intervals that hold less often are narrower for that alone. The last column is the median width that they
    have when all are widened or narrowed, by one factor in logarithms, until 90 % hold.
    """
    lines = [
        "| held out | at least | keys | model: median error | MAPE | forest alone | nearest kernel alone "
        "| 90 % intervals hold | median width | if 90 % held |",
        "|---" * 10 + "|",
    ]
    for split, folds in folds_by_split(dataset, networks=networks, seed=seed).items():
        if split not in ("shape", "combination", "network"):
            continue
        parts = [_held_out(dataset, folds == fold, seed, num_records) for fold in range(int(folds.max()) + 1)]
        truth, latency, low, high, forest, nearest = np.concatenate(parts, axis=1)
        for least in MIN_US:
            counted = truth >= least
            errors, of_forest, of_nearest = (
                np.abs(guess[counted] / truth[counted] - 1) for guess in (latency, forest, nearest)
            )
            inside = ((low <= truth) & (truth <= high))[counted].mean()
            width = np.median((high / low)[counted])
            misses = np.abs(np.log(latency / truth)) / (np.log(high / low) / 2)
            factor = np.quantile(misses[counted], 0.9)
            title = f"{split} | {least:.0f} µs | {counted.sum()}"
            lines.append(
                f"| {title} | {np.median(errors):.1%} | {errors.mean():.1%} "
                f"| {of_forest.mean():.1%} | {of_nearest.mean():.1%} | {inside:.1%} "
                f"| {width:.2f} × | {width**factor:.2f} × |"
            )
    return "\n".join(lines)


def _held_out(dataset: Dataset, held_out: np.ndarray, seed: int, num_records: int) -> np.ndarray:
    """Return truth, prediction, low, high, the forest's and the neighbour's answer: shape (6, num_asked)."""
    rest = np.flatnonzero(~held_out)
    chosen = np.random.default_rng(seed).permutation(rest)[:num_records]
    known = dataset.subset(sorted(map(int, chosen)))
    backends = {query.backend for query in known.queries}
    asked = dataset.subset(
        i for i in map(int, np.flatnonzero(held_out)) if dataset.samples[i].query.backend in backends
    )
    if not asked.samples:
        return np.zeros((6, 0))
    model = train_kernel_model(known, seed=seed)
    features, bounds = feature_matrix(asked.queries), roofline_vector(asked.queries)
    labels = np.log(known.latencies_us) - np.log(roofline_vector(known.queries))
    nearest = nearest_labels(feature_matrix(known.queries), labels, features)
    return np.stack(
        [
            asked.latencies_us,
            *model.predict_arrays(asked.queries),
            bounds * np.exp(model.mean.inplace_predict(features)),
            bounds * np.exp(nearest),
        ]
    )
