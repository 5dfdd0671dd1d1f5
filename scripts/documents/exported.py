"""Documents of `tessel export`."""

from __future__ import annotations

import msgspec


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """A plan as another framework loads it.

    Attributes:
        to: the framework.
        files: what was written; empty without --out.
        text: of the first file.
    """

    to: str
    files: tuple[str, ...]
    text: str
