"""The options of a run, with the names and defaults of the command `tessel run`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tessel.errors import UsageError
from tessel.jobs.inputs.arguments import parse_duration


class Device(enum.StrEnum):
    """What the ranks compute on."""

    CPU = "cpu"
    CUDA = "cuda"


class Overheads(enum.StrEnum):
    """Where the overheads of this machine's ranks come from."""

    KNOWN = "known"
    ANEW = "anew"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What is run, on what, and how often.

    Attributes:
        stages: `compiled`, the plan's functions as TVM compiles them; `torch`, the model's own modules;
            `sleep`, stages that take as long as their blocks; or `module:function` of one's own. As the
            document allows if None.
        step: how long a step of a schedule takes, such as `5ms`, or seconds.
        device: of the ranks; the plan's target, or `cpu` of a schedule, if None.
        repeats: timed steps of each schedule.
        timeout: time limit for the ranks, such as `5m`, or seconds.
        orders: a CSV whose orders are run in place of the document's own.
        overheads: that ranks add to their blocks: `known` from the records or measured once, `anew`, `none`.
        shape: which of the shapes that the plan has; the largest if None.
        model: the `module:function` that the plan was tuned for, which says that its code is trusted; or the
            model's file where it was moved.
        trust_model: whether whatever code the plan names as its model is run.
        records: SQLAlchemy URL or path of the records.
        seed: of weights and inputs.
    """

    stages: str | None = None
    step: str | float | None = None
    device: Device | None = None
    repeats: int = 3
    timeout: str | float = "5m"
    orders: Path | None = None
    overheads: Overheads = Overheads.KNOWN
    shape: Mapping[str, tuple[int, ...]] | None = None
    model: str | None = None
    trust_model: bool = False
    records: str = "sqlite:///out/records.db"
    seed: int = 0

    def check(self) -> None:
        """Refuse values that no document can do anything with.

        Raises:
            UsageError: one of them is wrong.
        """
        if self.repeats < 1:
            raise UsageError(f"--repeats is {self.repeats}; at least one step must count")
        parse_duration(str(self.timeout))

    @property
    def timeout_s(self) -> float:
        """Seconds that the ranks have."""
        return parse_duration(str(self.timeout))
