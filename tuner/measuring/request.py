"""Requests to a measurer: a program, and when to give up on one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from records import Workload
from tuner.graph.relax_types import IRModule
from tuner.measuring.messages import DEFAULT_TIMING, Timing

ProgramKey: TypeAlias = tuple[str, str, str]
"""What names a program's outcome: workload, backend, settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """One program to measure.

    Attributes:
        workload: what it is, as the records name it.
        module: its `main` is the program; lowered already, or with partitions that name their backends.
        backend: name of what lowers it, or a label such as `mix`.
        settings: what else changes the result, such as `trials=64` or a partition's fingerprint.
        check: whether its results are compared with a reference's first, once a kind of program (backend,
            operators and data types).
        reference: a module with the same parameters whose results are right; TVM's own default lowering of
            the program, which is slow, if None.
        races: whether the program stays built, to race against others afterwards.
        runs_anywhere: whether it runs wherever anything does, so that a recorded failure tells nothing.
    """

    workload: Workload
    module: IRModule
    backend: str
    settings: str = ""
    check: bool = False
    reference: IRModule | None = None
    races: bool = False
    runs_anywhere: bool = False

    @property
    def key(self) -> ProgramKey:
        """What its outcome is found by."""
        return self.workload.fingerprint, self.backend, self.settings

    @property
    def kind(self) -> str:
        """What is checked once: a backend with operators and data types, whatever the shapes."""
        operators = [operator.name for operator in self.workload.operators]
        dtypes = sorted({tensor.dtype for tensor in self.workload.values})
        return f"{self.backend} {self.settings} {operators} {dtypes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to give up on a program, and how long to time one.

    Attributes:
        build_timeout_s: longest lowering, building and checking.
        run_timeout_s: longest timing, the making of inputs and the first execution included.
        timing: how samples are taken.
        race_s: time after which a race gets no further rounds; `race.FEWEST_ROUNDS` are always run.
    """

    build_timeout_s: float = 90.0
    run_timeout_s: float = 60.0
    timing: Timing = DEFAULT_TIMING
    race_s: float = 15.0


DEFAULT_LIMITS = Limits()
"""A minute and a half to build, a minute to run."""
