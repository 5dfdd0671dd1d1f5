"""Schedules that Primus measured on AMD's GPUs, and the same simulated: `-m benchmarks.published.primus`.

The page names models, GPUs, PP and EP, and neither layers nor batch. They are inferred:
- Llama-2 7B: 16 layers and 32 micro-batches of 4096 tokens, as in Primus's own test of pipelines. Operations
  a token, TFLOPS over tokens a second, agree to 0.1 %.
- Qwen3: all 94 layers by the same quotient, to 0.2 % with attention's causal half; one sequence a
  micro-batch, since 1F1B holds 33.3 GiB more than V-Min; predicted are 33.7, and 68.6 of two sequences.
  Primus's script has a global batch of 256 on eight nodes; on the four used that is 32 micro-batches, or 16
  if it went with the nodes: both are run.

Source: AMD-AGI/Primus (MIT), docs_deprecated/tech_blogs/primus_pipeline,
tests/trainer/test_megatron_trainer_zero_bubble.yaml, examples/customer_package. Nothing is fitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from benchmarks.published.layouts import PublishedRun, cluster_of, layout_of, profile_of
from tessel.architectures.gpu_sheets import GpuSheet, find_sheet
from tessel.architectures.shape import Recipe
from tessel.planning.cluster import OPTIMIZERS, Cluster
from tessel.planning.costs.training_step import build_step, estimate_step
from tessel.planning.job import Job
from tessel.planning.orders.timed_order import schedule_in_order

GIB = 2**30

LLAMA = PublishedRun(
    model="llama-2-7b", devices=8, pipeline=8, blocks=16, global_batch=32, recipe=Recipe(tokens=4096)
)
QWEN = PublishedRun(
    model="qwen3-235b-a22b",
    devices=32,
    pipeline=4,
    expert_parallel=8,
    global_batch=256,
    recipe=Recipe(tokens=4096),
)

LLAMA_ROWS = (
    ("1f1b", 10057.0, 16.26),
    ("interleaved-2", 10974.0, 21.40),
    ("zb-h1", 11411.0, 16.59),
    ("zb-v", 11347.0, 18.11),
    ("v-half", 10894.0, 14.06),
    ("v-min", 8897.2, 11.90),
)
QWEN_ROWS = (
    ("1f1b", 2742.4, 261.58),
    ("interleaved-3", 3012.1, 287.13),
    ("interleaved-4", 3024.5, 278.82),
    ("zb-h1", 2963.1, 272.13),
    ("zb-v", 2952.7, 284.36),
    ("v-half", 2912.9, 257.84),
    ("v-min", 2200.6, 228.28),
)
"""Schedule, tokens a second and device, GiB, as published; zb-h1 is zbb or zero-bubble there."""

RUNS = (
    ("mi300x", LLAMA, LLAMA_ROWS),
    ("mi355x", QWEN, QWEN_ROWS),
    ("mi355x", replace(QWEN, global_batch=128), QWEN_ROWS),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule: throughput and memory over 1F1B's as published, and as simulated.

    Attributes:
        name: of the schedule.
        speed: tokens a second over 1F1B's, published.
        ours_speed: the same, simulated.
        memory: of the fullest device over 1F1B's, published.
        ours_memory: the same, simulated.
        tokens_per_s: of a device, published.
        ours_tokens_per_s: the same, simulated.
    """

    name: str
    speed: float
    ours_speed: float
    memory: float
    ours_memory: float
    tokens_per_s: float
    ours_tokens_per_s: float


def load_rows(gpu: str, run: PublishedRun, published: Sequence[tuple[str, float, float]]) -> list[Row]:
    """Return the rows of a run; its first is 1F1B's."""
    ours = [_simulate(run, find_sheet(gpu), name) for name, _, _ in published]
    return [
        Row(
            name=name,
            speed=tokens_per_s / published[0][1],
            ours_speed=own[0] / ours[0][0],
            memory=gib / published[0][2],
            ours_memory=own[1] / ours[0][1],
            tokens_per_s=tokens_per_s,
            ours_tokens_per_s=own[0],
        )
        for (name, tokens_per_s, gib), own in zip(published, ours, strict=True)
    ]


def _simulate(run: PublishedRun, sheet: GpuSheet, name: str) -> tuple[float, float]:
    """Return tokens a second and device, and the GiB of the fullest, in the order of a rule."""
    is_interleaved, is_v = name.startswith("interleaved-"), name in ("zb-v", "v-half", "v-min")
    rule, chunks = name, 2 if is_v else 1
    if is_interleaved:
        rule, chunks = "interleaved", int(name.removeprefix("interleaved-"))
    run = replace(run, chunks=chunks)
    profile = profile_of(run, sheet)
    layout = layout_of(run, profile)
    if name.startswith("zb-") or is_v:
        layout = msgspec.structs.replace(layout, placement="zbv" if is_v else "vshape", split_backward=True)
    job = Job(cluster=_cluster(run, sheet), optimizer=OPTIMIZERS["adam-mixed"], sharding=run.sharding)
    step = build_step(profile, layout, job)
    found = estimate_step(step, schedule_in_order(rule, step))
    tokens = run.global_batch * run.recipe.tokens
    return tokens / (found.step_us / 1e6) / run.devices, max(found.memory_bytes) / GIB


def _cluster(run: PublishedRun, sheet: GpuSheet) -> Cluster:
    """Return the devices, joined each to each: what a stage sends to the next takes one link of seven.

    Where a stage is a node, stages are joined by the network, and collectives have all links.
    """
    cluster = cluster_of(run.devices, sheet)
    if run.devices > run.pipeline or cluster.intra_node is None:
        return cluster
    rate = cluster.intra_node.bytes_per_s / (sheet.domain - 1)
    return msgspec.structs.replace(
        cluster, intra_node=msgspec.structs.replace(cluster.intra_node, bytes_per_s=rate)
    )


def pairs_in_order(rows: Sequence[Row], beyond: float = 0.0) -> tuple[int, int]:
    """Return how many pairs of schedules are in the published order, of those further apart than `beyond`."""
    pairs = [
        (one, other)
        for one, other in itertools.combinations(rows, 2)
        if abs(one.speed - other.speed) > beyond
    ]
    right = sum((one.speed > other.speed) == (one.ours_speed > other.ours_speed) for one, other in pairs)
    return right, len(pairs)


def lines() -> Iterator[str]:
    """Yield a table of each run, and how much of it is right."""
    for gpu, run, published in RUNS:
        rows = load_rows(gpu, run, published)
        yield f"{run.model} on {run.devices} {gpu}, PP {run.pipeline}, {run.micro_batches} micro-batches"
        yield from ("", "| schedule | throughput / 1F1B | ours | points | memory / 1F1B | ours |")
        yield "|---|---|---|---|---|---|"
        for row in rows[1:]:
            yield (
                f"| {row.name} | {row.speed:.3f} | {row.ours_speed:.3f} "
                f"| {(row.ours_speed - row.speed) * 100:+.1f} | {row.memory:.2f} | {row.ours_memory:.2f} |"
            )
        near = sum(abs(row.ours_speed - row.speed) <= 0.03 for row in rows[1:])
        every, apart = pairs_in_order(rows), pairs_in_order(rows, 0.01)
        yield ""
        yield (
            f"- {near} of {len(rows) - 1} within three points; {every[0]} of {every[1]} pairs in order, "
            f"{apart[0]} of the {apart[1]} that are more than a point apart"
        )
        yield (
            f"- 1F1B: {rows[0].tokens_per_s:.0f} tokens a second and device published, "
            f"{rows[0].ours_tokens_per_s:.0f} simulated"
        )
        yield ""


if __name__ == "__main__":
    print(*lines(), sep="\n")
