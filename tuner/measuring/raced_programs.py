"""Sources of a race's samples: programs that run in the worker, or records of a race that was run.

Checked in tests/tuner/measuring/test_measurer.py.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from tuner.errors import TunerError
from tuner.measuring.messages import Race, Raced, why_failed
from tuner.measuring.race import FEWEST_ROUNDS
from tuner.measuring.request import Limits, MeasureRequest
from tuner.measuring.worker_process import WorkerProcess

_ROUNDS_A_MESSAGE = 5
"""Rounds of a race that the worker runs before it answers: few, so that a race ends near its time."""


class RunningPrograms:
    """Programs that run in the worker, until their time is spent."""

    def __init__(self, worker: WorkerProcess, keys: Sequence[int], limits: Limits, seed: int) -> None:
        self._worker = worker
        self._keys = keys
        self._limits = limits
        self._seed = seed
        self._num_rounds = 0
        self._end_s = time.monotonic() + limits.race_s

    def run(self, programs: Sequence[int], num_rounds: int) -> tuple[tuple[float, ...], ...]:
        """Return the next samples of the programs; fewer than asked where the time is spent."""
        samples: tuple[tuple[float, ...], ...] = ((),) * len(programs)
        end = self._num_rounds + num_rounds
        while self._num_rounds < end and (self._num_rounds < FEWEST_ROUNDS or time.monotonic() < self._end_s):
            more = self._ask(programs, min(_ROUNDS_A_MESSAGE, end - self._num_rounds))
            samples = tuple((*before, *new) for before, new in zip(samples, more, strict=True))
        return samples

    def _ask(self, programs: Sequence[int], num_rounds: int) -> tuple[tuple[float, ...], ...]:
        request = Race(
            keys=tuple(self._keys[program] for program in programs),
            seed=self._seed,
            first_round=self._num_rounds,
            num_rounds=num_rounds,
            sample_s=self._limits.timing.sample_s,
        )
        reply = self._worker.ask(request, self._limits.run_timeout_s * len(programs))
        if not isinstance(reply, Raced):
            raise TunerError(
                f"{len(programs)} programs could not run in turn: {why_failed(reply).message}; each alone "
                "can, so that together they may need more memory than there is"
            )
        self._num_rounds += num_rounds
        return reply.samples_us


class RecordedPrograms:
    """Samples of a race that was run before."""

    def __init__(self, samples: Sequence[Sequence[float]]) -> None:
        self._samples = samples
        self._num_rounds = 0

    def run(self, programs: Sequence[int], num_rounds: int) -> tuple[tuple[float, ...], ...]:
        """Return the next samples of the programs, as many as there are."""
        begin, self._num_rounds = self._num_rounds, self._num_rounds + num_rounds
        found = [tuple(self._samples[program][begin : self._num_rounds]) for program in programs]
        shortest = min(map(len, found))
        return tuple(each[:shortest] for each in found)


def race_settings(request: MeasureRequest, rivals: Sequence[MeasureRequest]) -> str:
    """Return settings that name a program in a race against certain others."""
    names = ";".join(sorted(rival.settings for rival in rivals))
    digest = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
    return f"{request.settings};race={digest}"
