"""Errors by split, network, kind of operator and group, and what was aimed at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.cost_model.data import SPLITS, anchor_name
from cost_model.dataset import Dataset
from cost_model.evaluation import HeldOut, SplitFigures, figures_of

TARGETS = (
    ("shape", "median_ape", 0.08, "at most"),
    ("shape", "mape", 0.15, "at most"),
    ("network", "mape", 0.25, "at most"),
    *((split, "regret", 0.03, "at most") for split in SPLITS),
    *((split, "choice_accuracy", 0.90, "at least") for split in SPLITS),
)


def network_table(dataset: Dataset, networks: Mapping[str, Sequence[str]]) -> str:
    found = Counter(sample.query.workload.fingerprint for sample in dataset.samples)
    rows = [
        f"| {name} | {sum(found[fingerprint] for fingerprint in set(members))} |"
        for name, members in sorted(networks.items())
    ]
    return "\n".join(["| network | keys measured |", "|---|---|", *rows])


def split_table(figures: Mapping[str, SplitFigures]) -> str:
    names = (
        ("num_samples", "keys"),
        ("median_ape", "median error"),
        ("mape", "MAPE"),
        ("p90_ape", "P90 error"),
        ("within_10", "within 10 %"),
        ("within_20", "within 20 %"),
        ("spearman", "Spearman"),
        ("num_choices", "workloads of several backends"),
        ("regret", "decision regret"),
        ("choice_accuracy", "choice right where the gap is over 10 %"),
        ("coverage_90", "90 % intervals hold"),
        ("noise_floor", "spread of the samples themselves"),
    )
    lines = ["| figure | " + " | ".join(figures) + " |", "|---|" + "---|" * len(figures)]
    for name, title in names:
        cells = []
        for split in figures.values():
            value = getattr(split, name)
            plain = name in ("num_samples", "num_choices", "spearman")
            cells.append(
                "–"
                if value is None
                else f"{value:.3g}"
                if plain and name == "spearman"
                else str(value)
                if plain
                else f"{value:.1%}"
            )
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdicts(figures: Mapping[str, SplitFigures]) -> str:
    lines = ["| target | figure | met |", "|---|---|---|"]
    for split, name, bound, sense in TARGETS:
        value = getattr(figures[split], name) if split in figures else None
        if value is not None:
            met = value <= bound if sense == "at most" else value >= bound
            lines.append(
                f"| {name} on unseen {split}s {sense} {bound:.0%} | {value:.1%} | {'yes' if met else 'no'} |"
            )
    for split, found in figures.items():
        met = 0.85 <= found.coverage_90 <= 0.95
        lines.append(
            f"| coverage on unseen {split}s 85 to 95 % | {found.coverage_90:.1%} | {'yes' if met else 'no'} |"
        )
    return "\n".join(lines)


def errors_by_group(
    dataset: Dataset, held_out: HeldOut, counted: np.ndarray, title: str, groups: Sequence[str]
) -> str:
    """Give the figures of each group of held-out samples."""
    lines = [
        f"| {title} | keys | median error | MAPE | choices | regret | right where the gap is over 10 % "
        "| 90 % intervals hold |",
        "|---" * 8 + "|",
    ]
    names = np.array(groups)
    for name in sorted(set(names[counted])):
        found = figures_of(dataset, held_out, counted=counted & (names == name))
        lines.append(
            f"| {name} | {found.num_samples} | {found.median_ape:.1%} | {found.mape:.1%} "
            f"| {found.num_choices} | {percent(found.regret)} | {percent(found.choice_accuracy)} "
            f"| {found.coverage_90:.1%} |"
        )
    return "\n".join(lines)


def sizes_of_combinations(dataset: Dataset) -> list[str]:
    """Tell a lone operator, which is held out as an operator never seen, from a combination of several."""
    return ["several" if len(query.workload.operators) > 1 else "one" for query in dataset.queries]


def errors_by_kind(dataset: Dataset, held_out: HeldOut, counted: np.ndarray) -> str:
    """Say where the errors are: by backend and anchor, most keys first."""
    predicted, low, high = held_out
    ratio = predicted / dataset.latencies_us
    inside = (low <= dataset.latencies_us) & (dataset.latencies_us <= high)
    groups: dict[tuple[str, str], list[int]] = {}
    for index in np.flatnonzero(counted):
        query = dataset.samples[index].query
        groups.setdefault((query.backend, anchor_name(query)), []).append(int(index))
    lines = [
        "| backend | operator that does most | keys | median error | MAPE | bias | covered |",
        "|---|---|---|---|---|---|---|",
    ]
    for (backend, anchor), indices in sorted(groups.items(), key=lambda item: -len(item[1]))[:20]:
        errors = np.abs(ratio[indices] - 1)
        lines.append(
            f"| {backend} | {anchor} | {len(indices)} | {np.median(errors):.1%} | {errors.mean():.1%} "
            f"| {np.median(ratio[indices]) - 1:+.1%} | {inside[indices].mean():.0%} |"
        )
    return "\n".join(lines)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
