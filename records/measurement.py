"""The outcome of running a workload: samples, or the reason why there are none.

A failed measurement is a measurement: it has a status and a message and no samples, never an infinite
latency. Latencies are wall-clock microseconds of one execution, one sample per repeat.
"""

from __future__ import annotations

import enum
import statistics

import msgspec

from records.backend_names import current_name, kept_name
from records.environment import Environment


class Status(enum.StrEnum):
    """How a measurement ended."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    TIMEOUT = "timeout"


NOT_BY_PROGRAM = "not by the program: "
"""How the message of a failure begins that says nothing of the program: a library or tool is missing, memory
is short, somebody killed the process. A status of its own would be damage to earlier versions."""

_KILLED = "the process was killed during "
"""How earlier versions began such a message."""

FOREIGN_FAULTS = (NOT_BY_PROGRAM, _KILLED)
"""How messages of failures begin that no look-up returns."""


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One workload, run by one backend for one target in one environment.

    Attributes:
        workload_fingerprint: names the `records.Workload`.
        backend: what lowered it, such as `tvm` or `blas`.
        settings: what else changes the result for this backend, such as `trials=64`; empty if nothing.
        target: canonical text of the target.
        environment: where it ran.
        status: how it ended.
        samples_us: wall-clock microseconds, one per repeat, in order; empty unless the status is ok.
        message: why it failed, in one line; empty if it did not.
        peak_memory_bytes: most memory the program held beside its arguments, where it was measured.
        relative_error: where results were checked, the largest difference from the reference's, over the
            reference's largest magnitude.
        measured_at: seconds since 1970-01-01 UTC.
        seed: seed of the random inputs.
    """

    workload_fingerprint: str
    backend: str
    target: str
    environment: Environment
    status: Status
    samples_us: tuple[float, ...] = ()
    settings: str = ""
    message: str = ""
    peak_memory_bytes: int | None = None
    relative_error: float | None = None
    measured_at: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.status is Status.OK and not self.samples_us:
            raise ValueError("a measurement with status ok has no samples; give at least one, or its failure")
        if self.status is not Status.OK and self.samples_us:
            raise ValueError(f"a measurement with status {self.status} has samples; a failure has none")
        if any(not 0 < sample < float("inf") for sample in self.samples_us):
            raise ValueError("a sample is not a positive finite number of microseconds")
        if self.relative_error is not None and not 0 <= self.relative_error < float("inf"):
            raise ValueError(f"relative error {self.relative_error} is not a finite number >= 0; check again")

    @property
    def tells_of_program(self) -> bool:
        """Whether it is a latency, or a failure that would happen again."""
        return self.status is Status.OK or not self.message.startswith(FOREIGN_FAULTS)

    def as_kept(self) -> Measurement:
        """Return the measurement as it is stored and hashed; see `records.backend_names`."""
        return self._renamed(kept_name(self.backend), self.environment.as_kept())

    def as_current(self) -> Measurement:
        """Return a stored measurement with the current names of backends."""
        return self._renamed(current_name(self.backend), self.environment.as_current())

    def _renamed(self, backend: str, environment: Environment) -> Measurement:
        if backend == self.backend and environment is self.environment:
            return self
        return msgspec.structs.replace(self, backend=backend, environment=environment)

    @property
    def latency_us(self) -> float:
        """Median of the samples.

        Raises:
            ValueError: the measurement failed, so it has no latency.
        """
        if not self.samples_us:
            raise ValueError(f"measurement failed ({self.status}: {self.message}); it has no latency")
        return statistics.median(self.samples_us)

    @property
    def quartiles_us(self) -> tuple[float, float]:
        """First and third quartile of the samples (both the sample itself where there is one)."""
        if len(self.samples_us) == 1:
            return self.samples_us[0], self.samples_us[0]
        first, _, third = statistics.quantiles(self.samples_us, n=4, method="inclusive")
        return first, third
