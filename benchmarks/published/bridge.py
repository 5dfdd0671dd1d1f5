"""Layouts that Megatron-Bridge publishes with their throughput: written down, whether they fit, and ranked.

What a run recomputes, offloads and trains, and how its layers are split unevenly, is not in the published
table, and in `bridge_recipes.csv` here: figures of the recipes of the release that made the row. All of them
sum gradients in 16 bits. Data types in four bits are priced as fp8.

Sources: NVIDIA-NeMo/Megatron-Bridge (Apache-2.0), docs/performance-summary*.md, and scripts/performance at
v0.2.0rc6 (release 25.09), v0.3.0 (26.02), v0.3.1 (26.02.01), v0.4.0 (26.04), v0.4.1 (26.04.01), v0.5.0
(26.06) and v0.5.1 (26.06.01). Where no recipe of a row's own release has its degrees, the next release's is
taken: DeepSeek-V3 of 26.04.01 on B300 and B200, GPT-OSS of 26.02.01 on B200.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from scipy.stats import spearmanr

from benchmarks.published.layouts import PublishedRun, Simulated, simulate
from tessel.architectures.gpu_sheets import find_sheet
from tessel.architectures.shape import Recipe
from tessel.errors import ScheduleError
from tessel.planning.cluster import OPTIMIZERS, Optimizer

RECIPES = Path(__file__).with_name("bridge_recipes.csv")

UNNAMED = ("gb200", "b200", "h100")
"""Systems of the tables of release 25.09, in their order: each has its own heading there, and no column."""

ADAPTER_RANK = 16
"""Of the LoRA recipes of Llama-3 70B, on queries, keys and values alone."""

ADAM = OPTIMIZERS["adam-bf16-gradients"]

HALF_STATE = msgspec.structs.replace(ADAM, name="half-state", state_ratio=4.0)
"""Four bytes of master weights, four of moments: two in 16 bits (DeepSeek-V3), or Muon's one (Kimi-K2)."""

STATES: dict[str, Optimizer] = {"DeepSeekV3": HALF_STATE, "Kimi_K2": HALF_STATE}

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
    release: str
    job: str
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


def load_rows(folder: Path) -> list[Row]:
    """Return the published rows and what is predicted of each."""
    recipes = {}
    with RECIPES.open() as file:
        for each in csv.DictReader(file):
            for release in each["releases"].split():
                recipes[release, each["model"], each["gpu"], each["dtype"], each["devices"]] = each
    return [_row(each, recipes) for each in _published(folder / "megatron_bridge_perf.csv")]


def _published(path: Path) -> Iterator[dict[str, str]]:
    """Yield rows by column; a line that names columns anew begins a table of the next unnamed system."""
    systems = iter(UNNAMED)
    names: list[str] = []
    gpu = ""
    with path.open() as file:
        for line in csv.reader(file):
            if line[0] == "#-GPUs":
                gpu = next(systems) if names else ""
                names = line
                continue
            each = dict(zip(names, line, strict=True))
            if gpu:
                # Behind a figure, brackets have that of another run; behind a model, how it dropped tokens.
                each |= {"model": each["Model"].split(" (")[0], "Precision": "FP8", "release": "25.09"}
            each["gpu"] = gpu or each["System"].removeprefix("DGX-").lower()
            each["release"] = each["release"].split()[0]
            yield each


_Key = tuple[str, str, str, str, str]


def _row(each: dict[str, str], recipes: dict[_Key, dict[str, str]]) -> Row:
    tokens = float(re.findall(r"[\d.]+", each["Tokens / sec / GPU"].replace(",", ""))[0])
    key = (each["release"], each["model"], each["gpu"], each["Precision"], each["#-GPUs"])
    recipe = recipes.get(key, _PLAIN)
    name = (each["model"], each["gpu"], each["Precision"], each["release"], recipe["job"], tokens)
    try:
        run = _run(each, recipe)
        return Row(*name, run, simulate(run, find_sheet(each["gpu"])))
    except (ScheduleError, ValueError) as error:
        return Row(*name, None, None, str(error))


_PLAIN = {"job": "pretrain", "recompute": "", "offloaded": "0", "stages": ""}


def sizes_of(text: str) -> tuple[int, ...]:
    """Return the layers of each stage, of `15x4+1`."""
    found: list[int] = []
    for term in filter(None, text.split("+")):
        *times, size = map(int, term.split("x"))
        found += [size] * (times[0] if times else 1)
    return tuple(found)


def _run(each: dict[str, str], recipe: dict[str, str]) -> PublishedRun:
    def count(name: str) -> int:
        found = re.match(r"\d+", each[name] or "")
        return max(1, int(found[0])) if found else 1

    devices, tensor, expert = count("#-GPUs"), count("TP"), count("EP")
    replicas = devices // (tensor * count("PP"))
    if expert > 1 and replicas % expert:
        # Experts are not split by tensor parallelism there, and here they are: of the same bytes and
        # operations is a degree of expert parallelism that is smaller by as much.
        expert //= tensor
    is_sharded = count("FSDP") > 1 and count("PP") == 1
    return PublishedRun(
        model=MODELS[each["model"]],
        devices=devices,
        recipe=Recipe(
            tokens=int(each["Sequence Length"]),
            dtype="bf16" if each["Precision"] == "BF16" else "fp8",
            recompute=frozenset(recipe["recompute"].split()),
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
        optimizer=STATES.get(each["model"], ADAM),
        stages=sizes_of(recipe["stages"]),
        adapter_rank=ADAPTER_RANK if recipe["job"] == "lora" else 0,
        offloaded=int(recipe["offloaded"]),
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
