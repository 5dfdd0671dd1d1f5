"""Layouts that Megatron-Bridge publishes with their throughput: written down, whether they fit, and ranked.

Of 235 rows some have no system's name, those of a heading of their own within a table. Data types in four
bits are priced as fp8. What is recomputed, and how layers are split unevenly, is not published with them.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import spearmanr

from benchmarks.published.layouts import PublishedRun, Simulated, simulate
from tessel.architectures.gpu_sheets import find_sheet
from tessel.architectures.shape import Recipe
from tessel.errors import ScheduleError

MODELS = {
    "LLAMA3_8B": "llama-3.1-8b",
    "LLAMA3_70B": "llama-3.1-70b",
    "LLAMA3.1_405B": "llama-3.1-405b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "GPT OSS 120B": "gpt-oss-120b",
    "DeepSeekV3": "deepseek-v3",
    "Kimi_K2": "kimi-k2",
    "Nemotron_3_Nano": "nemotron-3-nano",
    "Nemotron_3_Super": "nemotron-3-super",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A layout, its tokens a second and device, and what is predicted, or why it is not."""

    model: str
    gpu: str
    dtype: str
    tokens_per_s: float
    run: PublishedRun | None
    ours: Simulated | None
    reason: str = ""

    @property
    def ours_tokens_per_s(self) -> float:
        """Predicted throughput of a device."""
        if self.run is None or self.ours is None:
            return 0.0
        tokens = self.run.global_batch * self.run.recipe.tokens
        return tokens / (self.ours.step_us / 1e6) / self.run.devices

    @property
    def fits(self) -> bool:
        """Whether the fullest device has room, as every published layout had."""
        if self.ours is None:
            return False
        return max(self.ours.memory_bytes) <= find_sheet(self.gpu).memory_gib * 2**30


def load_rows(folder: Path) -> tuple[list[Row], int]:
    """Return the rows that name a system and what is predicted of each, and how many name none."""
    rows, unnamed = [], 0
    with (folder / "megatron_bridge_perf.csv").open() as file:
        for each in csv.DictReader(file):
            if not each["System"].startswith("DGX-"):
                unnamed += 1
                continue
            rows.append(_row(each))
    return rows, unnamed


def _row(each: dict[str, str]) -> Row:
    gpu = each["System"].removeprefix("DGX-").lower()
    tokens = float(re.findall(r"[\d.]+", each["Tokens / sec / GPU"].replace(",", ""))[0])
    name = (each["model"], gpu, each["Precision"], tokens)
    try:
        run = _run(each)
        return Row(*name, run, simulate(run, find_sheet(gpu)))
    except (ScheduleError, ValueError) as error:
        return Row(*name, None, None, str(error))


def _run(each: dict[str, str]) -> PublishedRun:
    def count(name: str) -> int:
        found = re.match(r"\d+", each[name] or "")
        return max(1, int(found[0])) if found else 1

    devices, tensor, expert = count("#-GPUs"), count("TP"), count("EP")
    replicas = devices // (tensor * count("PP"))
    if expert > 1 and replicas % expert:
        # Experts are not split by tensor parallelism there, and here they are: of the same bytes and
        # operations is a degree of expert parallelism that is smaller by as much.
        expert //= tensor
    is_sharded = (each["FSDP"] or "0") not in ("0", "n/a", "") and count("PP") == 1 and count("FSDP") > 1
    return PublishedRun(
        model=MODELS[each["model"]],
        devices=devices,
        recipe=Recipe(
            tokens=int(each["Sequence Length"]),
            dtype="bf16" if each["Precision"] == "BF16" else "fp8",
            overlaps_tensor=True,
        ),
        tensor_parallel=tensor,
        pipeline=count("PP"),
        context_parallel=count("CP"),
        expert_parallel=expert,
        chunks=count("VP") if count("PP") > 1 else 1,
        micro_batch=count("MBS"),
        global_batch=count("GBS"),
        sharding="parameters" if is_sharded else "optimizer",
    )


def rank_correlations(rows: list[Row]) -> list[tuple[str, str, int, float]]:
    """Return Spearman's coefficient of predicted and published throughput by model and GPU, of three or more.

    Equal layouts of several releases count once, with the fastest of them.
    """
    groups: dict[tuple[str, str], dict[tuple[object, str], tuple[float, float]]] = defaultdict(dict)
    for row in rows:
        if row.run is None:
            continue
        known = groups[row.model, row.gpu]
        key = (row.run, row.dtype)
        known[key] = max(known.get(key, (0.0, 0.0)), (row.tokens_per_s, row.ours_tokens_per_s))
    found = []
    for (model, gpu), pairs in sorted(groups.items()):
        if len(pairs) >= 3:
            published, ours = zip(*pairs.values(), strict=True)
            found.append((model, gpu, len(pairs), float(spearmanr(published, ours).statistic)))
    return found
