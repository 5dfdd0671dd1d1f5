"""Sailor's runs as layouts of a plan, and what a training step of each is estimated to take.

What is taken from the collection: times, sizes, links. What is calibrated, on OPT-350's runs of at most two
stages alone: `calibrate` finds it from the data each time, and the constants of `tessel.planning.runtime` are
held against it by a test. No figure of a GPT-Neo run enters anywhere but as what is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.reality.sailor_data import Collection, LayerFigures, LayerSizes, Run, Sizes, Times
from benchmarks.reality.smoothing import bound_by_larger
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.training_step import StepEstimate, build_step, estimate_step
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.runtime import DEEPSPEED, Runtime
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

HOP = Link(bytes_per_s=22.93e9, latency_us=41.6)
"""One GH200 to another node. Sailor's `multizone_bandwidths_het.json`, GH-96, one GPU: 22.93 GB/s at best,
11.74 GB/s at 1 MB, which is 41.6 us more than 1 MB takes at best."""

NODE = Link(bytes_per_s=61e9, latency_us=33.0)
"""Between the four GH200 of a node, in a ring. The operator profile's `prim_OPT-350_all_gather_4gpus.csv`:
16 MiB in 0.307 ms and 256 MiB in 3.404 ms, of which each of three messages carries a quarter."""

COLLECTIVE = Link(bytes_per_s=11e9, latency_us=41.6)
"""The same for gradients: calibrated, see `calibrate_collective`."""

SEQUENCE = 2048
"""Tokens of a sample, in all runs."""

BYTES = 4
"""Of a number: the runs are in float32."""

SLOW_BYTES_PER_S = 0.1149e9
"""A node of RTX cards to another one (the same file, eight GPUs), which its GPUs share."""

SLOW_NODE = Link(bytes_per_s=24.3e9)
"""Between the eight Titan RTX of a node (`intra_node_bandwidths.json`)."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """A run and what it was estimated to take."""

    run: Run
    step: StepEstimate

    @property
    def seconds(self) -> float:
        return self.step.step_us / 1e6

    @property
    def time_error(self) -> float:
        return self.seconds / self.run.real_s - 1

    @property
    def memory_error(self) -> float:
        return max(self.step.memory_bytes) / self.run.real_bytes - 1


class Variant(NamedTuple):
    """What an estimate takes in.

    Attributes:
        runtime: of DeepSpeed, as it is calibrated.
        collective: link of gradients on GH200.
        bounds: whether no layer takes longer than at a larger micro-batch.
        head: whether a head that the profile lacks is added.
    """

    runtime: Runtime = DEEPSPEED
    collective: Link = COLLECTIVE
    bounds: bool = True
    head: bool = True


FULL = Variant()


def profile_of(run: Run, collection: Collection, gpu: str = "", variant: Variant = FULL) -> Profile:
    """Return the profile of a run's model on a kind of GPU, that of its first stage unless given."""
    model, tensor_parallel = run.model, run.tensor_parallel
    gpu = gpu or run.gpus[0][0]
    sizes = collection.sizes_of(model, tensor_parallel)
    inner = sizes.num_layers - 2
    names = ("embedding", *(f"block{index}" for index in range(inner)), "head")
    tie = "embedding" if model.startswith("GPT-Neo") else ""
    profile = Profile(
        name=model,
        device=gpu,
        layers=tuple(Layer(name, tie if name in ("embedding", "head") else "") for name in names),
        tables=tuple(
            _table(times, sizes, inner, variant) for times in collection.times_of(model, gpu, tensor_parallel)
        ),
    )
    return bound_by_larger(profile) if variant.bounds else profile


def _table(times: Times, sizes: Sizes, inner: int, variant: Variant) -> CostTable:
    total = sizes.first.weights + inner * sizes.block.weights + sizes.last.weights
    head = LayerFigures(
        forward_s=times.last.forward_s + variant.head * times.head_s[0],
        backward_s=times.last.backward_s + variant.head * times.head_s[1],
        update_s=times.last.update_s,
    )
    head_sizes = sizes.last
    if any(times.head_s):
        # The tied embedding, and as many logits as OPT-350's head keeps: two copies of each.
        logits = 2 * SEQUENCE * _rows(sizes)
        head_sizes = LayerSizes(
            weights=sizes.first.weights, saved=sizes.last.saved + logits, output=sizes.last.output
        )
    rows = [(times.first, sizes.first), *[(times.block, sizes.block)] * inner, (head, head_sizes)]
    return CostTable(
        micro_batch=times.micro_batch,
        tensor_parallel=times.tensor_parallel,
        costs=tuple(_cost(figures, size, times, total) for figures, size in rows),
    )


def _rows(sizes: Sizes) -> int:
    """Return the rows of the embedding on a device: all of its weights but a position's."""
    hidden = sizes.block.output // SEQUENCE
    return sizes.first.weights // hidden - SEQUENCE


def _cost(figures: LayerFigures, size: LayerSizes, times: Times, total: int) -> StageCosts:
    return StageCosts(
        forward_us=figures.forward_s * 1e6,
        backward_us=figures.backward_s * 1e6,
        # Published once for the whole model: shared out by weights.
        update_us=figures.update_s * 1e6 * size.weights / total,
        weight_bytes=BYTES * size.weights,
        saved_bytes=BYTES * size.saved * times.micro_batch,
        boundary_bytes=BYTES * size.output * times.micro_batch,
        peak_bytes=times.peak_bytes,
    )


def layout_of(run: Run) -> Layout:
    """Return a run's layout."""
    ends = [sum(run.stages[: index + 1]) for index in range(len(run.stages))]
    return Layout(
        data_parallel=run.data_parallel,
        pipeline=run.pipeline,
        tensor_parallel=run.tensor_parallel,
        micro_batch=run.micro_batch,
        micro_batches=run.micro_batches,
        cuts=tuple((end - num, end - 1) for num, end in zip(run.stages, ends, strict=True)),
    )


def cluster_of(run: Run, collection: Collection, variant: Variant = FULL) -> Cluster:
    """Return a run's GPUs, with speeds relative to the kind of the first, and its links."""
    devices = run.nodes * run.tensor_parallel
    if run.is_clariden:
        return Cluster(devices=devices, hop=HOP, collective=variant.collective, intra_node=NODE)
    kinds = [kind for stage in run.gpus for kind in stage for _ in range(run.tensor_parallel)]
    work_us = {kind: _work_us(run, collection, kind) for kind in kinds}
    link = Link(bytes_per_s=SLOW_BYTES_PER_S / run.tensor_parallel)
    return Cluster(
        devices=devices,
        hop=link,
        collective=link,
        intra_node=SLOW_NODE,
        device_speed=tuple(work_us[kinds[0]] / work_us[kind] for kind in kinds),
    )


def _work_us(run: Run, collection: Collection, gpu: str) -> float:
    costs = profile_of(run, collection, gpu).costs(
        micro_batch=run.micro_batch, tensor_parallel=run.tensor_parallel
    )
    return sum(cost.forward_us + (cost.joint_backward_us or 0.0) for cost in costs)


def estimate(collection: Collection, run: Run, variant: Variant = FULL) -> Estimated:
    """Return what a run is estimated to take, in the order that it ran: 1F1B."""
    profile = profile_of(run, collection, variant=variant)
    cluster = cluster_of(run, collection, variant)
    step = build_step(
        profile, layout_of(run), Job(cluster=cluster, optimizer=OPTIMIZERS["adam"], runtime=variant.runtime)
    )
    schedule = ONE_F_ONE_B.build(step.placement, micro_batches=step.micro_batches)
    return Estimated(run, estimate_step(step, schedule))


def sound_runs(collection: Collection) -> tuple[Run, ...]:
    """Return the runs that are no copies of others."""
    return tuple(run for run in collection.runs if not run.copy_of)
