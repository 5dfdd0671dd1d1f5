"""From the measured layers of a model to the layout that runs its step fastest: the planner's search.

Layers become a profile, with the first and the last also as shards over several devices, and
`tessel.planning` weighs chunks, divided ends, two branches side by side, recomputation, joint and split
backwards and replicas, with gradients summed and the optimizer's step after the pipeline. Checked in
tests/tessel/tuned_model/test_layout_choice.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tessel.placement_comparison import PlannedRow
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.layout import Layout, PlacementName
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlannedStep, PlanProgress, PlanResult
from tessel.profiles.branches import find_branches, relayed_bytes
from tessel.profiles.profile import CostTable, Profile, ShardTable, StageCosts
from tessel.profiles.stage_cost import costs_of_stages
from tessel.profiles.tuned_plan import profile_of_stages
from tessel.search import SearchBudget
from tuner.plan import LayersPlan, StagePlan

RUN: tuple[PlacementName, ...] = ("vshape", "interleaved", "zbv", "xshape", "mshape", "kshape")
"""Placements that `tessel run` takes."""

MAX_CHUNKS = 4
"""Stages of one device that are tried; more have as many hops as a short model has layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRequest:
    """What a step is planned for.

    Attributes:
        devices: all are used.
        micro_batches: of the step, over all replicas.
        link: between any two devices.
        memory_limit_bytes: of one device; None for no limit.
        optimizer: a key of `OPTIMIZERS`.
        recompute: whether stages may recompute.
        replicates: whether the model may be replicated.
        compares: whether hand-written ways are planned too, to compare with.
        sharding: what replicas divide among them: `none`, or `optimizer`, its state.
    """

    devices: int
    micro_batches: int
    link: Link
    memory_limit_bytes: int | None = None
    optimizer: str = "sgd"
    recompute: bool = True
    replicates: bool = True
    compares: bool = True
    sharding: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenLayout:
    """What planning found.

    Attributes:
        layout: the fastest that can be run.
        rows: it and all that it is compared with, fastest first.
        lower_bound_us: no layout that was allowed has a shorter step.
        update_us_a_byte: microseconds of the optimizer's update for each byte of weights.
        step_us: planned length of a step.
        in_parts: whether its cuts count the parts of layers.
    """

    layout: Layout
    rows: tuple[PlannedRow, ...]
    lower_bound_us: float
    link: Link
    update_us_a_byte: float
    step_us: float
    in_parts: bool = False

    @property
    def copies(self) -> int:
        """Copies of the pipeline: replicas, and two in each of an `xshape`."""
        return self.layout.data_parallel * (2 if self.is_mirrored else 1)

    @property
    def is_mirrored(self) -> bool:
        """Whether copies share devices in opposite directions."""
        return self.layout.placement == "xshape"


def profile_of_layers(layers: LayersPlan, optimizer: str = "sgd") -> Profile:
    """Return the profile of measured layers, their ends also divided, and where two branches of them meet.

    Args:
        layers: as the tuner measured them.
        optimizer: a key of `OPTIMIZERS`; updates take the measured time for each byte that it moves.

    Raises:
        DocumentError: a figure is beyond what a layer can have.
    """
    profile = profile_of_stages(
        layers.layers,
        layers.tied,
        name=layers.model,
        device=layers.device_model,
        micro_batch=layers.batch,
    )
    (table,) = profile.tables
    us_a_byte = _update_us_a_byte(layers, optimizer)
    branches = find_branches(layers.layers)
    relayed = (0,) * len(layers.layers) if branches is None else relayed_bytes(layers.layers, branches)

    def passing(costs: Iterable[StageCosts]) -> tuple[StageCosts, ...]:
        return tuple(
            msgspec.structs.replace(cost, relayed_bytes=num_bytes)
            for cost, num_bytes in zip(costs, relayed, strict=True)
        )

    def updated(cost: StageCosts) -> StageCosts:
        return msgspec.structs.replace(cost, update_us=us_a_byte * cost.weight_bytes)

    def divided(stages: Sequence[StagePlan]) -> Iterator[StageCosts]:
        return map(updated, costs_of_stages(stages))

    shards = []
    for count, (first, last) in sorted(layers.shards.items()):
        *_, first_cost, last_cost = divided((*layers.layers, first, last))
        shards.append(ShardTable(micro_batch=layers.batch, shards=count, first=first_cost, last=last_cost))
    costs = tuple(map(updated, table.costs)) if layers.training else table.costs
    whole = CostTable(
        micro_batch=table.micro_batch, tensor_parallel=1, costs=passing(costs), intervals=table.intervals
    )
    split = tuple(
        CostTable(micro_batch=layers.batch, tensor_parallel=count, costs=passing(divided(stages)))
        for count, stages in sorted(layers.tensor_parallel.items())
    )
    return msgspec.structs.replace(profile, tables=(whole, *split), shards=tuple(shards), branches=branches)


def _update_us_a_byte(layers: LayersPlan, optimizer: str) -> float:
    """Return microseconds for each byte of weights: what the measured update took, by traffic."""
    if layers.update is None or optimizer == "none":
        return 0.0
    states = OPTIMIZERS[optimizer].state_ratio
    moves = layers.update_moves + 2 * states
    return layers.update.latency_us * moves / layers.update_moves / layers.updated_bytes


def choose_layout(
    layers: LayersPlan,
    request: LayoutRequest,
    *,
    budget: SearchBudget,
    seed: int = 0,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> ChosenLayout:
    """Plan a step over measured layers.

    Args:
        layers: as the tuner measured them.
        request: devices, link, memory, and what may be chosen.
        on_progress: told of each better step.

    Raises:
        InfeasibleError: nothing fits the memory.
        ScheduleError: no layout uses these devices.
    """
    found = plan_layers(layers, request, budget=budget, seed=seed, on_progress=on_progress)
    return ChosenLayout(
        layout=found.best.layout,
        rows=_rows(found),
        lower_bound_us=found.lower_bound_us,
        link=request.link,
        update_us_a_byte=_update_us_a_byte(layers, request.optimizer),
        step_us=found.best.estimate.step_us,
    )


def plan_layers(
    layers: LayersPlan,
    request: LayoutRequest,
    *,
    budget: SearchBudget,
    seed: int = 0,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> PlanResult:
    """Return the whole plan of which `choose_layout` takes the layout; same arguments and errors."""
    return find_plan(
        profile_of_layers(layers, request.optimizer),
        Job(
            cluster=Cluster(
                devices=request.devices,
                hop=request.link,
                collective=request.link,
                memory_bytes=request.memory_limit_bytes,
            ),
            global_batch=request.micro_batches * layers.batch,
            optimizer=OPTIMIZERS[request.optimizer],
            sharding=request.sharding,
        ),
        options=PlanOptions(
            placements=RUN,
            recompute=request.recompute,
            max_chunks=MAX_CHUNKS,
            data_parallel=None if request.replicates else 1,
            what_if=False,
            baselines=request.compares,
        ),
        budget=budget,
        seed=seed,
        on_progress=on_progress,
    )


def _rows(found: PlanResult) -> tuple[PlannedRow, ...]:
    best_us = found.best.estimate.step_us
    rows = [_row("plan", found.best, best_us)]
    for baseline in found.baselines:
        if baseline.planned is None or not baseline.fits:
            rows.append(PlannedRow(name=baseline.name, reason=baseline.reason))
        else:
            rows.append(_row(baseline.name, baseline.planned, best_us))
    return tuple(sorted(rows, key=lambda row: (row.step_ms is None, row.step_ms or 0.0, row.name != "plan")))


def _row(name: str, planned: PlannedStep, best_us: float) -> PlannedRow:
    estimate = planned.estimate
    return PlannedRow(
        name=name,
        layout=planned.name,
        step_ms=estimate.step_us / 1e3,
        after_ms=(estimate.step_us - estimate.pipeline_us) / 1e3,
        peak_memory_bytes=max(estimate.memory_bytes),
        ratio=estimate.step_us / best_us,
    )
