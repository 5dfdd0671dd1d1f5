"""Control characters that a terminal obeys instead of showing, and texts in which they are written out.

Checked in tests/tessel/progress/test_messages.py.
"""

from __future__ import annotations

import re

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal obeys instead of showing it: control characters, and those that turn text around."""


def printable(text: str) -> str:
    """Return a text in which everything that a terminal would obey, line ends included, is written out."""
    return CONTROLS.sub(lambda found: _written_out(found[0]), text)


def _written_out(character: str) -> str:
    """Return a character as Python writes it in a literal, such as `\\n` or `\\x1b`."""
    return character.encode("unicode_escape").decode()
