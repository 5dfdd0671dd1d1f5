"""Parameters of the search for repetends: how it divides its work, with the reason for each default.

Any values give valid repetends with true bounds: they decide only what a budget is spent on.
Checked in tests/tessel/search/test_params.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum


class RepetendPhase(StrEnum):
    """What a search for repetends consists of that can be left out, beside the orders of branch and bound."""

    NESTED_CHAINS = "nested-chain DP"
    CROSSING_CHAINS = "crossing-chain DP"
    LATENCY = "shorter latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetendParams:
    """Parameters of `tessel.search.repetend.find_repetend.find_repetend`.

    Attributes:
        copies_share: part of the budget left that one number of copies may take, above 0, at most 1, so that
            a hard proof does not hide the next number.
        max_assignments: assignments of options listed in full, >= 1: ten choices of two. Each costs some
            0.3 ms before it is ruled out.
        max_local_assignments: combinations of the choices on one device that its bound is computed for, >= 1.
        first_try_work: elementary operations that a period is tried for at first, >= 1: some milliseconds.
            Each round doubles it.
        max_try_work: most elementary operations between two looks at the budget, >= 1: some tenths of a
            second.
        max_blocks_ordered_first: blocks of a period up to which orders are tried before slots, >= 0: their
            cost grows with the square, that of slots does not.
        latency_try_work: elementary operations of one try at less latency, >= 1: some 0.3 ms; the cube of the
            number of blocks comes on top.
        max_latency_blocks: blocks of a period above which the latency is left as it is, >= 0.
        left_out: phases that are not run: what each is worth is measured by leaving it out
            (`python -m benchmarks.search_ablation`).
    """

    copies_share: float = 0.5
    max_assignments: int = 1024
    max_local_assignments: int = 64
    first_try_work: int = 2_000_000
    max_try_work: int = 100_000_000
    max_blocks_ordered_first: int = 64
    latency_try_work: int = 300_000
    max_latency_blocks: int = 160
    left_out: frozenset[RepetendPhase] = frozenset()

    def __post_init__(self) -> None:
        if not 0 < self.copies_share <= 1:
            raise ValueError(
                f"copies_share is {self.copies_share}, which is no share; give a number above 0, at most 1"
            )
        for field in fields(self)[1:-1]:
            least = 0 if "_blocks" in field.name else 1
            if getattr(self, field.name) < least:
                raise ValueError(
                    f"{field.name} is {getattr(self, field.name)}, which is too little; give {least} or more"
                )
