"""Parameters of the search for whole schedules: how it divides its work, with the reason for each default.

Any values give valid schedules: they decide only what a budget is spent on. None of them is a part of the
whole budget: what comes next depends on the work done so far alone, so that a search with a higher limit
does all that one with a lower limit does, and then goes on. What is not here is either part
of the model (bounds, charges for work) or has never been seen to matter.
Checked in tests/tessel/search/test_params.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a search for whole schedules consists of, beside one schedule that always exists."""

    HANDWRITTEN = "hand-written rules"
    LIST_SCHEDULING = "list scheduling"
    LIMITS_IN_FLIGHT = "limits in flight"
    REPETENDS = "repetends with warm-up and cool-down"
    TABU_SEARCH = "tabu search"
    OPTIONS = "option search"
    WINDOWS = "window search"
    DECISION_DIAGRAMS = "decision diagrams"
    EXACT = "exact search"
    CP_SAT = "CP-SAT"


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanParams:
    """Parameters of `tessel.search.makespan.find_schedule.find_schedule`.

    Attributes:
        rhythms: distances between micro-batches tried by list scheduling, as multiples of the busiest
            device's work, >= 0; the usual winners first.
        first_repetend_work: units of work at first for the repetend that is cut to whole schedules, above 0:
            it is enough for most.
        repetend_share: where it is not, it is searched again with four times as much when that is at most
            this part of the work done, above 0, at most 1.
        min_patience: moves without an improvement after which a tabu search ends, >= 1; each task adds four.
        max_patience: most such moves, >= `min_patience`.
        bound_share: part of the work that goes into lower bounds, 0 to 1; the rest goes into schedules.
        bound_share_while_stuck: part more of the work since the best schedule was found, 0 to 1: it may well
            be optimal.
        first_bound_work: units of work that the first bounds may take ahead of that, >= 0.
        exact_share: part of the work that goes into the exact search of small problems, 0 to 1.
        first_exact_work: units of work that it may take ahead of that, >= 0.
        subset_share: part of the work that goes into the exact search of a few devices at a time, under
            memory limits, 0 to 1; less where there are more than 8. While all devices are tried together,
            `exact_share` and `bound_share_while_stuck` come on top. On a V of 8 devices the pair that says
            most takes two of ten units.
        work_before_subsets: units of work before that begins, >= 0: under a short limit a better schedule is
            worth more than a bound.
        left_out: phases that are not run: what each is worth is measured by leaving it out
            (`python -m benchmarks.search_ablation`).
    """

    rhythms: tuple[float, ...] = (1.0, 0.5, 0.0, 0.25, 0.75, 2.0, 4.0)
    first_repetend_work: float = 0.05
    repetend_share: float = 0.2
    min_patience: int = 200
    max_patience: int = 2_000
    bound_share: float = 0.15
    bound_share_while_stuck: float = 0.3
    first_bound_work: float = 0.03
    exact_share: float = 0.25
    first_exact_work: float = 0.05
    subset_share: float = 0.3
    work_before_subsets: float = 0.25
    left_out: frozenset[Phase] = frozenset()

    def __post_init__(self) -> None:
        firsts = (self.first_bound_work, self.first_exact_work)
        if not self.first_repetend_work > 0 or not all(work >= 0 for work in firsts):
            raise ValueError(
                f"first_repetend_work is {self.first_repetend_work}, first_bound_work {firsts[0]} and "
                f"first_exact_work {firsts[1]}, which is too little; give more than 0, and 0 or more for the "
                "other two"
            )
        for name in ("bound_share", "bound_share_while_stuck", "exact_share", "subset_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, which is no share; give 0 to 1")
        if not self.work_before_subsets >= 0:
            raise ValueError(f"work_before_subsets is {self.work_before_subsets}; give 0 or more")
        if not 0 < self.repetend_share <= 1:
            raise ValueError(
                f"repetend_share is {self.repetend_share}, which is no share; give more than 0, at most 1"
            )
        if not 1 <= self.min_patience <= self.max_patience:
            raise ValueError(
                f"min_patience is {self.min_patience} and max_patience {self.max_patience}; give 1 or more, "
                "and at least as much"
            )
        if any(not rhythm >= 0 for rhythm in self.rhythms):
            raise ValueError(
                f"rhythms are {self.rhythms}, and micro-batches follow each other; give 0 or more"
            )
