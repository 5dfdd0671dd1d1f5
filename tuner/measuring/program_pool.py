"""Pool that a measurer measures through: worker processes of this machine, or machines of a fleet.

`tuner.measuring.worker_pool` is the one, `tuner.fleet.fleet_pool` the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from records import Environment
from tuner.backends.protocol import Backend
from tuner.measuring.messages import Build, Compare, Reply, Run
from tuner.measuring.race import RaceResult
from tuner.measuring.request import MeasureRequest


@dataclass(frozen=True, slots=True)
class Job:
    """A request on its way: what is built for it, and how long that may take."""

    request: MeasureRequest
    build: Build
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        built: how its build ended.
        timed: how its timing ended; None where there was nothing to time.
        measured_at: when, in seconds since 1970, by the clock of the machine that measured.
    """

    job: Job
    built: Reply
    timed: Reply | None
    measured_at: float


class ProgramPool(Protocol):
    """Builds and times programs for one target.

    Attributes:
        num_runs: modules that `run` runs at once, called by as many threads.
    """

    num_runs: int

    def close(self) -> None:
        """Give back what it holds."""

    def interrupt(self) -> None:
        """End what other threads run; their calls of `run` say that it failed."""

    def environment(self, backends: Sequence[Backend]) -> Environment:
        """Return where programs that these backends lower run."""

    def job(self, request: MeasureRequest, *, check: bool) -> Job:
        """Return the job of a request; its results are checked where asked."""

    def measure(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Build and time all jobs, taken when there is room for them; yield each when its outcome is known.

        Nothing is timed on a device while another program is built or timed on it. A job whose kind of
        program another one's check decides comes after that one.

        Raises:
            TunerError: nothing can be measured any more; says why.
        """

    def race(self, requests: Sequence[MeasureRequest]) -> RaceResult:
        """Run programs in turn in one process until it is known which is the fastest.

        Raises:
            TunerError: a program cannot be built or run; says why.
        """

    def run(
        self, request: Run, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Reply | tuple[np.ndarray, ...]:
        """Return the results of running a module once, or how that failed."""

    def compare(self, request: Compare, timeout_s: float) -> Reply:
        """Return how far two modules' results are apart, or how that failed."""
