"""Limits of a search: its work and its time, and the budget that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessel.errors import UsageError
from tessel.jobs.inputs.arguments import parse_duration

if TYPE_CHECKING:
    from tessel.search.budget import SearchBudget


def make_budget(work: float | None, time_limit: str | float | None) -> SearchBudget:
    """Return what limits on work and on time allow; without the second no time cuts the search.

    Raises:
        UsageError: one of them is not above 0 or is no number.
    """
    from tessel.search.budget import DEFAULT_WORK, SearchBudget

    if work is not None and not 0 < work < 1e9:
        raise UsageError(f"--work is {work:g}; give a number of units above 0, such as 10")
    if time_limit is not None:
        return SearchBudget(work_limit=work, time_limit_s=parse_duration(str(time_limit)))
    return SearchBudget(work_limit=DEFAULT_WORK if work is None else work)


def check_overlap_factor(factor: float | None) -> None:
    """Refuse a share that is none.

    Raises:
        UsageError: it is not above 0, or above 1.
    """
    if factor is not None and not 1e-6 <= factor <= 1:
        raise UsageError(
            f"--overlap-factor is {factor:g}, and a pair takes a share of its sum; give a number above 0, at "
            "most 1"
        )


def check_hop_us(hop_us: float) -> None:
    """Refuse a latency that is none.

    Raises:
        UsageError: it is negative or not finite.
    """
    if not 0 <= hop_us < 1e9:
        raise UsageError(f"--hop-us is {hop_us:g}; give microseconds of at least 0")
