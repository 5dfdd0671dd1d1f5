"""`tessel plan`: from a table of layer timings to the best use of so many devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.plan.by_hand import layout_by_hand
from scripts.commands.plan.options import PlanCommandOptions
from scripts.commands.plan.report import plan_document, print_plan
from scripts.commands.plan.source import load_source
from scripts.options import completion, search_options
from scripts.options.dataclass_options import common_options, takes_options
from scripts.searching import jit_fallback, search_thread
from scripts.terminal import console, interrupts

if TYPE_CHECKING:
    from tessel.planning.plan_result import PlanProgress, PlanResult
    from tessel.planning.saved_plan import SavedPlan
    from tessel.profiles.profile import Profile
    from tessel.search.budget import SearchBudget

EXIT_DOES_NOT_FIT = 1
"""Of a plan that is printed though it exceeds the memory."""


@common_options(
    "devices memory global_batch micro_batches placement link hop_us optimizer",
    "work time_limit save out json",
)
@takes_options
def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE|MODEL|PLAN",
            help="A table of layer timings, a profile of another tool, a plan, or a model to measure.",
            autocompletion=completion.models,
        ),
    ],
    options: PlanCommandOptions,
) -> None:
    """Find degrees, cuts, placement and order of a training step from a table of layer timings.

    Examples:

    `tessel plan profile.csv --devices 16 --memory 80GiB --global-batch 512`

    `tessel plan profile.csv --devices 8 --micro-batches 32 --save plan.json --out plan.svg`
    """
    options.check()
    profile = load_source(model, options)
    jit_fallback.compile_or_do_without(search_options.only_time(options.work, options.time_limit))
    budget = options.budget()
    result, shortfall = _find(profile, options, budget)
    with interrupts.deferred():
        saved = _saved(result, profile, options)
        if options.save is not None:
            _save(saved, options)
        if options.out is not None:
            _draw(saved, options)
        if options.json:
            console.print_json(plan_document(result, profile, options))
        else:
            print_plan(result, profile, options)
            if options.save is None:
                console.print_note("add --save plan.json to keep it, for tessel draw, compare and export")
            else:
                console.print_line(f"\nto train with it: tessel export {options.save} --to torchtitan")
    if shortfall:
        console.print_note(shortfall)
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _find(profile: Profile, options: PlanCommandOptions, budget: SearchBudget) -> tuple[PlanResult, str]:
    """Return the best plan, and why it does not fit; an empty text where it does."""
    from dataclasses import replace

    from tessel.errors import InfeasibleError
    from tessel.planning.find_plan import find_plan

    by_hand = None if options.by_hand is None else layout_by_hand(options.by_hand, profile, options)
    cluster, wanted = options.cluster(), options.plan_options(by_hand)
    global_batch = options.samples_of_step(profile)
    texts = ["planning"]

    def tell(progress: PlanProgress) -> None:
        texts.append(
            f"best so far {progress.step_us / 1e3:.4g} ms, at least {progress.lower_bound_us / 1e3:.4g} ms"
        )

    def search(*, may_exceed_memory: bool) -> PlanResult:
        given = replace(wanted, may_exceed_memory=may_exceed_memory)
        return search_thread.run_search(
            lambda: find_plan(
                profile,
                cluster,
                global_batch=global_batch,
                options=given,
                budget=budget,
                seed=options.seed,
                on_progress=tell,
            ),
            budget,
            description="planning",
            texts=texts,
        )

    try:
        return search(may_exceed_memory=False), ""
    except InfeasibleError as error:
        texts.append("nothing fits; looking for what comes nearest")
        return search(may_exceed_memory=True), str(error)


def _saved(result: PlanResult, profile: Profile, options: PlanCommandOptions) -> SavedPlan:
    """Return the plan as it is saved and drawn."""
    from tessel.planning.saved_plan import SavedPlan

    return SavedPlan.of(
        result,
        profile=profile,
        cluster=options.cluster(),
        optimizer=options.optimizer,
        runtime=options.runtime,
    )


def _save(saved: SavedPlan, options: PlanCommandOptions) -> None:
    from tessel.documents import save

    assert options.save is not None
    save(saved, options.save)
    console.print_note(f"plan written to {options.save}")


def _draw(saved: SavedPlan, options: PlanCommandOptions) -> None:
    from scripts.reports.pictures import write_picture

    assert options.out is not None
    write_picture(saved.schedule, saved, options.out, title=saved.title)
    console.print_note(f"{options.out} written")
