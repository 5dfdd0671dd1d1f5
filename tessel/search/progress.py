"""Progress that a running search reports each time its answer gets better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The state of a search at one improvement.

    Attributes:
        makespan: steps of the best schedule so far (of the best period, where a repetend is searched).
        lower_bound: no answer is shorter, as far as is proven now.
        elapsed_s: seconds since the search began.
        found_by: the method that found it.
    """

    makespan: int
    lower_bound: int
    elapsed_s: float
    found_by: str
