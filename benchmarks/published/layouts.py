"""A published layout as a plan simulates it, from a config and a GPU: cut evenly, in Megatron's order.

Where who ran it says so, stages are uneven, adapters alone are trained, or activations lie with the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import msgspec

from tessel.architectures.architecture import Architecture, Attention, Block
from tessel.architectures.families import load_architecture
from tessel.architectures.gpu_sheets import GpuSheet
from tessel.architectures.kernels import ELEMENT_BYTES, KernelPrice
from tessel.architectures.layer_costs import profile_of_architecture
from tessel.architectures.roofline import Roofline
from tessel.architectures.shape import Recipe, Shape
from tessel.architectures.work import share_of, work_of_block
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link, Optimizer
from tessel.planning.costs.training_step import build_step, estimate_step
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.orders.timed_order import schedule_in_order
from tessel.profiles.profile import Profile, StageCosts

CONFIGS = Path(__file__).parents[2] / "examples" / "configs"

UPDATE_RATIO, GRADIENT_RATIO = 22.0, 2.0
"""Bytes that a step of Adam on 16-bit weights moves for each byte of them, and those of their gradients, as
`tessel plan` counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """What somebody ran.

    Attributes:
        model: of `examples/configs`, or what `made` is called.
        made: the model, where no config stands for it.
        devices: in all.
        tensor_parallel: devices of a layer. The same holds for
        pipeline: stages' devices,
        context_parallel: of a sequence,
        expert_parallel: of experts.
        chunks: stages a device.
        micro_batch: sequences of a micro-batch.
        global_batch: sequences of a step.
        blocks: layers of the model, where it was cut short; None for all.
        dense_blocks: of these, layers without experts; None for as many as the config says.
        recipe: how it was trained.
        kv_heads: of attention, where they were not the config's.
        has_predictors: whether layers that predict further tokens are trained.
        sharding: what replicas divide.
        optimizer: what training holds beside the weights.
        stages: layers of each stage, in model order; cut evenly if empty.
        adapter_rank: of LoRA on the product of queries, keys and values, nothing else being trained; 0 where
            all is.
        offloaded: layers, from the first on, whose kept activations lie with the host.
    """

    model: str
    devices: int
    recipe: Recipe
    tensor_parallel: int = 1
    pipeline: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    chunks: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    blocks: int | None = None
    dense_blocks: int | None = None
    kv_heads: int | None = None
    has_predictors: bool = True
    sharding: str = "optimizer"
    optimizer: Optimizer = OPTIMIZERS["adam-mixed"]
    stages: tuple[int, ...] = ()
    made: Architecture | None = None
    adapter_rank: int = 0
    offloaded: int = 0

    @property
    def shape(self) -> Shape:
        """Sizes and degrees at which layers are priced."""
        return Shape(
            recipe=self.recipe,
            micro_batch=self.micro_batch,
            tensor_parallel=self.tensor_parallel,
            context_parallel=self.context_parallel,
            expert_parallel=self.expert_parallel,
        )

    @property
    def data_parallel(self) -> int:
        """Replicas."""
        return self.devices // (self.tensor_parallel * self.pipeline * self.context_parallel)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica in a step."""
        return self.global_batch // (self.data_parallel * self.micro_batch)

    @property
    def architecture(self) -> Architecture:
        """The model, cut short as it was run."""
        model = self.made or _load(self.model)
        blocks = model.blocks
        if self.blocks is not None:
            first = self.dense_blocks or 0
            if self.dense_blocks is None:
                blocks = blocks[: self.blocks]
            else:
                blocks = (*blocks[:first], *blocks[len(blocks) - self.blocks + first :])
        if self.kv_heads is not None:
            blocks = tuple(_with_kv_heads(block, self.kv_heads) for block in blocks)
        return replace(model, blocks=blocks, predictors=model.predictors if self.has_predictors else ())


def _with_kv_heads(block: Block, kv_heads: int) -> Block:
    parts = (
        replace(part, kv_heads=kv_heads) if isinstance(part, Attention) else part for part in block.parts
    )
    return replace(block, parts=tuple(parts))


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a plan predicts.

    Attributes:
        step_us: microseconds of a step.
        memory_bytes: by position of the pipeline.
    """

    step_us: float
    memory_bytes: tuple[int, ...]


@lru_cache(maxsize=32)
def _load(name: str) -> Architecture:
    return load_architecture(CONFIGS / f"{name}.json")


def simulate(run: PublishedRun, sheet: GpuSheet, price: KernelPrice | None = None) -> Simulated:
    """Return the step and the memory of a layout in 1F1B, interleaved where it has chunks.

    Args:
        run: as published.
        sheet: of its GPU.
        price: of kernels; a roofline if None.
    """
    profile = profile_of(run, sheet, price)
    layout = layout_of(run, profile)
    job = Job(cluster=cluster_of(run.devices, sheet), optimizer=run.optimizer, sharding=run.sharding)
    step = build_step(profile, layout, job)
    rule = "1f1b" if run.chunks == 1 else "interleaved"
    found = estimate_step(step, schedule_in_order(rule, step))
    return Simulated(found.step_us, tuple(found.memory_bytes))


def profile_of(run: PublishedRun, sheet: GpuSheet, price: KernelPrice | None = None) -> Profile:
    """Return the predicted layers of a layout, with its degrees alone; arguments as of `simulate`."""
    profile = profile_of_architecture(
        run.architecture,
        [run.shape],
        price or Roofline(sheet=sheet, dtype=run.recipe.dtype, dispatch=run.recipe.dispatch),
        device=sheet.name,
        update_ratio=UPDATE_RATIO,
        gradient_ratio=GRADIENT_RATIO,
    )
    (table,) = profile.tables
    costs = table.costs
    if run.adapter_rank:
        costs = tuple(
            _adapted(layer.name, cost, run) for layer, cost in zip(profile.layers, costs, strict=True)
        )
    if run.offloaded:
        # The first layer is the embedding.
        costs = tuple(
            _offloaded(cost) if 1 <= index <= run.offloaded else cost for index, cost in enumerate(costs)
        )
    return msgspec.structs.replace(profile, tables=(msgspec.structs.replace(table, costs=costs),))


def _adapted(name: str, cost: StageCosts, run: PublishedRun) -> StageCosts:
    """Return a layer's cost where only a LoRA adapter of its attention is trained.

    Products keep their inputs no longer, but for the adapter's, in 16 bits; no gradient of a weight is made.
    The adapter's own work is left out.
    """
    trained, saved, peak = 0, cost.saved_bytes, cost.peak_bytes
    if name.startswith("layers."):
        model = run.architecture
        block = model.blocks[0]
        (attention,) = (part for part in block.parts if isinstance(part, Attention))
        inputs, outputs = share_of(attention.linears(block.hidden)[0], run.tensor_parallel)
        trained = ELEMENT_BYTES * run.adapter_rank * (inputs + outputs)
        work = work_of_block(block, run.shape)
        saved += round(ELEMENT_BYTES * run.shape.own_rows * inputs - work.for_weight)
        peak -= round(sum(work.stand_ins.values()))
    return msgspec.structs.replace(
        cost,
        backward_us=cost.backward_input_us,
        backward_weight_us=0.0,
        update_us=(cost.update_us or 0.0) * trained / max(1, cost.weight_bytes),
        gradient_pass_us=cost.gradient_pass_us * trained / max(1, cost.weight_bytes),
        trained_bytes=trained,
        saved_bytes=saved,
        saved_for_weight_bytes=0,
        peak_bytes=peak,
    )


def _offloaded(cost: StageCosts) -> StageCosts:
    """Return a layer's cost where what it keeps lies with the host, and is back while it runs.

    The copies are taken to be hidden beside other layers' work.
    """
    return msgspec.structs.replace(
        cost, saved_bytes=0, saved_for_weight_bytes=0, peak_bytes=cost.peak_bytes + cost.saved_bytes
    )


def cluster_of(devices: int, sheet: GpuSheet) -> Cluster:
    """Return so many of a GPU, without a limit of memory: a published run did fit."""
    network = Link(bytes_per_s=sheet.network_gb_s * 0.85e9, latency_us=10.0)
    fast = Link(bytes_per_s=sheet.fast_gb_s * sheet.shares.fast * 1e9, latency_us=10.0)
    return Cluster(
        devices=devices, hop=network, collective=network, devices_per_node=sheet.domain, intra_node=fast
    )


def layout_of(run: PublishedRun, profile: Profile) -> Layout:
    """Return the layout of a run, its layers cut evenly if it does not say how."""
    names = [layer.name for layer in profile.layers]
    return Layout(
        data_parallel=run.data_parallel,
        pipeline=run.pipeline,
        tensor_parallel=run.tensor_parallel,
        context_parallel=run.context_parallel,
        expert_parallel=run.expert_parallel,
        micro_batch=run.micro_batch,
        micro_batches=run.micro_batches,
        placement="vshape" if run.chunks == 1 else "interleaved",
        cuts=cuts_of(names, run.stages) if run.stages else even_cuts(names, run.pipeline * run.chunks),
    )


def even_cuts(names: Sequence[str], stages: int) -> tuple[tuple[int, int], ...]:
    """Return as many layers for each stage; where they do not divide, embedding and head count as one."""
    count = sum(name.startswith("layers.") for name in names)
    if count % stages == 0:
        sizes = [count // stages] * stages
    else:
        each, rest = divmod(count + 2, stages)
        # Stages in the middle are the first to have one more.
        sizes = [each] * stages
        for index in sorted(range(stages), key=lambda stage: abs(stage - (stages - 1) / 2))[:rest]:
            sizes[index] += 1
        sizes[0] -= 1
        sizes[-1] -= 1
    return cuts_of(names, sizes)


def cuts_of(names: Sequence[str], sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the stages of so many layers each.

    The first stage has the embedding too, the last the norm, further predictors and the head.
    """
    cuts, first = [], next(index for index, name in enumerate(names) if name.startswith("layers."))
    for size in sizes:
        cuts.append((first, first + size - 1))
        first += size
    cuts[0] = (0, cuts[0][1])
    cuts[-1] = (cuts[-1][0], len(names) - 1)
    return tuple(cuts)
