"""Search one problem in several ways, some at a time, each in a process of its own, and take the best.

    --jobs 2     process 1   strategy 0 ─────┐ strategy 2 ────┐
                 process 2   strategy 1 ───┐ strategy 3 ───┐

Every strategy has the whole work to spend. Of equally short schedules that of the first strategy is taken,
and once one strategy has proven its schedule least, only those before it go on: so with a limit on work the
answer is the same for any number of processes. A limit on time is divided among the rounds that they need.
An interrupt ends all of them with the best schedule so far.
Checked in tests/tessel/search/portfolio/test_side_by_side.py.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search.budget import OPERATIONS_A_UNIT, SearchBudget
from tessel.search.model.instance import build_instance
from tessel.search.portfolio.strategies import STRATEGIES, Failed, Found, Message, Request, Told

logger = logging.getLogger(__name__)

POLL_S = 0.05
"""Seconds between two looks at the budget."""


def find_schedule_side_by_side(
    placement: Placement,
    *,
    micro_batches: int,
    memory: Sequence[int] | int | None = None,
    budget: SearchBudget | None = None,
    seed: int = 0,
    jobs: int = 1,
    start_from: Schedule | None = None,
) -> Schedule:
    """Return the best schedule of several strategies, never worse than `find_schedule`'s with this budget.

    Args:
        placement: blocks of one micro-batch.
        micro_batches: how many are run, >= 1.
        memory: limit in units, one a device or one for all; None for none.
        budget: what each strategy may spend; its limit on time is one for all of them.
        seed: seed of what is random; each strategy has its own after it.
        jobs: processes at a time, >= 1; the answer does not depend on it where work is limited.
        start_from: a schedule of the same micro-batches that keeps the limits; the answer is never longer.

    Raises:
        InfeasibleError: no schedule keeps the limits; names a device and what it needs at least.
        ScheduleError: a process ended without an answer.
        KeyboardInterrupt: interrupted before there was any schedule.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, and at least one process has to search; give 1 or more")
    budget = SearchBudget.of(budget, time_limit_s=None)
    # What is wrong with the problem is said here, once.
    instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    run = _Run(placement, micro_batches, instance.memory, seed, budget, jobs, start_from)
    try:
        run.to_the_end()
    except KeyboardInterrupt:
        budget.interrupt()
        run.end_all()
        run.to_the_end()
    finally:
        run.end_all(at_once=True)
    if not run.found:
        if budget.is_interrupted:
            raise KeyboardInterrupt
        raise ScheduleError("; ".join(run.failures) or "no process has found a schedule")
    best = run.best()
    budget.charge(run.operations)
    budget.is_proven = best.optimal
    if not best.optimal and not budget.is_over:
        logger.debug("all strategies ended before the limits did")
    return best


@dataclass(slots=True)
class _Run:
    """The strategies of one call: waiting, running and done.

    Attributes:
        placement: what is scheduled.
        micro_batches: how many are run.
        memory: limits.
        seed: of the first strategy.
        budget: of each strategy.
        jobs: processes at a time.
        start_from: where every strategy begins, if anywhere.
        waiting: strategies that have not begun, the next one first.
        running: processes by strategy.
        messages: strategy and what its process said; None when that has ended.
        found: what each strategy has found.
        failures: why others have not.
        least: the least makespan told so far.
        operations: most that one strategy was charged.
    """

    placement: Placement
    micro_batches: int
    memory: tuple[int, ...] | None
    seed: int
    budget: SearchBudget
    jobs: int
    start_from: Schedule | None = None
    waiting: list[int] = field(default_factory=lambda: list(range(len(STRATEGIES))))
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    messages: queue.Queue[tuple[int, Message | None]] = field(default_factory=queue.Queue)
    found: dict[int, Schedule] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    least: int | None = None
    operations: int = 0

    def to_the_end(self) -> None:
        """Run all strategies that can still matter."""
        while True:
            if self.budget.is_interrupted:
                self.end_all()
            while self.waiting and len(self.running) < self.jobs:
                self._begin(self.waiting.pop(0))
            if not self.running:
                return
            try:
                number, message = self.messages.get(timeout=POLL_S)
            except queue.Empty:
                continue
            self._hear(number, message)

    def end_all(self, *, at_once: bool = False) -> None:
        """Have all processes end with their best schedule, or at once."""
        self.waiting.clear()
        for process in self.running.values():
            if at_once:
                process.kill()
                process.wait()
            _close_input(process)

    def best(self) -> Schedule:
        """Return the shortest schedule, of the first strategy that has it, with the best bound of all."""
        number = min(self.found, key=lambda each: (self.found[each].makespan, each))
        schedule = self.found[number]
        lower_bound = min(schedule.makespan, max(each.lower_bound for each in self.found.values()))
        return msgspec.structs.replace(
            schedule,
            lower_bound=lower_bound,
            optimal=lower_bound == schedule.makespan,
            search_seconds=self.budget.elapsed_s,
        )

    def _begin(self, number: int) -> None:
        rounds = math.ceil((1 + len(self.waiting)) / self.jobs)
        left_s = self.budget.seconds_left
        strategy = STRATEGIES[number]
        request = Request(
            placement=self.placement,
            micro_batches=self.micro_batches,
            memory=self.memory,
            seed=self.seed + strategy.seed_offset,
            left_out=tuple(sorted(strategy.left_out)),
            work=self.budget.operations_left / OPERATIONS_A_UNIT if self.budget.is_by_work else None,
            seconds=None if math.isinf(left_s) else max(0.0, left_s / rounds),
            start_from=self.start_from,
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "tessel.search.portfolio.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C comes to this process alone, which then ends the others
        )
        self.running[number] = process
        threading.Thread(target=_listen, args=(number, process, self.messages), daemon=True).start()
        assert process.stdin is not None  # it is a pipe
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its listener will say
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()

    def _hear(self, number: int, message: Message | None) -> None:
        """Note what a process said, or that it has ended."""
        if isinstance(message, Told):
            if self.least is None or message.makespan < self.least:
                self.least = message.makespan
                self.budget.report(message.makespan, message.lower_bound, message.found_by)
        elif isinstance(message, Found):
            self.found[number] = message.schedule
            self.operations = max(self.operations, message.operations)
            if message.schedule.optimal:  # nothing after it can be better, or as good and before it
                self.waiting = [each for each in self.waiting if each < number]
                for other, process in self.running.items():
                    if other > number:
                        _close_input(process)
        elif isinstance(message, Failed):
            self.failures.append(message.message)
        else:
            process = self.running.pop(number)
            _close_input(process)
            if process.wait() != 0:
                self.failures.append(
                    f"the process of strategy {number} ended with status {process.returncode}"
                )


def _listen(
    number: int, process: subprocess.Popen[bytes], messages: queue.Queue[tuple[int, Message | None]]
) -> None:
    """Pass on what a process says, until it ends."""
    decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
    assert process.stdout is not None  # it is a pipe
    with process.stdout:
        for line in process.stdout:
            messages.put((number, decoder.decode(line)))
    messages.put((number, None))


def _close_input(process: subprocess.Popen[bytes]) -> None:
    """Close the input of a process, which ends its search."""
    assert process.stdin is not None  # it is a pipe
    with contextlib.suppress(BrokenPipeError):  # it has ended
        process.stdin.close()
