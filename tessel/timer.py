"""Tessel's own name for a stopwatch: `CpuTimer`, one for the whole process, with named fields.

    >>> from tessel.timer import CpuTimer
    >>> CpuTimer(enable=True).start("search")
    >>> CpuTimer().stop("search") >= 0
    True

It counts wall-clock time, as Tessel's does, whatever its name says. Only programs written for Tessel need it;
nothing in this package does. Checked in tests/tessel/schedule/test_solver_and_timer.py.

Source: Lin et al., Tessel (HPCA 2024); the names are those of its example programs.
"""

from __future__ import annotations

import logging
import time
from typing import ClassVar

logger = logging.getLogger(__name__)


class CpuTimer:
    """A stopwatch with named fields; every `CpuTimer()` is the same one.

    Attributes:
        enabled: whether `start` and `stop` have an effect.
    """

    enabled: ClassVar[bool] = True
    _began_s: ClassVar[dict[str, list[float]]] = {}
    _total_s: ClassVar[dict[str, float]] = {}

    def __init__(self, enable: bool | None = None) -> None:
        if enable is not None:
            CpuTimer.enabled = enable

    def start(self, field_name: str = "default") -> None:
        """Start a field; a field that runs already counts twice until it is stopped twice."""
        if self.enabled:
            self._total_s.setdefault(field_name, 0.0)
            self._began_s.setdefault(field_name, []).append(time.monotonic())

    def stop(self, field_name: str = "default") -> float:
        """Stop a field and return the seconds since it was last started; 0 where the timer is off.

        Raises:
            RuntimeError: the field does not run.
        """
        if not self.enabled:
            return 0.0
        if not self._began_s.get(field_name):
            raise RuntimeError(f"field {field_name!r} is stopped, but does not run; start it first")
        span_s = time.monotonic() - self._began_s[field_name].pop()
        self._total_s[field_name] += span_s
        return span_s

    def duration(self, times: int, field_name: str = "default") -> float:
        """Return the milliseconds of a field, divided by a number of times; 0 for one never started.

        Raises:
            RuntimeError: the field still runs.
        """
        if field_name not in self._total_s:
            logger.warning("field %r was never started; it counts 0 ms", field_name)
            return 0.0
        if self._began_s[field_name]:
            raise RuntimeError(f"field {field_name!r} still runs; stop it before asking for its duration")
        return self._total_s[field_name] / times * 1000

    def clear(self) -> None:
        """Forget every field."""
        self._began_s.clear()
        self._total_s.clear()

    def print_all(self, times: int) -> None:
        """Print the milliseconds of every field, divided by a number of times, on one line."""
        line = " | ".join(f"{name} : {self.duration(times, name):.2f} ms" for name in sorted(self._total_s))
        print(line)
