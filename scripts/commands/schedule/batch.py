"""`tessel schedule --batch`: micro-batches that differ, on one pipeline or shared out to replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.commands.schedule.results import STOPPED_BY, print_spread, save_schedule, show_schedule
from scripts.terminal import console
from tessel.jobs import search_thread
from tessel.progress import interrupts

if TYPE_CHECKING:
    from scripts.commands.schedule.command import ScheduleOptions
    from scripts.documents.searches import PrintedSpread
    from tessel.batches import Batch
    from tessel.placement import Placement
    from tessel.search.batches.assignment import Assignment
    from tessel.search.budget import SearchBudget

MAX_ROWS = 40
"""Replicas that are listed one by one."""


def find_batch(
    placement: Placement, text: str, limits: tuple[int, ...] | None, options: ScheduleOptions
) -> None:
    """Search and print what is asked for.

    Raises:
        UsageError: the text is no batch.
        DocumentError: the file of the batch cannot be read.
        ScheduleError: it cannot be shared out so, or nothing fits.
    """
    from tessel.jobs.inputs.batches import read_batch

    batch = read_batch(text, placement)
    budget = options.make_budget()
    if options.replicas is None:
        _find_schedule(placement, batch, limits, budget, options)
    else:
        _share_out(placement, batch, limits, budget, options)


def _find_schedule(
    placement: Placement,
    batch: Batch,
    limits: tuple[int, ...] | None,
    budget: SearchBudget,
    options: ScheduleOptions,
) -> None:
    from tessel.search.batches.find_batch_schedule import find_batch_schedule

    found = search_thread.run_search(
        lambda: find_batch_schedule(placement, batch, memory=limits, budget=budget, seed=options.seed),
        budget,
        description="searching",
    )
    with interrupts.deferred():
        save_schedule(found, options.save)
        show_schedule(found, budget, options)


def _share_out(
    placement: Placement,
    batch: Batch,
    limits: tuple[int, ...] | None,
    budget: SearchBudget,
    options: ScheduleOptions,
) -> None:
    from tessel.search.batches.assignment import assign_micro_batches

    replicas = options.replicas
    assert replicas is not None
    found = search_thread.run_search(
        lambda: assign_micro_batches(
            placement,
            batch,
            replicas=replicas,
            keep_order=options.keep_order,
            memory=limits,
            budget=budget,
            seed=options.seed,
        ),
        budget,
        description="sharing out",
        texts=["sharing out micro-batches"],
    )
    with interrupts.deferred():
        spread = options.spread_of(found.schedules)
        if options.json:
            _print_document(found, budget, spread)
        else:
            _print_assignment(batch, found, budget, spread)


def _print_document(found: Assignment, budget: SearchBudget, spread: PrintedSpread | None) -> None:
    from msgspec import UNSET

    from scripts.documents.searches import PrintedAssignment

    console.print_json(
        PrintedAssignment(
            makespan=found.makespan,
            lower_bound=found.lower_bound,
            given=found.given,
            replicas=found.replicas,
            schedules=found.schedules,
            found_by=found.found_by,
            stopped_by=budget.stopped_by,
            spread=spread or UNSET,
        )
    )


def _print_assignment(
    batch: Batch, found: Assignment, budget: SearchBudget, spread: PrintedSpread | None
) -> None:
    proof = "proven optimal" if found.makespan == found.lower_bound else f"gap {found.gap:.1%}"
    console.print_line(
        f"makespan      {found.makespan} steps on the slowest of {len(found.replicas)} replicas"
    )
    console.print_line(f"lower bound   {found.lower_bound} ({proof})")
    if found.given is not None:
        console.print_line(
            f"as given      {found.given} steps with 1F1B and equal runs, "
            f"{found.given / found.makespan:.2f} times as long"
        )
    print_spread(spread)
    console.print_line(f"found by      {found.found_by}")
    console.print_line(f"stopped by    {budget.stopped_by}: {STOPPED_BY[budget.stopped_by]}")
    names = batch.names
    rows = [
        [
            str(replica),
            str(schedule.makespan),
            " ".join(map(str, _in_turn(own, schedule.starts))),
            " ".join(names[each] for each in _in_turn(own, schedule.starts)),
        ]
        for replica, (own, schedule) in enumerate(zip(found.replicas, found.schedules, strict=True))
    ]
    console.print_line()
    console.print_table("", ["replica", "steps", "micro-batches", "classes"], rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        console.print_line(f"and {len(rows) - MAX_ROWS} replicas more; --json prints all")


def _in_turn(own: tuple[int, ...], starts: object) -> list[int]:
    """Return a replica's micro-batches in the order in which they begin."""
    from tessel.schedule import Start

    assert isinstance(starts, tuple)
    order = dict.fromkeys(start.micro_batch for start in starts if isinstance(start, Start))
    return [own[each] for each in order]
