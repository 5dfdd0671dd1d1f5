"""A training step of one layout: what each block, hop and collective takes, and when the whole step is over.

    device 0   f0 f0 . . b0 . b0 | all-reduce of its gradients | tied weights | optimizer
    device 1   .  f1 b1 f1 b1    | all-reduce          |       | optimizer

`stage_figures` prices stages and hops from a profile, `build_step` makes the placement that an order is
searched for, and `estimate_step` ends the step: the gradients of a stage are synchronised over its replicas
as soon as its last weight gradient is done, beside the blocks that still run; a device has one collective at
a time, in order of readiness; layers that share a tensor exchange its gradients next; then the optimizer
runs. The step is over when the last device is. Latencies become whole steps, rounded up, so that no order
promises less than was measured.

Left out: contention between hops, and between collectives and compute; the global norm of gradients; loading
of data. Checked in tests/tessel/planning/costs/test_training_step.py against a recomputation that shares no
code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from tessel.batches import Batch, MicroBatchClass
from tessel.batches.mixture import Mixture
from tessel.errors import InfeasibleError
from tessel.orders import Task
from tessel.placement import Block, BlockKind, Choice, Edge, Placement
from tessel.planning.costs.stage_costs import FloatArray
from tessel.planning.costs.stage_figures import StageFigures, stage_figures
from tessel.planning.costs.tower_figures import TowerFigures
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.profiles.profile import Profile
from tessel.schedule import Schedule
from tessel.schedule.overlap import saved_steps

STEPS_OF_BUSIEST_DEVICE = 4096
"""Steps that one micro-batch keeps the busiest device at work, about: rounding a block up then costs that
device less than a thousandth for each of its blocks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingStep:
    """What an order is searched for, and what follows once the order is known.

    Attributes:
        layout: where it comes from.
        placement: blocks of one micro-batch (of an `xshape`, of one each way), spans and lags in steps,
            memory in bytes.
        micro_batches: of the placement; half of the layout's for an `xshape`.
        step_us: microseconds of one step of the placement.
        limits: room for activations by device, in bytes; None where there is no limit.
        batch: what the blocks take by micro-batch, over all replicas; None where all are alike.
    """

    layout: Layout
    figures: StageFigures
    placement: Placement
    micro_batches: int
    step_us: float
    limits: tuple[int, ...] | None
    batch: Batch | None = None


class StepEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a training step takes.

    Attributes:
        step_us: microseconds of the whole step.
        pipeline_us: microseconds until the last block ends.
        synchronisation_us: microseconds of collectives on the device that has most, overlapped or not, with
            the gathering of updated weights.
        update_us: microseconds of the optimizer on the device that has most.
        memory_bytes: most bytes held, by device of one pipeline.
        fits: whether every device keeps its limit.
        busy_ratio: share of the step that the devices compute in the pipeline, on average.
    """

    step_us: float
    pipeline_us: float
    synchronisation_us: float
    update_us: float
    memory_bytes: tuple[int, ...]
    fits: bool
    busy_ratio: float


def build_step(
    profile: Profile,
    layout: Layout,
    job: Job,
) -> TrainingStep:
    """Return the placement of a layout's stages, in whole steps, and what follows the pipeline.

    Args:
        profile: layers and their costs.
        layout: its cuts cover all layers.
        job: devices and links, what a device holds beside the weights, and who runs the step.

    Raises:
        InfeasibleError: a device cannot hold its weights and one micro-batch; names it and what it needs.
        ScheduleError: the profile has no table for the layout's micro-batch and tensor-parallel degree.
    """
    figures = stage_figures(profile, layout, job)
    check_headroom(figures, layout.device_names)
    return step_of_figures(layout, figures)


def step_of_figures(layout: Layout, figures: StageFigures) -> TrainingStep:
    """Return the same for figures that are known."""
    step_us = choose_step_us(figures)
    return TrainingStep(
        layout=layout,
        figures=figures,
        placement=place_blocks(figures, step_us),
        micro_batches=layout.micro_batches // len(figures.chains),
        step_us=step_us,
        limits=figures.headroom,
        batch=None if figures.mixture is None else _batch(figures, figures.mixture, step_us),
    )


def _batch(figures: StageFigures, mixture: Mixture, step_us: float) -> Batch:
    """Return what the blocks take by micro-batch."""
    classes = []
    for name, own in zip(mixture.classes, figures.by_class, strict=True):
        placement = place_blocks(own, step_us)
        classes.append(
            MicroBatchClass(
                name=str(name),
                spans=tuple(block.span for block in placement.blocks),
                memory=tuple(block.memory for block in placement.blocks),
                lags=tuple(edge.lag for edge in placement.edges),
            )
        )
    return Batch(classes=tuple(classes), sequence=mixture.sequence)


def check_headroom(figures: StageFigures, device_names: Sequence[str] | None = None) -> None:
    """Refuse stages that no order makes fit.

    Args:
        device_names: what the devices of each position are called; by their position if None.

    Raises:
        InfeasibleError: a device cannot hold its weights and one micro-batch; names it and what it needs.
    """
    if figures.memory_bytes is None:
        return
    held = figures.by_device(figures.kept_bytes)
    for device, (static, limit) in enumerate(zip(figures.static_bytes, figures.memory_bytes, strict=True)):
        needed = static + (float(held[device]) if len(figures.chains) == 1 else 0.0)
        if needed > limit:
            name = device if device_names is None else device_names[device]
            raise InfeasibleError(
                f"device {name} needs {needed / 2**30:.2f} GiB for {_stages_on(device, figures)} and one "
                f"micro-batch in flight, the limit is {limit / 2**30:.2f} GiB; use more stages, "
                "recomputation or a smaller micro-batch"
            )


def _stages_on(device: int, figures: StageFigures) -> str:
    """Name the stages of a device: `stages 0, 1 and 3`."""
    *others, last = (str(stage) for stage, group in enumerate(figures.groups) if device in group)
    return f"stages {', '.join(others)} and {last}" if others else f"stage {last}"


def choose_step_us(figures: StageFigures) -> float:
    """Return the length of a step: a part of what one micro-batch takes on the busiest device."""
    busiest = float(figures.device_work_us().max())
    return busiest / STEPS_OF_BUSIEST_DEVICE if busiest else 1.0


def whole_steps(us: FloatArray, step_us: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return whole steps, rounded up."""
    # A length that is whole but for rounding errors is not rounded up to the next one.
    return np.ceil(us / step_us - 1e-9).astype(np.int64)


def place_blocks(figures: StageFigures, step_us: float) -> Placement:
    """Return the blocks of one micro-batch: `f0 … b0`, or `b0_input` and `b0_weight`, on their devices."""
    names: dict[str, list[int]] = {
        name: whole_steps(us, step_us).tolist()
        for name, us in (
            ("f{}", figures.forward_us),
            ("b{}", figures.backward_us),
            ("b{}_input", figures.backward_input_us),
            ("b{}_weight", figures.backward_weight_us),
        )
        if us is not None
    }
    lags = whole_steps(figures.hop_us, step_us).tolist()
    stages = range(len(figures.groups))
    blocks = [_block(form, stage, names[form][stage], figures) for form in names for stage in stages]
    edges = _edges(figures, names, lags)
    choices = [
        Choice(f"b{stage}", ((f"b{stage}",), (f"b{stage}_input", f"b{stage}_weight")))
        for stage in stages
        if "b{}" in names and "b{}_input" in names
    ]
    if figures.tower is not None:
        gradients = [form.format(0) for form in ("b{}", "b{}_input") if form in names]
        tower = _tower_blocks(figures.tower, gradients, step_us)
        blocks += tower[0]
        edges += tower[1]
        copies = range(len(figures.static_bytes))
        if len(copies) > 1:
            choices.append(Choice("tower", tuple((f"tower_{copy}", f"tower_back_{copy}") for copy in copies)))
    return Placement(
        devices=len(figures.static_bytes),
        blocks=tuple(sorted(blocks, key=lambda block: block.kind is not BlockKind.FORWARD)),
        edges=tuple(edges),
        choices=tuple(choices),
    )


def _tower_blocks(
    tower: TowerFigures, gradients: Sequence[str], step_us: float
) -> tuple[list[Block], list[Edge]]:
    """Return the blocks of each copy of a tower in bubbles, and what waits for what.

    Args:
        gradients: blocks that make the gradient of what it made.
        step_us: microseconds of a step.
    """
    ahead, back, *lags = whole_steps(
        np.array([tower.forward_us, tower.backward_us, *tower.hop_us]), step_us
    ).tolist()
    blocks, edges = [], []
    for copy, lag in enumerate(lags):
        forward = Block(name=f"tower_{copy}", devices=(copy,), span=ahead, memory=tower.kept_bytes)
        backward = Block(name=f"tower_back_{copy}", devices=(copy,), span=back, memory=-tower.kept_bytes)
        blocks += [forward, backward]
        edges += [
            Edge(forward.name, "f0", lag),
            *(Edge(each, backward.name, lag) for each in gradients),
        ]
    return blocks, edges


def place_of(block: str, figures: StageFigures) -> int:
    """Return which of `StageFigures.places` runs a block: `b3_input` is of stage 3, `tower_1` of a copy."""
    if block.startswith("tower"):
        return len(figures.groups) + int(block.rpartition("_")[2])
    return int(block[1:].partition("_")[0])


_KINDS = {
    "f{}": BlockKind.FORWARD,
    "b{}": BlockKind.BACKWARD,
    "b{}_input": BlockKind.BACKWARD_INPUT,
    "b{}_weight": BlockKind.BACKWARD_WEIGHT,
}


def _block(form: str, stage: int, span: int, figures: StageFigures) -> Block:
    kept = math.ceil(figures.kept_bytes[stage])
    halved = math.ceil(figures.halved_bytes[stage])
    memory = {"f{}": kept, "b{}": -kept, "b{}_input": halved - kept, "b{}_weight": -halved}[form]
    return Block(
        name=form.format(stage),
        kind=_KINDS[form],
        devices=figures.groups[stage],
        span=span,
        memory=memory,
    )


def _edges(figures: StageFigures, names: Mapping[str, object], lags: Sequence[int]) -> list[Edge]:
    gradients = [form for form in ("b{}", "b{}_input") if form in names]
    edges = []
    for chain in figures.chains:
        for stage in chain:
            edges += [Edge(f"f{stage}", form.format(stage)) for form in gradients]
            if "b{}_input" in names:
                edges.append(Edge(f"b{stage}_input", f"b{stage}_weight"))
            for following in figures.next_stages[stage]:
                edges.append(Edge(f"f{stage}", f"f{following}", lags[stage]))
                edges += [
                    Edge(later.format(following), earlier.format(stage), lags[stage])
                    for later in gradients
                    for earlier in gradients
                ]
    return edges


def estimate_step(step: TrainingStep, *schedules: Schedule) -> StepEstimate:
    """Return what the step takes in one order.

    Args:
        step: the layout's.
        schedules: of its placement and number of micro-batches: of any replica, or of each where they differ.
    """
    return end_of_step(step.figures, *schedules, step_us=step.step_us)


def end_of_step(figures: StageFigures, *schedules: Schedule, step_us: float) -> StepEstimate:
    """Return what a step takes when its blocks run as a schedule says, with what follows the last of them.

    Args:
        schedules: of the placement of these stages: of any replica, or of each where they differ. Replicas
            wait for each other where they sum gradients.
        step_us: microseconds of a step of the schedules.
    """
    ends = [0] * len(figures.places)
    saved_us = 0.0
    for schedule in schedules:
        placement, spans = schedule.placement, schedule.pair_spans()
        index = placement.index_by_name
        for start in schedule.starts:
            stage = place_of(start.block, figures)
            task = Task(index[start.block], start.micro_batch)
            span = spans.get(task) if spans else None
            ends[stage] = max(ends[stage], start.start + (schedule.span_of(*task) if span is None else span))
        saved_us += saved_steps(placement, spans, schedule.pairs) * step_us if spans else 0.0
    return estimate_ends(
        figures,
        stage_ends_us=[end * step_us for end in ends],
        activation_bytes=tuple(map(max, zip(*(each.peak_memory for each in schedules), strict=True))),
        micro_batches=schedules[0].micro_batches,
        saved_us=saved_us / len(schedules),
    )


def estimate_ends(
    figures: StageFigures,
    *,
    stage_ends_us: Sequence[float],
    activation_bytes: Sequence[int],
    micro_batches: int,
    saved_us: float = 0.0,
) -> StepEstimate:
    """Return what the step takes, given when each stage's last block ends.

    Args:
        stage_ends_us: microseconds from the start of the step, by stage of the placement, and by copy of a
            tower in bubbles.
        activation_bytes: most bytes of activations held, by device.
        saved_us: microseconds that devices are busy less where blocks run together.
    """
    memory = tuple(static + held for static, held in zip(figures.static_bytes, activation_bytes, strict=True))
    step_us, synchronisation_us = finish_us(figures, stage_ends_us)
    limits = figures.memory_bytes
    work_us = figures.device_work_us()
    if figures.degrees:  # a position counts as many times as it has devices
        work_us = work_us * figures.degrees * (len(figures.degrees) / sum(figures.degrees))
    tower = figures.tower
    tower_us = 0.0 if tower is None else tower.forward_us + tower.backward_us
    busy_us = micro_batches * (float(work_us.sum()) + tower_us) - saved_us
    return StepEstimate(
        step_us=step_us,
        pipeline_us=max(stage_ends_us),
        synchronisation_us=synchronisation_us,
        update_us=max(figures.update_us),
        memory_bytes=memory,
        fits=limits is None or all(held <= limit for held, limit in zip(memory, limits, strict=True)),
        busy_ratio=busy_us / (step_us * len(figures.static_bytes)) if step_us else 1.0,
    )


def finish_us(figures: StageFigures, stage_ends_us: Sequence[float]) -> tuple[float, float]:
    """Return when the last device ends its step, and microseconds of collectives on the fullest device."""
    num_devices = len(figures.static_bytes)
    computed = [0.0] * num_devices
    places = figures.places
    for group, end in zip(places, stage_ends_us, strict=True):
        for device in group:
            computed[device] = max(computed[device], end)
    free = [0.0] * num_devices
    spent = [0.0] * num_devices
    reduced = list(stage_ends_us)
    for collectives in (figures.synchronisations, figures.ties):
        ready = sorted(
            (max(reduced[stage] for stage in collective.stages), index)
            for index, collective in enumerate(collectives)
        )
        for when, index in ready:
            collective = collectives[index]
            devices = collective.devices or sorted(
                {device for stage in collective.stages for device in places[stage]}
            )
            end = max(when, *(free[device] for device in devices)) + collective.us
            for device in devices:
                free[device] = end
                spent[device] += collective.us
            for stage in collective.stages:
                reduced[stage] = end
    finished = (
        max(computed[device], free[device]) + figures.after_us[device] for device in range(num_devices)
    )
    return max(finished), max(map(sum, zip(spent, figures.gather_us, strict=True)))
