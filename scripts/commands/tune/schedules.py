"""The schedule of each placement that a model was tuned for, and the plan of the one that is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scripts.commands.tune.placements import PLANNED
from scripts.options import search_options
from scripts.reports.placements import placement_rows
from scripts.searching import search_thread
from scripts.searching.planned_layout import fastest_placement, placement_name, with_replicas
from scripts.terminal import console

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scripts.commands.tune.options import TuneOptions
    from tessel.plan import Plan
    from tessel.search.budget import StoppedBy
    from tessel.tuned_model.layout_choice import ChosenLayout
    from tuner.plan import ModelPlan


def find_plan(
    tuned: Mapping[str, ModelPlan | Exception],
    choice: ChosenLayout | None,
    options: TuneOptions,
) -> tuple[Plan, StoppedBy]:
    """Search a schedule for each placement, and return the plan of the one asked for, or of the fastest.

    Raises:
        TunerError: the model cannot be cut so.
        InfeasibleError: it does not fit so.
    """
    import msgspec

    from tessel.errors import InfeasibleError
    from tessel.tuned_model.model_placement import AUTO

    if choice is not None:
        tuned = _with_planned_layout(tuned, choice)
    plans: dict[str, tuple[Plan, StoppedBy]] = {}
    failures: dict[str, Exception] = {}
    for name, result in tuned.items():
        if isinstance(result, Exception):
            failures[name] = result
            continue
        try:
            share = options.micro_batches // result.replicas
            plans[name] = _search(name, result, replace(options, micro_batches=share))
        except InfeasibleError as error:
            failures[name] = error
    chosen = options.placement
    if chosen == AUTO:
        if not plans:
            raise next(iter(failures.values()))
        chosen = fastest_placement({name: each for name, (each, _) in plans.items()}, choice)
    elif chosen in failures:
        raise failures[chosen]
    plan, stopped_by = plans[chosen]
    if len(tuned) == 1:
        return plan, stopped_by
    rows = placement_rows({name: each for name, (each, _) in plans.items()}, failures, chosen)
    planned = () if choice is None else choice.rows
    return msgspec.structs.replace(plan, placements=rows, planned=planned), stopped_by


def _with_planned_layout(
    tuned: Mapping[str, ModelPlan | Exception], choice: ChosenLayout
) -> dict[str, ModelPlan | Exception]:
    """Name the planned layout as its placement is, and give it its replicas."""
    from tessel.tuned_model.replicas import replicated

    name = with_replicas(placement_name(choice.layout), choice.layout.data_parallel)
    if name in tuned:
        name = f"{name}, planned"
    planned = tuned[PLANNED]
    if not isinstance(planned, Exception):
        planned = replicated(planned, choice.copies, is_mirrored=choice.is_mirrored)
    return {name: planned} | {each: found for each, found in tuned.items() if each != PLANNED}


def _search(name: str, tuned: ModelPlan, options: TuneOptions) -> tuple[Plan, StoppedBy]:
    """Search the schedule of one placement, with a budget of its own."""
    from tessel.pipeline import build_plan

    budget = search_options.make_budget(options.work, options.time_limit)
    with (
        console.progress_bar(f"searching schedules, {name}") as update,
        search_thread.ended_by_interrupt(budget),
    ):
        budget.on_progress = lambda progress: update(f"best makespan {progress.makespan} steps")
        plan = build_plan(
            tuned,
            micro_batches=options.micro_batches,
            memory_limit_bytes=options.memory_limit_bytes,
            optimizer=options.optimizer,
            recompute=not options.no_recompute,
            budget=budget,
            seed=options.seed,
        )
    return plan, budget.stopped_by
