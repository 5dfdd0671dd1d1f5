"""MLPerf training of GPT-3 175B and Llama-3.1 405B: steps from the cost model alone, and from two sizes.

From two sizes: a step is a constant and a time for each micro-batch, taken from the runs with the fewest and
the most micro-batches of a system, which are not held against themselves.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from benchmarks.published.layouts import PublishedRun, Simulated, simulate
from tessel.architectures.gpu_sheets import find_sheet
from tessel.architectures.shape import Recipe

MODELS = {"gpt3": "gpt-3-175b", "llama31_405b": "llama-3.1-405b"}
SYSTEMS = (("eos", "h100"), ("nebius", "h200"), ("carina", "gb200"), ("tyche", "gb200"), ("hsg", "gb200"))
"""Beginnings of systems' names, and their GPU."""


@dataclass(frozen=True, slots=True)
class Row:
    """Runs of one size of a system: the median of their steps, and what is predicted."""

    system: str
    gpu: str
    run: PublishedRun
    real_s: float
    ours: Simulated

    @property
    def ours_s(self) -> float:
        """Predicted step."""
        return self.ours.step_us / 1e6


def load_rows(folder: Path) -> list[Row]:
    """Read the runs that say their layout and step and whose data type is planned, one of each size."""
    found: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    with (folder / "mlperf_big.csv").open() as file:
        for row in csv.DictReader(file):
            if row["tp"] and float(row["step_median"] or 0) and "fp4" not in row["config"]:
                found[row["round"], row["system"]].append(row)
    rows: list[Row] = []
    for (_, system), every in sorted(found.items()):
        gpu = next((gpu for prefix, gpu in SYSTEMS if system.startswith(prefix)), "")
        if not gpu:
            continue
        run = _run(every[0])
        steps = sorted(float(row["step_median"]) for row in every)
        step_s = steps[len(steps) // 2]
        if not any((row.run, row.real_s) == (run, step_s) for row in rows):  # submitted to two rounds
            rows.append(Row(system, gpu, run, step_s, simulate(run, find_sheet(gpu))))
    return rows


def _run(row: dict[str, str]) -> PublishedRun:
    # Of nodes and devices a node some rows say the first alone, in the name of their config.
    nodes, node_devices = row["config"].removeprefix("config_").split("_")[1].split("x")[:2]
    return PublishedRun(
        model=MODELS[row["bench"]],
        devices=int(nodes) * int(node_devices),
        recipe=Recipe(
            tokens=int(row["seq"]),
            dtype="fp8",
            overlaps_tensor=True,
        ),
        tensor_parallel=int(row["tp"]),
        pipeline=int(row["pp"]),
        context_parallel=int(row["cp"] or 1),
        chunks=int(row["vp"] or 1),
        micro_batch=int(row["mbs"]),
        global_batch=int(row["gbs"]),
    )


def from_two_sizes(rows: list[Row]) -> list[tuple[Row, float]]:
    """Return the other rows of each GPU and model with three sizes or more, and their step as a line says."""
    found = []
    groups: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.gpu, row.run.model, row.run.tensor_parallel].append(row)
    for group in groups.values():
        ordered = sorted(group, key=lambda row: row.run.micro_batches)
        low, high = ordered[0], ordered[-1]
        if len(ordered) < 3 or low.run.micro_batches == high.run.micro_batches:
            continue
        each_s = (high.real_s - low.real_s) / (high.run.micro_batches - low.run.micro_batches)
        for row in ordered[1:-1]:
            found.append((row, low.real_s + each_s * (row.run.micro_batches - low.run.micro_batches)))
    return found
