"""How well the cost model predicts what it has not seen, and what it costs to train and to ask.

    tessel records collect --threads 1 --records out/training.db --save-networks out/networks.json
    tessel records collect --threads 1 --records out/again.db --max-samples 200 --seed 1
    python -m benchmarks.cost_model --records out/training.db --networks out/networks.json \
        --again out/again.db

Prints, as Markdown: what the records hold; figures on held-out workloads, shapes, combinations of operators
and networks, and where the errors are; how far stages are from the sum of their parts; the noise floor, from
keys that `--again` measured a second time; what the figures become without the roofline and without each
group of features; and the time of training and of predictions. Without `--records` the small fixed sample of
the tests is used.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cost_model import Dataset, Query, SplitFigures, evaluate, load_dataset, train_kernel_model
from cost_model.dataset import combination_groups, network_groups, shape_groups
from cost_model.evaluation import HeldOut, ModelVariant, figures_of, folds_by_split, predict_held_out
from cost_model.features import FEATURE_GROUPS, FEATURE_NAMES, anchor_of, feature_matrix, roofline_vector
from cost_model.stage_model import MIN_STAGES, held_out_corrections, load_stages, train_stage_model
from records import Record, open_store
from records.files.exchange import read_records

SAMPLE = Path(__file__).parents[1] / "tests" / "cost_model" / "kernels_amd-epyc.jsonl"
COUNTED_US = 100.0
ABLATED_KEYS = 4000
"""Keys of an ablation, which trains some sixty models."""
SPLITS = ("shape", "combination", "network")
TARGETS = (
    ("shape", "median_ape", 0.08, "at most"),
    ("shape", "mape", 0.15, "at most"),
    ("network", "mape", 0.25, "at most"),
    *((split, "regret", 0.03, "at most") for split in SPLITS),
    *((split, "choice_accuracy", 0.90, "at least") for split in SPLITS),
)


def load(path: str) -> Dataset:
    with open_store(path) as store:
        return load_dataset(store.iterate())


def load_sample() -> Dataset:
    return load_dataset(
        Record(record_id=number, workload=workload, measurement=measurement)
        for number, (workload, measurement) in enumerate(read_records(SAMPLE), start=1)
    )


def summary(dataset: Dataset) -> str:
    lines = [
        "| backend | keys | at least 100 µs | P10 | median | P90 | longest |",
        "|---|---|---|---|---|---|---|",
    ]
    backends = np.array([sample.query.backend for sample in dataset.samples])
    for backend in (*sorted(set(backends)), "all"):
        us = dataset.latencies_us[(backends == backend) | (backend == "all")]
        low, median, high = np.quantile(us, (0.1, 0.5, 0.9))
        counted = int((us >= COUNTED_US).sum())
        lines.append(
            f"| {backend} | {len(us)} | {counted} | {low:.1f} µs | {median:.1f} µs | {high:.0f} µs "
            f"| {us.max() / 1e3:.1f} ms |"
        )
    anchors = Counter(anchor_name(sample.query) for sample in dataset.samples)
    shapes, combinations = len(set(shape_groups(dataset))), len(set(combination_groups(dataset)))
    return "\n".join(
        [
            *lines,
            "",
            f"{len(dataset.samples)} keys, {shapes} shapes of the operator that does most, {combinations} "
            "combinations of operators. "
            "By that operator: "
            + ", ".join(f"{name} {count}" for name, count in anchors.most_common(16))
            + ".",
        ]
    )


def anchor_name(query: Query) -> str:
    anchor = anchor_of(query.workload)
    return "none" if anchor is None else anchor.name


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


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


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


def print_splits(
    dataset: Dataset, networks: Mapping[str, Sequence[str]] | None, splits: Sequence[str], seed: int
) -> None:
    folds = folds_by_split(dataset, networks=networks, seed=seed)
    figures = {}
    for split in splits:
        if split not in folds:
            continue
        held_out = predict_held_out(dataset, folds[split], seed=seed)
        counted = (folds[split] >= 0) & (dataset.latencies_us >= COUNTED_US)
        figures[split] = figures_of(dataset, held_out, counted=counted)
        if split == "network" and networks:
            groups, title = network_groups(dataset, networks), "network"
        else:
            groups, title = sizes_of_combinations(dataset), "operators"
        print(f"### Unseen {split}s\n\n{split_table({split: figures[split]})}\n")
        print(errors_by_group(dataset, held_out, counted, title, groups) + "\n")
        print(errors_by_kind(dataset, held_out, counted) + "\n", flush=True)
    print("### All splits\n\n" + split_table(figures) + "\n\n" + verdicts(figures) + "\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", help="the training set; the tests' sample if left out")
    parser.add_argument("--networks", type=Path, help="JSON of network -> fingerprints")
    parser.add_argument("--again", help="records of a second measurement of some keys")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--splits", nargs="+", choices=SPLITS, default=SPLITS, help="what is held out in turn"
    )
    parser.add_argument("--splits-only", action="store_true")
    parser.add_argument("--no-ablations", action="store_true")
    parser.add_argument("--ablations-only", action="store_true")
    arguments = parser.parse_args()
    dataset = load(arguments.records) if arguments.records else load_sample()
    networks = None
    if arguments.networks:
        networks = msgspec.json.decode(arguments.networks.read_bytes(), type=dict[str, list[str]])
    if arguments.ablations_only:
        print("### Ablations\n\n" + ablations(dataset, networks, arguments.seed) + "\n")
        return
    if not arguments.splits_only:
        print("### Data\n\n" + summary(dataset) + "\n", flush=True)
        if networks:
            print(network_table(dataset, networks) + "\n")
        if arguments.again:
            print("### Noise floor\n\n" + noise_floor(dataset, load(arguments.again)) + "\n")
    print_splits(dataset, networks, arguments.splits, arguments.seed)
    if arguments.splits_only:
        return
    if arguments.records:
        print("### Stages\n\n" + stage_table(arguments.records, arguments.seed) + "\n", flush=True)
    print("### Speed\n\n" + speed(dataset, arguments.seed) + "\n", flush=True)
    if not arguments.no_ablations:
        print("### Ablations\n\n" + ablations(dataset, networks, arguments.seed) + "\n")


if __name__ == "__main__":
    main()
