"""`tessel.check`: a second opinion on the orders, the layout, the schedule or the plan that runs today.

`CheckOptions` are the options of the command `tessel check`, with its names and defaults. Checked in
tests/tessel/jobs/test_checking.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessel.errors import InfeasibleError
from tessel.jobs import jit_fallback, search_thread
from tessel.jobs.inputs.arguments import check_choice, check_counts, parse_bandwidth, parse_bytes, parse_cuts
from tessel.jobs.inputs.check_source import case_of_plan, load_case
from tessel.jobs.inputs.keywords import options_of, with_signature
from tessel.jobs.inputs.limits import check_hop_us, make_budget, only_time
from tessel.jobs.planning import DEFAULT_HOP_US, DEFAULT_LINK, DEFAULT_OPTIMIZER, OPTIMIZERS
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.checking.case import Case
    from tessel.checking.opinion import Opinion
    from tessel.placement import Placement
    from tessel.profiles.profile import Profile
    from tessel.schedule import Schedule
    from tessel.search.budget import SearchBudget

DEFAULT_WORK = 5.0

SHARE_OF_FIRST = 0.6
"""Part of the work that orders of the stages as they are may take; changed stages share the rest."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What a file does not say.

    Attributes:
        devices: ranks of the pipeline, for a layout of Megatron.
        micro_batches: of a step, likewise.
        group_size: Megatron's `microbatch_group_size_per_vp_stage`; `devices` if None.
        profile: a table of layer timings, or its path, that gives the stages' costs.
        cuts: first and last layer of each stage of a CSV, `0-5,6-11`; balanced if None.
        memory: of a device: `80GiB` with a profile or plan, else units, one number or one each.
        micro_batch: samples of a micro-batch, of the profile's sizes; the smallest if None.
        data_parallel: replicas of the pipeline.
        tensor_parallel: degree, of those in the profile.
        link: bandwidth between devices, such as `100GB/s`, or bytes a second.
        hop_us: microseconds of a message between devices.
        optimizer: whose state is kept in memory.
        work: units of the search of better orders; `DEFAULT_WORK` if it and the limit are None.
        time_limit: of that search, such as `10s`, or seconds.
    """

    devices: int | None = None
    micro_batches: int | None = None
    group_size: int | None = None
    profile: str | os.PathLike[str] | Profile | None = None
    cuts: str | None = None
    memory: str | int | Sequence[int] | None = None
    micro_batch: int | None = None
    data_parallel: int = 1
    tensor_parallel: int = 1
    link: str | float = DEFAULT_LINK
    hop_us: float = DEFAULT_HOP_US
    optimizer: str = DEFAULT_OPTIMIZER
    work: float | None = None
    time_limit: str | float | None = None

    def check(self) -> None:
        """Refuse values that are wrong by themselves, before anything is read.

        Raises:
            UsageError: there is one.
        """
        counts = ("devices", "micro_batches", "group_size", "micro_batch", "data_parallel", "tensor_parallel")
        check_counts(self, counts)
        check_hop_us(self.hop_us)
        check_choice("--optimizer", self.optimizer, OPTIMIZERS)
        parse_bandwidth(self.link)
        if self.profile is not None and self.memory is not None:
            parse_bytes(str(self.memory))
        self.parsed_cuts()
        self.budget()

    def parsed_cuts(self) -> tuple[tuple[int, int], ...] | None:
        """Return first and last layer of each stage; None where they are left out."""
        return None if self.cuts is None else parse_cuts("--cuts", self.cuts)

    def budget(self) -> SearchBudget:
        """Return what the search of better orders may spend."""
        work = DEFAULT_WORK if self.work is None and self.time_limit is None else self.work
        return make_budget(work, self.time_limit)


def check(source: Any, /, **options: Any) -> Opinion:
    """Say whether a pipeline deadlocks, whether it fits, how far it is from the best, and what to change.

        >>> import tessel
        >>> opinion = tessel.check("Et|t|t|tL", devices=2, micro_batches=4, work=1)
        >>> opinion.deadlock, opinion.found.schedule.makespan >= opinion.lower_bound
        ((), True)

    Args:
        source: orders as torch loads them (a CSV), a layout of Megatron or a file of it, a schedule, a plan,
            or the path of any of these.
        options: those of the command `tessel check`, as `profile="timings.csv", memory="80GiB"`; see
            `CheckOptions`. `progress=False` shows nothing.

    Raises:
        UsageError: there is no such option, or a value is none, or one is missing.
        DocumentError: the source cannot be read.
        ScheduleError: its orders are incomplete, or its stages cannot be priced.
    """
    with messages.verbosity(quiet=not options.pop("progress", True)):
        return check_with(source, options_of(CheckOptions, options))


def check_with(source: Any, options: CheckOptions) -> Opinion:
    """Return the opinion that these options ask for; see `check`."""
    from tessel.checking.opinion import form_opinion

    options.check()
    case = _case_of(source, options)
    jit_fallback.compile_or_do_without(only_time(options.work, options.time_limit))
    budget = options.budget()
    return search_thread.run_search(
        lambda: form_opinion(case, search=_BudgetedSearch(budget)), budget, description="checking"
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
