"""The floor that noise sets, what each group of features gives, stages, and speed."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.cost_model.data import COUNTED_US
from benchmarks.cost_model.tables import percent
from cost_model.dataset import Dataset
from cost_model.evaluation import ModelVariant, evaluate
from cost_model.features import FEATURE_GROUPS, FEATURE_NAMES, feature_matrix, roofline_vector
from cost_model.kernel_training import train_kernel_model
from cost_model.stage_model import MIN_STAGES, held_out_corrections, load_stages, train_stage_model
from records import open_store

ABLATED_KEYS = 4000
"""Keys of an ablation, which trains some sixty models."""


def noise_floor(first: Dataset, second: Dataset) -> str:
    """Compare keys that were measured twice, minutes apart."""

    def keyed(dataset: Dataset) -> dict[tuple[str, str, str], float]:
        return {
            (s.query.workload.fingerprint, s.query.backend, s.query.settings): s.latency_us
            for s in dataset.samples
        }

    before, after = keyed(first), keyed(second)
    lines = ["| kernels | keys | median difference | mean | P90 |", "|---|---|---|---|---|"]
    for title, least, most in (("at least 100 µs", COUNTED_US, np.inf), ("shorter", 0.0, COUNTED_US)):
        both = [key for key in before if key in after and least <= before[key] < most]
        if both:
            errors = np.array([abs(after[key] / before[key] - 1) for key in both])
            lines.append(
                f"| {title} | {len(both)} | {np.median(errors):.1%} | {errors.mean():.1%} "
                f"| {np.quantile(errors, 0.9):.1%} |"
            )
    return "\n".join(lines)


def ablations(dataset: Dataset, networks: Mapping[str, Sequence[str]] | None, seed: int) -> str:
    everything = range(len(FEATURE_NAMES))
    chosen = np.random.default_rng(seed).permutation(len(dataset.samples))[:ABLATED_KEYS]
    part = dataset.subset(sorted(map(int, chosen)))
    variants: dict[str, dict[str, Any]] = {  # of `ModelVariant`
        "all, log(latency / roofline)": {},
        "all, log(latency)": {"target": "log_latency"},
        **{
            f"without {name}": {"columns": [c for c in everything if FEATURE_NAMES[c] not in group]}
            for name, group in FEATURE_GROUPS.items()
        },
    }
    lines = [
        "| features and target | shape: median error | MAPE | regret | network: MAPE | regret |",
        "|---|---|---|---|---|---|",
    ]
    for title, options in variants.items():
        figures = evaluate(
            part,
            networks=networks,
            splits=("shape", "network"),
            min_latency_us=COUNTED_US,
            seed=seed,
            variant=ModelVariant(calibrated=False, **options),
        )
        shape, network = figures["shape"], figures.get("network")
        lines.append(
            f"| {title} | {shape.median_ape:.1%} | {shape.mape:.1%} | {percent(shape.regret)} | "
            f"{percent(None if network is None else network.mape)} "
            f"| {percent(None if network is None else network.regret)} |"
        )
    return f"On {len(part.samples)} keys drawn at random.\n\n" + "\n".join(lines)


def stage_table(path: str, seed: int) -> str:
    """Compare the corrected sum of parts with the plain sum, on stages of operators never seen."""
    with open_store(path) as store:
        samples = load_stages(store.iterate())
    if len(samples) < MIN_STAGES:
        return f"{len(samples)} stages with measured parts: too few to learn from."
    truth = np.array([sample.latency_us for sample in samples])
    plain = np.array([sample.query.plain_us for sample in samples])
    corrected = plain * np.exp(held_out_corrections(samples, seed=seed))
    factor = math.exp(train_stage_model(samples, seed=seed).half_width)
    inside = (corrected / factor <= truth) & (truth <= corrected * factor)
    lines = [
        "| stages | count | plain sum: median error | MAPE | bias | corrected: median error | MAPE | bias "
        "| 90 % intervals hold |",
        "|---" * 9 + "|",
    ]
    for title, counted in (
        ("all", truth > 0),
        ("at least 100 µs", truth >= COUNTED_US),
        ("at least 1 ms", truth >= 1000),
    ):
        if not counted.any():
            continue
        cells = []
        for guess in (plain, corrected):
            ratio = guess[counted] / truth[counted]
            errors = np.abs(ratio - 1)
            cells.append(f"{np.median(errors):.1%} | {errors.mean():.1%} | {np.median(ratio) - 1:+.1%}")
        lines.append(
            f"| {title} | {int(counted.sum())} | {' | '.join(cells)} | {inside[counted].mean():.1%} |"
        )
    return "\n".join(lines)


def speed(dataset: Dataset, seed: int) -> str:
    started = time.perf_counter()
    model = train_kernel_model(dataset, seed=seed, num_threads=1)
    training_s = time.perf_counter() - started
    queries = (dataset.queries * (50_000 // len(dataset.samples) + 1))[:50_000]
    started = time.perf_counter()
    model.predict_arrays(queries)
    whole_s = time.perf_counter() - started
    features, bounds, novelty = feature_matrix(queries), roofline_vector(queries), model.novelty(queries)
    started = time.perf_counter()
    model.predict_features(features, bounds, novelty)
    forest_s = time.perf_counter() - started
    return (
        f"Training on {len(dataset.samples)} keys with one thread took {training_s:.1f} s. Predicting 50 000 "
        f"candidates in one batch took {whole_s:.2f} s from workloads ({50_000 / whole_s:,.0f} a second; "
        f"{len(dataset.samples)} distinct) and {forest_s:.2f} s from features "
        f"({50_000 / forest_s:,.0f} a second)."
    )
