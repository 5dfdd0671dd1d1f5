"""`tessel language collect`: measure schedules of many kernels, and train the draft model on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.language.machine import ThreadsOption, check_numbers, find_machine
from scripts.options.dataclass_options import takes_options
from scripts.options.tuning_options import (
    JsonOption,
    RecordsOption,
    SeedOption,
    TargetOption,
)
from scripts.terminal import console
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS

if TYPE_CHECKING:
    from tuner.graph.relax_types import IRModule
    from tuner.language.collecting import Collected


@dataclass(frozen=True, kw_only=True)
class CollectOptions:
    """Which kernels are measured, and how often."""

    records: RecordsOption = DEFAULT_RECORDS
    target: TargetOption = "cpu"
    threads: ThreadsOption = 1
    kernels: Annotated[
        str | None,
        "Kernels, or models for all of theirs, such as `gpt2:tiny`, separated by spaces; random "
        "ones if left out.",
    ] = None
    count: Annotated[int, "Random kernels, of every kind in turn."] = 48
    random: Annotated[int, "Trials at random of each kernel."] = 16
    rounds: Annotated[int, "Rounds guided by the draft model after that."] = 4
    batch: Annotated[int, "Trials of each kernel in a guided round."] = 9
    seed: SeedOption = 0
    json: JsonOption = False


@takes_options
def collect(options: CollectOptions) -> None:
    """Measure schedules of many kernels: random ones, then rounds guided by the draft model.

    Every finished batch is a record, so that Ctrl-C keeps it and the same command resumes. `--proposer draft`
    trains its model from these records.

    Example: `tessel language collect --kernels "dense:64x256x256,relu product:8x64x64x64" --random 8`
    """
    check_numbers(
        ("--count", options.count, 1),
        ("--random", options.random, 0),
        ("--rounds", options.rounds, 0),
        ("--batch", options.batch, 1),
        ("--threads", options.threads, 1),
    )
    from tuner.backends.metaschedule.trial_worker import builder_and_runner
    from tuner.language.collecting import CollectionPlan, collect_schedules

    machine = find_machine(options.target, options.threads)
    plan = CollectionPlan(
        random=options.random, rounds=options.rounds, batch=options.batch, seed=options.seed
    )
    if not plan.trials:
        raise typer.BadParameter(
            "--random and --rounds ask for no trial; leave one out or give it a larger number"
        )
    builder, runner = builder_and_runner(options.threads)
    kernels = _kernels(options)
    with messages.bar("starting") as update:
        found = collect_schedules(
            kernels,
            plan,
            machine=machine,
            records_url=options.records,
            builder=builder,
            runner=runner,
            on_progress=update,
        )
    _show(found, options)


def _kernels(options: CollectOptions) -> list[tuple[str, IRModule]]:
    """Return the kernels by name."""
    from tuner.language.collecting import collection_kernels
    from tuner.language.kernels import named_kernels

    if options.kernels is None:
        return collection_kernels(options.count, options.seed)
    kernels = dict(each for word in options.kernels.split() for each in named_kernels(word))
    if not kernels:
        raise typer.BadParameter("--kernels names none; give at least one, such as dense:64x256x256,relu")
    return list(kernels.items())


def _show(found: Collected, options: CollectOptions) -> None:
    from cost_model.draft.draft_model import MIN_TRIALS

    if options.json:
        from scripts.documents.language_models import SchedulesCollected

        console.print_json(
            SchedulesCollected(
                kernels=found.num_kernels,
                trials=found.num_trials,
                new_trials=found.num_new,
                mean_quality=found.mean_quality,
            )
        )
        return
    console.print_line(
        f"{found.num_kernels} kernels have {found.num_trials} trials, {found.num_new} of them measured now"
    )
    for number, quality in enumerate(found.mean_quality):
        if quality is not None:
            label = "random schedules" if number == 0 else f"guided round {number}"
            console.print_line(f"{label}: {quality:.0%} of the best speed in the mean")
    if found.num_trials < MIN_TRIALS:
        messages.note("these are too few trials for a draft model; raise --random or --count")
