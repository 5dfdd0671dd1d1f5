"""One thing that `tessel doctor` looked at; plain data, so that `--help` need not import more."""

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
