"""The machine whose kernels are measured and written for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from records import Environment
from tuner.targets.target import Target


@dataclass(frozen=True, slots=True)
class Machine:
    """What kernels are tuned for, and where from here.

    Attributes:
        target: this machine's processor or GPU.
        tuned_for: the same as MetaSchedule wants it.
        environment: that trials belong to.
    """

    target: Target
    tuned_for: Any
    environment: Environment
