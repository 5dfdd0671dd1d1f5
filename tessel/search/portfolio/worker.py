"""The process of one strategy: a request comes in as a line, messages go out as lines.

    python -m tessel.search.portfolio.worker

When its input ends, because the other side closed it or is no more, the search ends as by an interrupt, with
the best schedule so far. Checked in tests/tessel/search/portfolio/test_side_by_side.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import msgspec

from tessel.errors import ScheduleError
from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.params import MakespanParams
from tessel.search.portfolio.strategies import Failed, Found, Message, Request, Told
from tessel.search.progress import Progress


def main() -> None:
    """Read a request, search, and write what is found."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked hears it, and closes the input
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    budget = SearchBudget(request.work, request.seconds, on_progress=_tell)
    threading.Thread(target=_interrupt_at_end_of_input, args=(budget,), daemon=True).start()
    try:
        found = find_schedule(
            request.placement,
            micro_batches=request.micro_batches,
            memory=request.memory,
            budget=budget,
            seed=request.seed,
            start_from=request.start_from,
            params=MakespanParams(left_out=frozenset(request.left_out)),
        )
    except ScheduleError as error:
        _write(Failed(message=str(error)))
    else:
        _write(Found(schedule=found, operations=budget.operations))


def _interrupt_at_end_of_input(budget: SearchBudget) -> None:
    # unbuffered: a thread that waits in a buffer holds its lock when Python ends
    while os.read(sys.stdin.fileno(), 1024):
        pass
    budget.interrupt()


def _tell(progress: Progress) -> None:
    _write(Told(makespan=progress.makespan, lower_bound=progress.lower_bound, found_by=progress.found_by))


def _write(message: Message) -> None:
    try:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # nobody reads it any more
        sys.exit(1)


if __name__ == "__main__":
    main()
