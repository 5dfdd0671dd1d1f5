"""Result of a repetend search."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tessel.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetendResult:
    """The pattern that repeats, and what is proven about it.

    Block `block_indices[k]` of micro-batch `copies * n + c` starts at `starts[c][k] + n * period`, for all n.

    Attributes:
        placement: the blocks of one micro-batch.
        memory: limit in units, one a device; None where no device has one.
        period: steps after which the pattern repeats, >= 1.
        copies: micro-batches that enter in one period.
        block_indices: position in `placement.blocks` of each block that runs: all, unless there are choices.
        starts: by copy, then as `block_indices`; the earliest is 0.
        lower_bound: no repetend of as many copies has a shorter period.
        optimal: the period is proven optimal for that number of copies.
        rate_lower_bound: steps that a micro-batch takes at least, whatever the number of copies.
        rate_optimal: period / copies equals it.
        least_rate: steps that a micro-batch takes at least with as many copies as were asked for, or fewer.
        search_seconds: wall-clock time.
    """

    placement: Placement
    memory: tuple[int, ...] | None
    period: int
    copies: int
    block_indices: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]
    lower_bound: int
    optimal: bool
    rate_lower_bound: Fraction
    rate_optimal: bool
    least_rate: Fraction
    search_seconds: float
    found_by: str

    def __repr__(self) -> str:
        proof = "optimal" if self.optimal else f"lower bound {self.lower_bound}"
        return (
            f"RepetendResult({self.placement.devices} devices, {self.copies} micro-batches every "
            f"{self.period} steps ({proof}), found by {self.found_by})"
        )

    @property
    def rate(self) -> Fraction:
        """Steps a micro-batch takes in the long run."""
        return Fraction(self.period, self.copies)
