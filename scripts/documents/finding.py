"""Document of `tessel doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "missing", "warning", "broken"]
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What was looked at, the required parts first."""

    findings: tuple[Finding, ...]
