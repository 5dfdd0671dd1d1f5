"""Budget of a search: elementary work, which is the same on every machine, and time, which is not.

One `SearchBudget` is made where a search begins and goes through all of its phases. Every phase charges what
it does (states expanded, moves tried, rows scheduled …) and decides by what is left, so that with a limit on
work the same call gives the same answer on a busy machine, on a slow one and uncompiled. A limit on time cuts
that short, and `stopped_by` says so. Without a limit on work, parts of the budget are parts of the time.

    budget  ├─ initial 10 % ─┤├── bounds and neighbourhood search in turn ─────────────┤
                                                     charged in operations, round by round

The default clock stands still while machine code is compiled or loaded, which no limit is meant for, for
every thread that reads it meanwhile.
Checked in tests/tessel/search/test_budget.py.

Source: the stopping criteria of PyVRP (Wouda, Lan and Kool, 2024), here with parts and charges.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

StoppedBy = Literal["proven", "work", "time", "interrupt", "size"]
"""What ended a search: a proof, its limit on work or time, an interrupt, or that it was too large."""

OPERATIONS_A_UNIT = 1_000_000_000
"""Operations of one unit of work. The constants of the phases make that about a second of an idle core of an
AMD EPYC of 2026, compiled; from 0.5 to 2 s, by what the search spends it on."""

DEFAULT_WORK = 10.0
"""Units of work of a search unless told otherwise."""

LONGEST_S = 900.0
"""Seconds after which a plan with the default limit on work ends on however busy a machine."""


@dataclass(frozen=True)
class Progress:
    """The state of a search at one improvement.

    Attributes:
        makespan: steps of the best schedule so far (of the best period, where a repetend is searched).
        lower_bound: no answer is shorter, as far as is proven now.
        elapsed_s: seconds since the search began.
    """

    makespan: int
    lower_bound: int
    elapsed_s: float
    found_by: str


@dataclass(frozen=True, slots=True)
class _Standstill:
    """For how long the clocks of searches have stood still, and since when they do.

    Attributes:
        num_bodies: of `stopped_clock`, under way in any thread.
        since_s: on the monotonic clock, when the first of them began.
        processor_since_s: the same on the clock of the processor.
        total_s: of those that are over.
        processor_total_s: of the processor, while they ran.
    """

    num_bodies: int = 0
    since_s: float = 0.0
    processor_since_s: float = 0.0
    total_s: float = 0.0
    processor_total_s: float = 0.0


_standstill = [_Standstill()]
"""Of this process; replaced as a whole, so that no reader sees half of a change."""

_standstill_lock = threading.Lock()
"""Held by those that change it, never by those that read it, which may be signal handlers."""


def search_clock() -> float:
    """Return monotonic seconds without those spent in compiling and loading machine code."""
    while True:
        found = _standstill[0]
        now_s = found.since_s if found.num_bodies else time.monotonic()
        if found is _standstill[0]:  # else a thread began or ended a body between the two readings
            return now_s - found.total_s


def processor_clock() -> float:
    """Return the processor seconds of this process, again without compiling and loading machine code.

    As the clock of a `SearchBudget` it makes a limit on time independent of how busy the machine is.
    """
    while True:
        found = _standstill[0]
        now_s = found.processor_since_s if found.num_bodies else time.process_time()
        if found is _standstill[0]:
            return now_s - found.processor_total_s


@contextmanager
def stopped_clock() -> Iterator[None]:
    """Let the clocks of searches stand still while the body runs, in all threads."""
    _change_standstill(1)
    try:
        yield
    finally:
        _change_standstill(-1)


def _change_standstill(change: int) -> None:
    """Note that a body has begun or ended; the clocks stand still while there is any."""
    with _standstill_lock:
        found = _standstill[0]
        num_bodies = found.num_bodies + change
        if found.num_bodies and num_bodies:
            _standstill[0] = replace(found, num_bodies=num_bodies)
            return
        now_s, processor_s = time.monotonic(), time.process_time()
        if num_bodies:
            _standstill[0] = replace(
                found, num_bodies=num_bodies, since_s=now_s, processor_since_s=processor_s
            )
            return
        _standstill[0] = _Standstill(
            total_s=found.total_s + now_s - found.since_s,
            processor_total_s=found.processor_total_s + processor_s - found.processor_since_s,
        )


@dataclass(slots=True)
class SearchBudget:
    """What one search, or a part of it, may spend and has spent.

    Attributes:
        work_limit: units of work, None for no limit.
        time_limit_s: seconds, None for no limit.
        clock: seconds, monotonic.
        on_progress: told of each better answer.
        whole: the budget that this one is a part of.
        began: seconds at which it was made.
        operations: operations charged so far.
        has_answer: whether there is something to return; an interrupt before that leaves nothing.
        is_proven: whether the search has ended with a proof that nothing is better.
        answer: returns the best answer so far as the search would return it; None before there is one. It may
            be called from another thread while the search goes on.
    """

    work_limit: float | None = DEFAULT_WORK
    time_limit_s: float | None = None
    clock: Callable[[], float] = search_clock
    on_progress: Callable[[Progress], None] | None = None
    whole: SearchBudget | None = None
    began: float = field(init=False)
    operations: int = field(init=False, default=0)
    has_answer: bool = field(init=False, default=False)
    is_proven: bool = field(init=False, default=False)
    answer: Callable[[], object] | None = field(init=False, default=None)
    _most: int | None = field(init=False)
    _deadline: float = field(init=False)
    _is_interrupted: bool = field(init=False, default=False)
    _cut_by: StoppedBy | None = field(init=False, default=None)
    _part_cut_by: StoppedBy | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        for name, limit in (("work_limit", self.work_limit), ("time_limit_s", self.time_limit_s)):
            if limit is not None and not limit >= 0:
                raise ValueError(f"{name} is {limit}, and nothing can be spent below 0; give 0 or more")
        is_unlimited = self.work_limit is None or self.work_limit == math.inf
        self._most = None if is_unlimited else round((self.work_limit or 0) * OPERATIONS_A_UNIT)
        self.begin()

    def begin(self) -> None:
        """Count time from now on."""
        self.began = self.clock()
        self._deadline = self.began + (math.inf if self.time_limit_s is None else self.time_limit_s)

    @classmethod
    def of(
        cls,
        budget: SearchBudget | None,
        *,
        time_limit_s: float | None,
    ) -> SearchBudget:
        """Return a budget that was given, or the one that a function's own time limit means.

        Args:
            budget: the budget given; there is then to be no time limit beside it.
            time_limit_s: seconds as the only limit; None for the default limit on work.
        """
        if budget is None:
            return cls() if time_limit_s is None else cls(work_limit=None, time_limit_s=time_limit_s)
        if time_limit_s is not None:
            raise ValueError(
                f"a budget and a time limit of {time_limit_s} s were given, and only one can hold; put the "
                "time limit into the budget"
            )
        return budget

    @property
    def is_by_work(self) -> bool:
        """Whether work is limited, so that shares are shares of work."""
        return self._most is not None

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return self.clock() - self.began

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline, negative after it; infinite where time has no limit."""
        return self._deadline - self.clock()

    @property
    def operations_left(self) -> float:
        """Operations that may still be charged; those of the time left where work has no limit."""
        if self._most is not None:
            return max(0, self._most - self.operations)
        return max(0.0, self.seconds_left) * OPERATIONS_A_UNIT

    @property
    def is_interrupted(self) -> bool:
        """Whether the search is to end as soon as it can."""
        return self._is_interrupted if self.whole is None else self.whole.is_interrupted

    @property
    def is_over(self) -> bool:
        """Whether nothing may be spent any more."""
        # Asked for in every round, of parts of parts: the clock is read once for all of them.
        is_interrupted, now = self.is_interrupted, self.clock()
        budget: SearchBudget | None = self
        while budget is not None:
            reason = budget._reason(now, is_interrupted=is_interrupted)
            if reason is not None:
                budget._cut_by = budget._cut_by or reason
                while (budget := budget.whole) is not None:
                    is_late = now >= budget._deadline
                    budget._part_cut_by = "time" if is_late else budget._part_cut_by or reason
                return True
            budget = budget.whole
        return False

    @property
    def limit_text(self) -> str:
        """The limit as text, such as `10 units of work`."""
        if self._most is not None:
            return f"{self._most / OPERATIONS_A_UNIT:g} units of work"
        return "its share of the time" if self.time_limit_s is None else f"{self.time_limit_s:g} s"

    @property
    def stopped_by(self) -> StoppedBy:
        """What ended the search."""
        if self.is_proven:
            return "proven"
        interrupt: StoppedBy | None = "interrupt" if self.is_interrupted else None
        return self._cut_by or interrupt or self._part_cut_by or "size"

    def interrupt(self) -> None:
        """Have the search end as soon as it can, and return the best answer so far."""
        self._is_interrupted = True
        if self.whole is not None:
            self.whole.interrupt()

    def charge(self, operations: int) -> None:
        """Note that so much work has been done."""
        self.operations += operations
        if self.whole is not None:
            self.whole.charge(operations)

    @property
    def overdrawn(self) -> int:
        """Operations charged beyond its limit on work."""
        return 0 if self._most is None else max(0, self.operations - self._most)

    def covers(self, operations: float) -> bool:
        """Whether so much work may still be done."""
        return operations <= self.operations_left

    def part(self, share: float, *, kept_s: float = 0.0) -> SearchBudget:
        """Return a budget of a share of what is left; what it is charged, this one is charged too.

        Args:
            share: of the work left, or of the time left where work has no limit; 0..1.
            kept_s: seconds before this budget's deadline that the part leaves to its caller.
        """
        left_s = max(0.0, self.seconds_left - kept_s)
        is_by_work = self._most is not None
        found = SearchBudget(
            work_limit=None,
            time_limit_s=left_s if is_by_work or share == 1 else share * left_s,
            clock=self.clock,
            whole=self,
        )
        if self._most is not None:
            found._most = round(share * max(0, self._most - self.operations))
        return found

    def timed_part(self, share: float) -> SearchBudget:
        """Return a budget of a share of what is left, of time as well as of work."""
        is_by_both = self._most is not None and math.isfinite(self.seconds_left)
        return self.part(share, kept_s=(1 - share) * self.seconds_left if is_by_both else 0.0)

    def part_of_work(self, work: float) -> SearchBudget:
        """Return a budget of so many units of work, however much is left, that ends with this one at last.

        What is done with it does not depend on this budget's limit, unless that cuts it short
        (`is_cut_by_whole`).
        """
        found = self.part(1.0)
        found._most = round(work * OPERATIONS_A_UNIT)
        return found

    @property
    def is_cut_by_whole(self) -> bool:
        """Whether the budget that this one is a part of ended before this one was used up."""
        is_used_up = self._most is not None and self.operations >= self._most
        return not is_used_up and self.whole is not None and self.whole.is_over

    def report(self, value: int, lower_bound: int, found_by: str) -> None:
        """Note that there is a better answer, and tell the listener."""
        self.has_answer = True
        if self.on_progress is not None:
            self.on_progress(Progress(value, lower_bound, self.elapsed_s, found_by))

    def _reason(self, now: float, *, is_interrupted: bool) -> StoppedBy | None:
        if is_interrupted:
            return "interrupt"
        if self._most is not None and self.operations >= self._most:
            return "work"
        return "time" if now >= self._deadline else None
