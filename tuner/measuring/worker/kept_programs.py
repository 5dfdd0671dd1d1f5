"""Keep those compiled programs that are costly to make again.

A stage's function takes seconds to compile, a single kernel a tenth of one, and hundreds of kernels are
measured between the function's measurement and its check: keeping the newest alone would keep kernels.
Checked in tests/tuner/measuring/test_kept_programs.py.

Source: the GreedyDual rule of Young, "The k-server dual and loose competitiveness for paging" (Algorithmica
11, 1994): a program has its cost as credit, above that of the last that was dropped; the least is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Program = TypeVar("Program")


@dataclass(slots=True)
class _Kept(Generic[Program]):
    program: Program
    cost_s: float
    credit_s: float


class KeptPrograms(Generic[Program]):
    """Programs by key, made where they are not kept.

    Args:
        capacity: how many are kept, at least 1.
        clock: reads seconds; what a program costs is the time that it takes to make.
    """

    def __init__(self, capacity: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        if capacity < 1:
            raise ValueError(f"{capacity} programs are to be kept; keep 1 or more")
        self._capacity = capacity
        self._clock = clock
        self._kept: dict[Hashable, _Kept[Program]] = {}
        self._dropped_s = 0.0

    def get(self, key: Hashable, make: Callable[[], Program]) -> Program:
        """Return the program of a key."""
        found = self._kept.pop(key, None)
        if found is None:
            start = self._clock()
            program = make()
            found = _Kept(program, cost_s=self._clock() - start, credit_s=0.0)
            if len(self._kept) == self._capacity:
                least = min(self._kept, key=lambda each: self._kept[each].credit_s)
                self._dropped_s = self._kept.pop(least).credit_s
        self._kept[key] = found  # the one used last stands last, and goes last of equals
        found.credit_s = self._dropped_s + found.cost_s
        return found.program
