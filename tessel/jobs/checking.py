"""`tessel.check`: an assessment of the orders, the layout, the schedule or the plan that runs today.

`CheckOptions` are the options of the command `tessel check`, with its names and defaults. Checked in
tests/tessel/jobs/test_planning.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from tessel.errors import InfeasibleError, UsageError
from tessel.jobs import jit_fallback, search_thread
from tessel.jobs.check_source import case_of_plan, load_case
from tessel.jobs.inputs.check_options import CheckOptions
from tessel.jobs.inputs.keywords import options_of, with_signature
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.checking.assessment import Assessment
    from tessel.checking.case import Case
    from tessel.checking.trace_assessment import TraceAssessment
    from tessel.placement import Placement
    from tessel.schedule import Schedule
    from tessel.search.budget import SearchBudget

SHARE_OF_FIRST = 0.6
"""Part of the work that orders of the stages as they are may take; changed stages share the rest."""


@overload
def check(source: Any, /, **options: Any) -> Assessment: ...


@overload
def check(*, trace: str | os.PathLike[str], **options: Any) -> TraceAssessment: ...


def check(source: Any = None, /, **options: Any) -> Assessment | TraceAssessment:
    """Say whether a pipeline deadlocks, whether it fits, how far it is from the best, and what to change.

        >>> import tessel
        >>> assessment = tessel.check("Et|t|t|tL", devices=2, micro_batches=4, work=1)
        >>> assessment.deadlock, assessment.found.schedule.makespan >= assessment.lower_bound
        ((), True)

    Args:
        source: orders as torch loads them (a CSV), a layout of Megatron or a file of it, a schedule, a plan,
            or the path of any of these; nothing with `trace="steps.csv.gz"`, whose recorded steps are
            replayed and give a `TraceAssessment`.
        options: those of the command `tessel check`, as `profile="timings.csv", memory="80GiB"`; see
            `CheckOptions`. `progress=False` shows nothing.

    Raises:
        UsageError: there is no such option, or a value is none, or one is missing.
        DocumentError: the source cannot be read.
        ScheduleError: its orders are incomplete, or its stages cannot be priced.
    """
    with messages.verbosity(quiet=not options.pop("progress", True)):
        given = options_of(CheckOptions, options)
        if given.trace is None:
            return check_with(source, given)
        if source is not None:
            raise UsageError("check was given a source and a trace, and checks one of them; leave one out")
        return check_trace(given.trace, given)


def check_trace(path: str | os.PathLike[str], options: CheckOptions) -> TraceAssessment:
    """Return the assessment of recorded steps; see `check`.

    Raises:
        UsageError: a value is none.
        DocumentError: the trace cannot be read.
    """
    from tessel.profiles.step_trace import read_step_trace
    from tessel.profiles.traces.steps import is_profiler_trace, read_profiler_steps

    options.check()
    trace = read_profiler_steps(path) if is_profiler_trace(path) else read_step_trace(path)
    for note in trace.notes:
        messages.note(note)
    jit_fallback.compile_if_needed()
    from tessel.checking.trace_assessment import assess_trace

    budget = options.budget()
    texts = ["replaying"]
    return search_thread.run_search(
        lambda: assess_trace(trace, budget=budget, on_progress=texts.append),
        budget,
        description="checking",
        texts=texts,
    )


def check_with(source: Any, options: CheckOptions) -> Assessment:
    """Return the assessment that these options ask for; see `check`."""
    from tessel.checking.assessment import assess

    options.check()
    if source is None:
        raise UsageError(
            "nothing was given to check; give orders, a layout, a schedule or a plan, or a trace"
        )
    case = _case_of(source, options)
    jit_fallback.compile_if_needed()
    budget = options.budget()
    return search_thread.run_search(
        lambda: assess(case, search=_BudgetedSearch(budget)), budget, description="checking"
    )


def _case_of(source: Any, options: CheckOptions) -> Case:
    from tessel.checking.case import case_of_schedule
    from tessel.jobs.plan import Plan
    from tessel.schedule import Schedule

    if isinstance(source, Plan):
        return case_of_plan(source.title, source, options)
    if isinstance(source, Schedule):
        return case_of_schedule("schedule", source)
    return load_case(os.fspath(source), options)


@dataclass(frozen=True, slots=True)
class _BudgetedSearch:
    """Looks for better orders with parts of a budget."""

    budget: SearchBudget

    def __call__(
        self, placement: Placement, micro_batches: int, limits: tuple[int, ...] | None, best: Schedule | None
    ) -> Schedule | None:
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


with_signature(check, CheckOptions)
