"""Sizes of pictures: of a screen, or of a page or a column of print.

A figure is made for a width; its text then has the size it is printed with, and nothing needs to be scaled.
Checked in tests/tessel/picture/test_draw.py and test_sizes.py.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib

from tessel.picture.draw import NARROW_INCHES

SCREEN_INCHES = 13.0
PAGE_INCHES = 7.0
"""Both columns of a page of the usual two-column styles (ACM 7.0, IEEE 7.16, USENIX 7.0)."""

COLUMN_INCHES = 3.33
"""One column of them (ACM 3.33, IEEE 3.5, USENIX 3.33)."""

_GLYPH_EM = 0.56  # mean advance width of text in DejaVu Sans, in ems

_TITLE_RATIO = 1.2  # of a title to the rest of the text

_INDENT_INCHES = 0.4  # before a title that stands above the bars, where row labels are short


@dataclass(frozen=True, slots=True)
class Size:
    """Measures of a figure of a width, in inches but for `points`, the size of its text."""

    width: float
    points: float
    row: float
    memory: float
    rest: float

    @staticmethod
    def of(width: float) -> Size:
        """Return the measures of a figure so many inches wide."""
        if width < NARROW_INCHES:
            return Size(width, points=6.5, row=0.24, memory=0.75, rest=1.35)
        if width < 9.0:
            return Size(width, points=7.5, row=0.28, memory=0.9, rest=1.25)
        return Size(width, points=10.0, row=0.42, memory=1.4, rest=1.5)

    def wrapped(self, title: str) -> str:
        """Return a title in as many lines as it needs, set larger than the rest of the text."""
        columns = int((self.width - _INDENT_INCHES) * 72 / (self.points * _TITLE_RATIO * _GLYPH_EM))
        return "\n".join(textwrap.wrap(title, columns)) if len(title) > columns else title


@contextmanager
def text_of(size: Size) -> Iterator[None]:
    """Have artists that are made meanwhile take their text's size, and thin lines in small pictures."""
    line = 0.8 if size.points >= 10 else 0.6
    with matplotlib.rc_context({"font.size": size.points, "axes.linewidth": line}):
        yield
