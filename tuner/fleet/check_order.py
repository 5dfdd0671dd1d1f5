"""Outcomes in an order in which no check comes too late.

The first program of a kind is checked, and its check may overturn the outcomes of others of its kind; those
that end before it wait for it. Checked in tests/tuner/fleet/test_fleet.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tuner.measuring.program_pool import Job, Outcome


class CheckOrder:
    """Which checks are under way, and which outcomes wait for them."""

    def __init__(self) -> None:
        self._checking: set[str] = set()
        self._waiting: defaultdict[str, list[Outcome]] = defaultdict(list)

    def begin(self, job: Job) -> None:
        """Note that a job is sent."""
        if job.build.check:
            self._checking.add(job.request.kind)

    def end(self, outcome: Outcome) -> Iterator[Outcome]:
        """Yield what waits for nothing any more: the outcome, those that waited for it, or none."""
        kind = outcome.job.request.kind
        if outcome.job.build.check:
            self._checking.discard(kind)
            yield outcome
            yield from self._waiting.pop(kind, ())
        elif kind in self._checking:
            self._waiting[kind].append(outcome)
        else:
            yield outcome
