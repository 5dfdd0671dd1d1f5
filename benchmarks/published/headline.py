"""Published layouts beside ours at equal memory: `python -m benchmarks.published.headline`, ten minutes.

Six layouts with published throughput, of five models. A row simulates the layout as published, evenly cut
and in Megatron's order; ours with its degrees and micro-batches, first in what Megatron runs (cuts,
interleaving and size of group), then in any placement and order; and ours with all degrees open. All have
the same predicted costs of layers, and no device may hold more than the published layout's fullest. Every
figure is predicted. Work is counted, not timed, so that each machine prints the same figures.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import msgspec

import tessel
from benchmarks.published.layouts import CONFIGS, PublishedRun, Simulated, cluster_of, profile_of, simulate
from tessel.architectures.gpu_sheets import find_sheet
from tessel.architectures.shape import Recipe
from tessel.jobs.inputs.plan_options import DEFAULT_WORK
from tessel.planning.cluster import OPTIMIZERS
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanResult
from tessel.planning.plan_search import EXPLAINING_SHARE
from tessel.search.budget import SearchBudget

MIB = 2**20

ROWS = (
    ("h100", PublishedRun(
        model="llama-3.1-70b", devices=64, tensor_parallel=4, pipeline=8, chunks=5, global_batch=256,
        recipe=Recipe(tokens=8192, dtype="fp8", overlaps_tensor=True),
    )),
    ("h100", PublishedRun(
        model="llama-3.1-405b", devices=512, tensor_parallel=8, pipeline=8, context_parallel=2, chunks=8,
        global_batch=1152, recipe=Recipe(tokens=8192, dtype="fp8", overlaps_tensor=True),
    )),
    ("gb200", PublishedRun(
        model="llama-3.1-405b", devices=256, tensor_parallel=4, pipeline=16, chunks=4, global_batch=1536,
        recipe=Recipe(tokens=8192, dtype="fp8", overlaps_tensor=True),
    )),
    ("gb200", PublishedRun(
        model="deepseek-v3", devices=256, pipeline=4, expert_parallel=64, chunks=4, global_batch=4096,
        recipe=Recipe(tokens=4096, dtype="fp8", overlaps_tensor=True),
    )),
    ("gb300", PublishedRun(
        model="kimi-k2", devices=256, pipeline=4, expert_parallel=64, chunks=4, micro_batch=2,
        global_batch=4096, recipe=Recipe(tokens=4096, dtype="fp8", overlaps_tensor=True),
    )),
    ("h100", PublishedRun(
        model="qwen3-235b-a22b", devices=256, tensor_parallel=2, pipeline=8, expert_parallel=16, chunks=4,
        global_batch=8192, recipe=Recipe(tokens=4096, dtype="fp8", overlaps_tensor=True),
    )),
)  # fmt: skip
"""GPU and layout: the second of MLPerf Training v5.0 (NVIDIA, `eos-dfw_n64`), the others of Megatron-Bridge's
performance summaries (26.04.01), both Apache-2.0. Qwen3's experts are there whole on each of 32 devices."""


COLUMNS = (
    "model, GPUs",
    "published layout",
    "step",
    "fullest device",
    "in Megatron",
    "any order",
    "bound",
    "degrees open",
    "of",
)


@dataclass(frozen=True, slots=True)
class Ours:
    """Plans under the memory of a published layout.

    Attributes:
        as_megatron_us: step of the best order that Megatron runs, degrees as published.
        searched: of any placement and order, degrees as published.
        open_: all degrees open.
    """

    as_megatron_us: float
    searched: PlanResult
    open_: tessel.Plan


def plan_under(run: PublishedRun, gpu: str, published: Simulated, work: float) -> Ours:
    """Return plans that hold on no device more than a published layout holds on its fullest."""
    sheet = find_sheet(gpu)
    memory_bytes = math.ceil(max(published.memory_bytes) / MIB) * MIB
    job = Job(
        cluster=msgspec.structs.replace(cluster_of(run.devices, sheet), memory_bytes=memory_bytes),
        global_batch=run.global_batch,
        optimizer=OPTIMIZERS["adam-mixed"],
        sharding=run.sharding,
    )
    searched = find_plan(
        profile_of(run, sheet),
        job,
        options=PlanOptions(
            data_parallel=run.data_parallel,
            pipeline=run.pipeline,
            tensor_parallel=run.tensor_parallel,
            context_parallel=run.context_parallel,
            expert_parallel=run.expert_parallel,
            micro_batch=run.micro_batch,
            what_if=False,
        ),
        budget=SearchBudget(work_limit=(1.0 - EXPLAINING_SHARE) * work),
    )
    rules = [
        baseline.planned.estimate.step_us
        for baseline in searched.baselines
        if baseline.fits
        and baseline.planned is not None
        and (baseline.name == "1f1b" or baseline.name.startswith("interleaved-"))
    ]
    everything = tessel.plan(
        CONFIGS / f"{run.model}.json",
        gpu=gpu,
        devices=run.devices,
        memory=f"{memory_bytes // MIB}MiB",
        global_batch=run.global_batch,
        seq=run.recipe.tokens,
        dtype=run.recipe.dtype,
        overlap_tensor=run.recipe.overlaps_tensor,
        work=work,
    )
    return Ours(min(rules), searched, everything)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=float, default=DEFAULT_WORK, help="units of work of each plan")
    work = parser.parse_args().work
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for gpu, run in ROWS:
        published = simulate(run, find_sheet(gpu))
        ours = plan_under(run, gpu, published, work)
        step_us = published.step_us

        def share(found_us: float, of_us: float = step_us) -> str:
            return f"{found_us / of_us:.3f}"

        best = ours.searched.best
        layout = f"TP {run.tensor_parallel}, PP {run.pipeline} × {run.chunks}"
        layout += "".join(
            f", {name} {degree}"
            for name, degree in (("CP", run.context_parallel), ("EP", run.expert_parallel))
            if degree > 1
        )
        print(
            f"| {run.model}, {run.devices} {gpu} | {layout}, {run.micro_batches} × {run.micro_batch} "
            f"| {step_us / 1e6:.2f} s | {max(published.memory_bytes) / 2**30:.1f} GiB "
            f"| {share(ours.as_megatron_us)} "
            f"| {share(best.estimate.step_us)} ({best.layout.placement_words}, {best.order}) "
            f"| {share(ours.searched.lower_bound_us)} | {share(ours.open_.step_ms * 1e3)} "
            f"| {ours.open_.title} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
