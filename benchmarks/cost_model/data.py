"""The records that the model is trained and judged on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from cost_model.dataset import Dataset, combination_groups, load_dataset, shape_groups
from cost_model.features import Query, anchor_of
from records import Record, open_store
from records.files.exchange import read_records

SAMPLE = Path(__file__).parents[2] / "tests" / "cost_model" / "kernels_amd-epyc.jsonl"

COUNTED_US = 100.0

SPLITS = ("shape", "combination", "network")


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
