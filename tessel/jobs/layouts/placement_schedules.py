"""The schedule of each placement that a model was tuned for, and the plan of the one that is taken."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tessel.jobs import search_thread
from tessel.jobs.inputs.limits import make_budget
from tessel.jobs.layouts.placements import PLANNED
from tessel.jobs.layouts.planned_layout import fastest_placement, placement_name, with_replicas
from tessel.jobs.shown.placement_tables import placement_rows
from tessel.progress import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tessel.jobs.inputs.tune_options import TuneOptions
    from tessel.search.budget import SearchBudget, StoppedBy
    from tessel.tuned_model.layout_choice import ChosenLayout
    from tessel.tuned_plan import TunedPlan
    from tuner.plan import ModelPlan


def find_plan(
    tuned: Mapping[str, ModelPlan | Exception],
    choice: ChosenLayout | None,
    options: TuneOptions,
) -> tuple[TunedPlan, StoppedBy]:
    """Search a schedule for each placement, and return the plan of the one asked for, or of the fastest.

    Raises:
        TunerError: the model cannot be cut so.
        InfeasibleError: it does not fit so.
    """
    import msgspec

    from tessel.tuned_model.model_placement import AUTO

    if choice is not None:
        tuned = _with_planned_layout(tuned, choice)
    plans, failures = _search_all(tuned, options)
    chosen = options.placement_name
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


def _search_all(
    tuned: Mapping[str, ModelPlan | Exception], options: TuneOptions
) -> tuple[dict[str, tuple[TunedPlan, StoppedBy]], dict[str, Exception]]:
    """Search a schedule for each placement, with a budget of its own; return plans, and why others failed."""
    from tessel.errors import InfeasibleError

    cut = {name: result for name, result in tuned.items() if not isinstance(result, Exception)}
    budgets = {name: make_budget(options.work, options.time_limit) for name in cut}
    # Side by side, searches would take from one another's time.
    jobs = options.jobs if options.time_limit is None else 1
    with messages.bar(f"searching schedules, {', '.join(cut)}") as update:
        searches = [
            (budgets[name], _search_of(name, result, budgets[name], options, update))
            for name, result in cut.items()
        ]
        found = search_thread.run_side_by_side(searches, jobs=jobs)
    answers = dict(zip(cut, found, strict=True))
    plans: dict[str, tuple[TunedPlan, StoppedBy]] = {}
    failures: dict[str, Exception] = {}
    for name, result in tuned.items():
        if isinstance(result, Exception):
            failures[name] = result
            continue
        try:
            plans[name] = answers[name](), budgets[name].stopped_by
        except InfeasibleError as error:
            failures[name] = error
    return plans, failures


def _search_of(
    name: str,
    tuned: ModelPlan,
    budget: SearchBudget,
    options: TuneOptions,
    update: Callable[[str], None],
) -> Callable[[], TunedPlan]:
    """Return what searches the schedule of one placement."""
    from tessel.pipeline import build_plan

    budget.on_progress = lambda progress: update(f"{name}: best makespan {progress.makespan} steps")
    return functools.partial(
        build_plan,
        tuned,
        micro_batches=options.micro_batches // tuned.replicas,
        memory_limit_bytes=options.memory_limit_bytes,
        optimizer=options.optimizer,
        sharding=options.sharding,
        recompute=not options.no_recompute,
        budget=budget,
        seed=options.seed,
    )
