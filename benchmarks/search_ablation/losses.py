"""What a search finds for each case, and what it loses against the whole search."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.search_ablation.cases import Case
from benchmarks.search_ablation.variants import Variant
from tessel.errors import ScheduleError
from tessel.search import MakespanParams, SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.repetend.find_repetend import find_repetend
from tessel.validation import check_schedule


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What one search found: its value, a bound on it, the work it took, and a repetend's latency."""

    value: float
    bound: float
    work: float
    found_by: str
    latency: int = 0

    @property
    def is_proven(self) -> bool:
        return self.value == self.bound


def find_makespans(cases: Sequence[Case], params: MakespanParams, work: float) -> list[SearchResult]:
    """Search every case and check the schedules."""
    answers = []
    for case in cases:
        budget = SearchBudget(work, None)
        found = find_schedule(
            case.placement, micro_batches=case.micro_batches, memory=case.memory, budget=budget, params=params
        )
        check_schedule(found)
        answers.append(SearchResult(found.makespan, found.lower_bound, budget.operations, found.found_by))
    return answers


def find_periods(cases: Sequence[Case], variant: Variant, work: float) -> list[SearchResult]:
    """Search every case; the value is steps for each micro-batch, infinite where none was found."""
    answers = []
    for case in cases:
        budget = SearchBudget(work, None)
        try:
            found = find_repetend(
                case.placement, memory=case.memory, max_copies=variant.max_copies, budget=budget,
                params=variant.repetend,
            )  # fmt: skip
        except ScheduleError:
            answers.append(SearchResult(math.inf, 0, budget.operations, "none"))
            continue
        rate, least = float(found.rate), float(found.least_rate)
        latency = max(max(row) - min(row) for row in found.starts)
        answers.append(SearchResult(rate, least, budget.operations, found.found_by, latency))
    return answers


def _change(ratios: Sequence[float]) -> str:
    """The mean of ratios as a change in per cent; those that are not finite are counted apart."""
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    change = 100 * (math.exp(statistics.fmean(map(math.log, finite))) - 1) if finite else 0.0
    missing = len(ratios) - len(finite)
    return f"{change:+.2f} %" + (f", none found {missing}x" if missing else "")


def makespan_loss(full: Sequence[SearchResult], found: Sequence[SearchResult]) -> str:
    """Return the cell of the table: how much longer, in how many cases, and what the bounds lose."""
    longer = sum(one.value > other.value for one, other in zip(found, full, strict=True))
    shorter = sum(one.value < other.value for one, other in zip(found, full, strict=True))
    length = _change([one.value / other.value for one, other in zip(found, full, strict=True)])
    bound = _change([one.bound / other.bound for one, other in zip(found, full, strict=True)])
    proofs = sum(each.is_proven for each in found) - sum(each.is_proven for each in full)
    return f"{length} (longer {longer}x, shorter {shorter}x), bound {bound}, proofs {proofs:+d}"


def repetend_loss(full: Sequence[SearchResult], found: Sequence[SearchResult]) -> str:
    """Return the cell of the table for repetends."""
    period = _change([one.value / other.value for one, other in zip(found, full, strict=True)])
    proofs = sum(each.is_proven for each in found) - sum(each.is_proven for each in full)
    work = math.exp(
        statistics.fmean(math.log(one.work / other.work) for one, other in zip(found, full, strict=True))
    )
    latency = _change(
        [
            one.latency / other.latency
            for one, other in zip(found, full, strict=True)
            if one.value == other.value
        ]
    )
    return f"period {period}, proofs {proofs:+d}, work x{work:.2f}, latency {latency}"
