"""Choose the layout of a model from its measured layers, with a progress bar, and say how it is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessel.jobs import search_thread
from tessel.jobs.inputs.limits import make_budget
from tessel.progress import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tessel.planning.layout import Layout
    from tessel.tuned_model.layout_choice import ChosenLayout, LayoutRequest
    from tessel.tuned_model.model_placement import ModelPlacement
    from tessel.tuned_plan import TunedPlan
    from tuner.frontend import Model
    from tuner.plan import LayersPlan
    from tuner.tuning.tune import TuningSettings

PLANNING_WORK = 8.0
"""Units of work of planning from layers, unless the user limits the search: some ten seconds."""


GUESSING_WORK = 2.0
"""Units of work of planning from guessed parts of layers."""

WORTH_MEASURING = 0.02
"""The share of a step that parts of layers must save, by a guess, to be measured."""


def choose_planned_layout(
    layers: LayersPlan, request: LayoutRequest, *, work: float | None, seed: int
) -> ChosenLayout:
    """Plan a step over measured layers; Ctrl-C keeps the best so far.

    Raises:
        ScheduleError: nothing fits, or no layout uses these devices.
    """
    from tessel.tuned_model.layout_choice import choose_layout

    budget = make_budget(PLANNING_WORK if work is None else work, None)
    with (
        messages.bar("planning from the layers") as update,
        search_thread.ended_by_interrupt(budget),
    ):
        return choose_layout(
            layers,
            request,
            budget=budget,
            seed=seed,
            on_progress=lambda progress: update(f"{progress.step_us / 1e3:.1f} ms a step: {progress.name}"),
        )


def choose_layout_in_parts(
    whole: ChosenLayout,
    guessed: LayersPlan,
    measure: Callable[[], LayersPlan],
    request: LayoutRequest,
    *,
    work: float | None,
    seed: int,
) -> ChosenLayout:
    """Return a layout that cuts within layers where one has a shorter step, and else the one of whole layers.

    Parts are measured only where a short search with guessed ones says that this could pay.

    Args:
        whole: planned from whole layers.
        guessed: the parts of layers, with figures derived from those of layers.
        measure: measures the parts.
        request: as `whole` was planned for.
        work: units of work of the search; None for its default.
    """
    from dataclasses import replace

    from tessel.errors import InfeasibleError
    from tessel.tuned_model.layout_choice import plan_layers

    step_us = whole.step_us
    budget = make_budget(GUESSING_WORK if work is None else min(work, GUESSING_WORK), None)
    try:
        found = plan_layers(guessed, replace(request, compares=False), budget=budget, seed=seed)
        if found.best.estimate.step_us > step_us * (1 - WORTH_MEASURING):
            return whole
        in_parts = choose_planned_layout(measure(), request, work=work, seed=seed)
    except InfeasibleError:
        return whole
    return replace(in_parts, in_parts=True) if in_parts.step_us < step_us else whole


def branched_placements(
    model: Model,
    settings_of: Callable[[ModelPlacement], TuningSettings],
    *,
    devices: int,
    replicas_of: int,
) -> tuple[dict[str, int], dict[str, TuningSettings]]:
    """Return the placements of branches that a model's structure offers, over all devices and replicated.

    Each replica has an equal part of the devices, at least two, and of the micro-batches. Which stages
    recompute is decided with the order of their blocks.

    Args:
        model: what is to be cut; nothing is measured.
        settings_of: how it is to be cut for a placement.
        devices: all are used.
        replicas_of: the micro-batches that replicas share; 1 where there are to be none.

    Returns:
        By name: how many replicas a placement has, and the settings that cut one of them.
    """
    from tessel.tuned_model.model_placement import BRANCHED_PLACEMENTS, model_placement
    from tuner.errors import TunerError
    from tuner.tuning.cut_model import placement_check

    require_placeable = placement_check(model)
    replicas: dict[str, int] = {}
    found: dict[str, TuningSettings] = {}
    for name in BRANCHED_PLACEMENTS:
        for count in range(1, devices // 2 + 1):
            if devices % count or replicas_of % count:
                continue
            settings = settings_of(model_placement(name, devices // count))
            assert settings.placed is not None  # they have branches
            try:
                require_placeable(settings.placed, settings.memory_limit_bytes)
            except TunerError:
                continue
            replicated = with_replicas(name, count)
            replicas[replicated], found[replicated] = count, settings
    return replicas, found


def fastest_placement(plans: Mapping[str, TunedPlan], choice: ChosenLayout | None) -> str:
    """Return the name of the plan whose step is shortest, the first of equals.

    Where a layout was planned, the sums of gradients and the update that follow the last block count too.

    Args:
        plans: by name, at least one.
        choice: what was planned; None where cuts were given.
    """
    from tessel.planning.costs.training_step import end_of_step
    from tessel.tuned_model.model_figures import figures_of_model

    def step_us(plan: TunedPlan) -> float:
        figures = figures_of_model(
            plan,
            link=None if choice is None else choice.link,
            update_us_a_byte=0.0 if choice is None else choice.update_us_a_byte,
            optimizer=plan.optimizer,
            sharding=plan.state_sharding,
        )
        return end_of_step(figures, plan.schedule, step_us=plan.step_us).step_us

    return min(plans, key=lambda name: step_us(plans[name]))


def placement_name(layout: Layout) -> str:
    """Return the name of a layout's placement, as `--placement` takes it, and the devices of a stage."""
    name = f"interleaved:{layout.chunks}" if layout.placement == "interleaved" else layout.placement
    return name if layout.tensor_parallel == 1 else f"{name} of {layout.tensor_parallel}"


def with_replicas(name: str, replicas: int) -> str:
    """Return the name of so many replicas of a placement."""
    return name if replicas == 1 else f"{name} × {replicas}"


def settings_of_layout(layout: Layout, settings: TuningSettings, *, in_parts: bool = False) -> TuningSettings:
    """Return the settings that cut a model as a layout says, all else as given.

    Args:
        layout: of layers, or of their parts.
    """
    from dataclasses import replace

    from tuner.stages.placed_stages import PlacedStages

    layer_cuts = tuple(first for first, _ in layout.cuts[1:])
    settings = replace(settings, in_parts=in_parts)
    width = layout.tensor_parallel
    if width > 1 or layout.joined:
        every = range(len(layout.cuts))
        placed = PlacedStages(
            tuple(
                tuple(first * width + part for first in layout.devices_of(stage) for part in range(width))
                for stage in every
            ),
            tuple(
                tuple(earlier for earlier in every if layout.next_stage(earlier) == stage) for stage in every
            ),
        )
        return replace(
            settings,
            num_stages=len(layout.cuts),
            stage_devices=(),
            placed=placed,
            cuts=None,
            layer_cuts=layer_cuts,
        )
    is_divided = layout.shards > 0
    stages = range(1, len(layout.cuts) - 1) if is_divided else range(len(layout.cuts))
    return replace(
        settings,
        num_stages=len(stages),
        stage_devices=tuple(layout.device_of(stage) for stage in stages),
        divides_ends=is_divided,
        cuts=None,
        layer_cuts=layer_cuts,
    )
