"""Tessel's own names for its search: `Composer.compose_n`, `compose` and `compose_fast`.

    >>> from tessel.schedule.composer import Composer                               # doctest: +SKIP
    >>> schedule = Composer.compose_n(placement, memory=4, nmicros=4)               # doctest: +SKIP
    >>> print(schedule.unroll(6))                                                   # doctest: +SKIP

A thin wrapper: the repetend is found by `tessel.search.find_repetend`, exactly and with a proof, so that the
number of micro-batches need not be guessed; `nmicros` is only the number shown. Warm-up and cool-down are
searched by `tessel.search.find_schedule`, as `tessel schedule` does, without a barrier between the phases. A
composed plan keeps its repetend, even where a schedule of few micro-batches without one is shorter; `unroll`
returns the shortest found.

No solution is an `InfeasibleError` that names the device, where Tessel returns None.
Checked in tests/tessel/test_schedplan.py and tests/tessel/schedule/test_composer.py.

Source: Lin et al., Tessel (HPCA 2024), section 4, whose search this replaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tessel import search
from tessel.orders import device_orders, earliest_starts
from tessel.schedule.schedplan import Block, SchedPlan
from tessel.schedule.schedule import Repetend, Schedule
from tessel.schedule.solver import StepOptimalSolver
from tessel.schedule.window import is_exact
from tessel.validation import find_violations

if TYPE_CHECKING:
    from tessel.search import RepetendResult

WORK = 60.0
"""Units of work that the search of a repetend may take, about a minute; Tessel's own has no limit."""

MAX_MORE_PERIODS = 2
"""Periods added to a plan whose repetend cannot be repeated as it stands; one serves for Tessel's shapes."""

RAMP_WORK = 0.5
"""Units of work for warm-up and cool-down. On Tessel's five shapes half of it reaches what ten reach."""


class Composer:
    """Searches the schedule of a placement."""

    @staticmethod
    def compose(micro: SchedPlan, memory: int | Sequence[int]) -> SchedPlan:
        """Return the schedule with the least period, of as many micro-batches as its repetend needs.

        Args:
            micro: the placement of one micro-batch.
            memory: limit in units, one for all devices or one per device.

        Raises:
            InfeasibleError: no schedule keeps the limit; the message names the device.
            ScheduleError: the placement is invalid, or nothing was found within `WORK`.
        """
        return Composer.compose_n(micro, memory, 1)

    @staticmethod
    def compose_n(micro: SchedPlan, memory: int | Sequence[int], nmicros: int) -> SchedPlan:
        """Return the schedule with the least period, of at least so many micro-batches.

        Args:
            micro: the placement of one micro-batch.
            memory: limit in units, one for all devices or one per device.
            nmicros: micro-batches that the schedule shows; more where its repetend needs more.

        Raises:
            InfeasibleError: no schedule keeps the limit; the message names the device.
            ScheduleError: the placement is invalid, or nothing was found within `WORK`.
        """
        if nmicros < 1:
            raise ValueError(f"{nmicros} micro-batches were asked for; give at least 1")
        _number(micro)
        found = search.find_repetend(micro.to_placement(), memory=memory, budget=search.SearchBudget(WORK))
        return _composed(found, max(nmicros, _least_micro_batches(found)))

    @staticmethod
    def compose_fast(
        micro: SchedPlan,
        memory: int | Sequence[int],
        wc_ratio: tuple[int, float] | None = None,
        flip: bool = True,
    ) -> SchedPlan:
        """Return what `compose` returns; the search is exact and fast, so there is no second one.

        Args:
            micro: the placement of one micro-batch.
            memory: limit in units, one for all devices or one per device.
            wc_ratio: without effect; Tessel ends its search when warm-up and cool-down are a small share.
            flip: without effect; Tessel reverses every second device to guess a better repetend.

        Raises:
            InfeasibleError: no schedule keeps the limit; the message names the device.
            ScheduleError: the placement is invalid, or nothing was found within `WORK`.
        """
        del wc_ratio, flip
        return Composer.compose(micro, memory)

    @staticmethod
    def construct(
        blocks: Sequence[Block],
        devices: Sequence[Sequence[int]],
        ndevs: int,
        memory: int | Sequence[int],
        upper: int | None = None,
        accept: int | None = None,
        optimizer: type[StepOptimalSolver] = StepOptimalSolver,
    ) -> tuple[SchedPlan | None, int | None]:
        """Return the shortest plan of these blocks and its steps, both None where none is below `upper`.

        Args:
            blocks: of any micro-batches, with their dependencies.
            devices: the devices of each.
            memory: limit in units, one for all devices or one per device.
            upper: the plan is to take fewer steps; None for no limit.
            accept: see `StepOptimalSolver.solve`.
            optimizer: the solver, the only one there is.
        """
        solver = optimizer.of(blocks, devices, ndevs)
        steps = solver.solve(memory, upper, accept)
        return next(iter(solver.solutions()), None), steps

    @staticmethod
    def satisfy(
        blocks: Sequence[Block], devices: Sequence[Sequence[int]], ndevs: int, memory: int | Sequence[int]
    ) -> bool:
        """Return whether any schedule of these blocks keeps the limit; arguments as for `construct`."""
        return StepOptimalSolver.of(blocks, devices, ndevs).satisfy(memory)

    @staticmethod
    def memory(blocks: Sequence[Block], devices: Sequence[Sequence[int]], ndevs: int) -> list[int]:
        """Return the units that each device holds once all these blocks have run."""
        held = [0] * ndevs
        for block, places in zip(blocks, devices, strict=True):
            for device in places:
                held[device] += block.memory
        return held


def _number(micro: SchedPlan) -> None:
    """Give the blocks of a placement their numbers, by which a runtime finds them in the composed plan."""
    for gid, block in enumerate(micro.chain_blocks()):
        block.gid = gid


def _least_micro_batches(found: RepetendResult) -> int:
    """Micro-batches with which the schedule holds one whole period: all that are under way at once."""
    last = max(max(copy) for copy in found.starts)
    return found.copies * (last // found.period + 1)


def _composed(found: RepetendResult, micro_batches: int) -> SchedPlan:
    """The plan that shows the repetend, with the best warm-up and cool-down that keep it.

    Warm-up and cool-down may meet in so few micro-batches that no period of the schedule can be repeated just
    as it stands; then some more are shown.
    """
    for more in range(MAX_MORE_PERIODS + 1):
        repeated = _repeated(found, micro_batches + more * found.copies)
        searched = _searched(repeated)
        is_better = searched.repetend is not None and searched.makespan < repeated.makespan
        plan = _plan(found, searched if is_better else repeated)
        if plan.repetend is not None and is_exact(plan.schedule, plan.repetend):
            return plan
    return plan


def _unroll(found: RepetendResult, nmicros: int) -> SchedPlan:
    if nmicros < 1:
        raise ValueError(f"{nmicros} micro-batches were asked for; give at least 1")
    repeated = _repeated(found, nmicros)
    searched = _searched(repeated)
    return _plan(found, searched if searched.makespan < repeated.makespan else repeated)


def _plan(found: RepetendResult, schedule: Schedule) -> SchedPlan:
    return SchedPlan.of_schedule(schedule, unroll=lambda nmicros: _unroll(found, nmicros))


def _searched(schedule: Schedule) -> Schedule:
    """The shortest schedule found of as many micro-batches, never longer than the one given."""
    return search.find_schedule(
        schedule.placement,
        micro_batches=schedule.micro_batches,
        memory=schedule.memory,
        budget=search.SearchBudget(RAMP_WORK),
        start_from=schedule,
    )


def _repeated(found: RepetendResult, micro_batches: int) -> Schedule:
    """The repetend with its own device orders before and after it, run as early as they allow."""
    starts = {
        (block, micro_batch): start + (micro_batch // found.copies) * found.period
        for micro_batch in range(micro_batches)
        for block, start in zip(found.block_indices, found.starts[micro_batch % found.copies], strict=True)
    }
    # Kept orders keep the limits; the start may only come closer to the repetend, not the repetend change.
    tight = earliest_starts(found.placement, device_orders(found.placement, starts))
    schedule = _schedule(found, tight, micro_batches)
    if schedule.repetend is None or find_violations(schedule):
        return _schedule(found, starts, micro_batches)
    return schedule


def _schedule(found: RepetendResult, starts: Mapping[tuple[int, int], int], micro_batches: int) -> Schedule:
    return Schedule.of(
        found.placement,
        starts,
        micro_batches=micro_batches,
        memory=found.memory,
        repetend=_repeating_part(found, starts, micro_batches),
        search_seconds=found.search_seconds,
        found_by=found.found_by,
    )


def _repeating_part(
    found: RepetendResult, starts: Mapping[tuple[int, int], int], micro_batches: int
) -> Repetend | None:
    """The longest interval that is periodic and contains at least one full period, if there is one.

    A start with no match a period later must lie before the interval or in its last period, and one with no
    match a period earlier in its first period or behind it. Shifted by a period both cut alike.
    """
    cuts = {-1}
    for (block, micro_batch), start in starts.items():
        if starts.get((block, micro_batch + found.copies)) != start + found.period:
            cuts.add(start)
        if starts.get((block, micro_batch - found.copies)) != start - found.period:
            cuts.add(start - found.period)
    ranges = [
        (before + 1, after + found.period)
        for before, after in pairwise(sorted(cut for cut in cuts if cut >= -1))
        if _is_whole(found, starts, before + 1)
    ]
    if not ranges:
        return None
    begin, end = max(ranges, key=lambda each: (each[1] - each[0], -each[0]))
    return Repetend(
        period=found.period,
        micro_batches=found.copies,
        lower_bound=found.lower_bound,
        optimal=found.optimal,
        start=begin,
        end=end,
    )


def _is_whole(found: RepetendResult, starts: Mapping[tuple[int, int], int], begin: int) -> bool:
    """Whether each block starts as often in the period from a step on as there are copies of it."""
    counts = Counter(block for (block, _), start in starts.items() if begin <= start < begin + found.period)
    return all(counts[block] == found.copies for block in found.block_indices)
