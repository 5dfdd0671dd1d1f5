"""Report of `tessel schedule`: a schedule or a repetend that was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scripts.terminal import console
from tessel.jobs.shown.formatting import format_numbers
from tessel.progress import messages

if TYPE_CHECKING:
    from scripts.commands.schedule.command import ScheduleOptions
    from scripts.documents.searches import PrintedSpread
    from tessel.schedule import Schedule
    from tessel.search import RepetendResult
    from tessel.search.budget import SearchBudget

STOPPED_BY = {
    "proven": "no better schedule exists",
    "work": "the work budget was spent",
    "time": "the time limit was reached",
    "interrupt": "the search was interrupted",
    "size": "the problem is too large to search further",
}
"""Why a search ended, as a clause after "since"."""

_MAX_NAMED = 4
"""Devices that are named one by one."""


def show_schedule(found: Schedule, budget: SearchBudget, options: ScheduleOptions) -> None:
    """Print a schedule as one document, or in words; and its makespan where durations vary, if asked for."""
    spread = options.spread_of([found])
    if options.json:
        from msgspec import UNSET

        from scripts.documents.searches import PrintedSchedule

        # What is proven is printed as it is saved; `optimal` says it.
        stopped_by = UNSET if budget.is_proven else budget.stopped_by
        saved = {name: getattr(found, name) for name in found.__struct_fields__}
        console.print_json(PrintedSchedule(**saved, stopped_by=stopped_by, spread=spread or UNSET))
        return
    proof = "proven optimal" if found.optimal else f"gap {found.gap:.1%}"
    console.print_line(
        f"makespan      {found.makespan} steps for {found.micro_batches} micro-batches ({proof})"
    )
    console.print_line(f"lower bound   {found.lower_bound}")
    console.print_line(f"bubble ratio  {found.bubble_ratio:.1%}")
    limit = "" if found.memory is None else f" (limit {format_numbers(found.memory)})"
    console.print_line(f"peak memory   {format_numbers(found.peak_memory)}{limit}, {_fullest(found)}")
    if found.overlap_factor is not None:
        console.print_line(
            f"overlap       {len(found.pairs)} pairs of a forward and a backward run together, each in "
            f"{found.overlap_factor:g} of its sum"
        )
    if found.repetend is not None:
        repetend = found.repetend
        state = "proven optimal" if repetend.optimal else f"at least {repetend.lower_bound}"
        console.print_line(
            f"repetend      {repetend.micro_batches} micro-batches every {repetend.period} steps ({state}), "
            f"steps {repetend.start} to {repetend.end}"
        )
    print_spread(spread)
    _print_end(found.found_by, f"{found.search_seconds:.3f}", budget)


def print_spread(spread: PrintedSpread | None) -> None:
    """Print the makespan where durations vary, and a greedy runtime's beside it; nothing without."""
    if spread is None:
        return
    quantiles = ", ".join(f"{name} {steps:.1f}" for name, steps in spread.quantiles.items())
    console.print_line(f"spread        {spread.distribution}, replayed: mean {spread.mean:.1f}, {quantiles}")
    if spread.greedy_ratio is not None:
        console.print_line(
            f"greedy        {spread.greedy_ratio:.3f} times as long at p95, where devices run what can start"
        )


def _fullest(found: Schedule) -> str:
    """Return which devices hold most, as a clause."""
    most = max(found.peak_memory)
    devices = [device for device, peak in enumerate(found.peak_memory) if peak == most]
    if len(devices) == len(found.peak_memory):
        return "the same on every device" if len(devices) > 1 else "on the one device"
    if len(devices) > _MAX_NAMED:
        return f"most on device {devices[0]} and {len(devices) - 1} others"
    return f"most on device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"


def show_repetend(found: RepetendResult, budget: SearchBudget, *, as_json: bool) -> None:
    """Print a repetend as one document, or in words."""
    if as_json:
        from scripts.documents.searches import PrintedRepetend

        document = PrintedRepetend(
            period=found.period,
            micro_batches=found.copies,
            lower_bound=found.lower_bound,
            optimal=found.optimal,
            steps_per_micro_batch=found.period / found.copies,
            rate_lower_bound=float(found.rate_lower_bound),
            rate_optimal=found.rate_optimal,
            starts=found.starts,
            search_seconds=found.search_seconds,
            found_by=found.found_by,
            stopped_by=budget.stopped_by,
        )
        console.print_json(document)
        return
    state = "proven optimal" if found.optimal else f"at least {found.lower_bound}"
    console.print_line(f"period        {found.period} steps for {found.copies} micro-batches ({state})")
    rate = f"{found.period / found.copies:.4g}"
    least = "proven optimal" if found.rate_optimal else f"at least {float(found.rate_lower_bound):.4g}"
    console.print_line(f"rate          {rate} steps per micro-batch ({least})")
    _print_end(found.found_by, f"{found.search_seconds:.4f}", budget)


def save_schedule(found: Schedule, path: Path | None) -> None:
    """Write a schedule to a file, where one is named."""
    from tessel.documents import save_document

    if path is not None:
        save_document(path, found.to_json())
        messages.note(f"schedule written to {path}")


def _print_end(found_by: str, seconds: str, budget: SearchBudget) -> None:
    from tessel.search.budget import OPERATIONS_A_UNIT

    units = f"{budget.operations / OPERATIONS_A_UNIT:.3g} units of work"
    console.print_line(f"found by      {found_by}, in {seconds} s")
    console.print_line(f"stopped by    {budget.stopped_by}: {STOPPED_BY[budget.stopped_by]}, after {units}")
