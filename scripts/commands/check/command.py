"""`tessel check`: a second opinion on the orders, the layout or the schedule that runs today."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.check.options import CheckOptions
from scripts.commands.check.report import opinion_document, print_opinion
from scripts.commands.check.source import load_case
from scripts.options import search_options
from scripts.options.dataclass_options import takes_options
from scripts.terminal import console
from tessel.jobs import jit_fallback, search_thread
from tessel.progress import interrupts, messages

if TYPE_CHECKING:
    from tessel.checking.opinion import Opinion
    from tessel.placement import Placement
    from tessel.schedule import Schedule
    from tessel.search.budget import SearchBudget

EXIT_BAD = 1
"""Of what deadlocks or does not fit."""

SHARE_OF_FIRST = 0.6
"""Part of the work that orders of the stages as they are may take; changed stages share the rest."""


@takes_options
def check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="ORDERS.csv|LAYOUT|SCHEDULE|PLAN",
            help="Orders as torch loads them, a layout of Megatron (or a file of it), a schedule, a plan.",
        ),
    ],
    options: CheckOptions,
) -> None:
    """Say whether a pipeline deadlocks, whether it fits, how far it is from the best, and what to change.

    Exits with status 1 if it deadlocks or does not fit.

    Examples:

    `tessel check orders.csv --profile profile.csv --memory 80GiB`

    `tessel check 'Et*5|t*6|t*6|t*5L' --devices 4 --micro-batches 16 --profile profile.csv`
    """
    options.check()
    case = load_case(file, options)
    jit_fallback.compile_or_do_without(search_options.only_time(options.work, options.time_limit))
    budget = options.budget()
    from tessel.checking.opinion import form_opinion

    opinion = search_thread.run_search(
        lambda: form_opinion(case, search=_BudgetedSearch(budget)), budget, description="checking"
    )
    with interrupts.deferred():
        if options.save is not None:
            _save(opinion, options)
        if options.json:
            console.print_json(opinion_document(opinion))
        else:
            print_opinion(opinion)
    if not opinion.is_good:
        raise typer.Exit(EXIT_BAD)


@dataclass(frozen=True, slots=True)
class _BudgetedSearch:
    """Looks for better orders with parts of a budget."""

    budget: SearchBudget

    def __call__(
        self, placement: Placement, micro_batches: int, limits: tuple[int, ...] | None, best: Schedule | None
    ) -> Schedule | None:
        from tessel.errors import InfeasibleError
        from tessel.search import find_schedule

        if self.budget.is_over:
            return None
        try:
            return find_schedule(
                placement,
                micro_batches=micro_batches,
                memory=limits,
                budget=self.budget.part(SHARE_OF_FIRST),
                start_from=best,
            )
        except InfeasibleError:
            return None


def _save(opinion: Opinion, options: CheckOptions) -> None:
    from tessel.documents import save

    assert options.save is not None
    if opinion.best is None:
        messages.note(f"no order on these stages fits, so {options.save} is not written")
        return
    save(opinion.best.schedule, options.save)
    messages.note(f"the best schedule found is written to {options.save}")
