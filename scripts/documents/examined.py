"""Documents of `tessel doctor`."""

from __future__ import annotations

import msgspec

from scripts.documents.finding import Finding


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, the required parts first."""

    findings: tuple[Finding, ...]
