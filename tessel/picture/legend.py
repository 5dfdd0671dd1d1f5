"""The legend below a figure: kinds of blocks, the mark of each chunk, the critical path, idle time.

As many columns as fit the figure's width. Checked in tests/tessel/picture/test_draw.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.legend_handler import HandlerBase
from matplotlib.patches import Rectangle
from matplotlib.transforms import Transform

from tessel.picture.draw import ChunkSwatch

_SWATCH_EM = 5.0  # width of a legend's swatch and the spaces around it, in ems
_GLYPH_EM = 0.56


def add_legend(figure: Figure, all_axes: Sequence[Axes]) -> None:
    """Explain what the axes show: one entry a label, of whatever axes has it first; idle time last."""
    handles: dict[str, Artist] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    handles["idle"] = handles.pop("idle")
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=_columns(handles, figure.get_size_inches()[0]),
        frameon=False,
        handler_map={ChunkSwatch: _ChunkHandler()},
    )


def _columns(labels: Sequence[str] | dict[str, Artist], width: float) -> int:
    ems = _SWATCH_EM + _GLYPH_EM * max(map(len, labels))
    return max(1, min(len(labels), int(width * 72 / (ems * rcParams["font.size"]))))


class _ChunkHandler(HandlerBase):
    """Draws a chunk's swatch with the strip that marks its bars."""

    def create_artists(
        self,
        legend: Legend,
        orig_handle: Artist,
        xdescent: float,
        ydescent: float,
        width: float,
        height: float,
        fontsize: float,
        trans: Transform,
    ) -> list[Artist]:
        assert isinstance(orig_handle, ChunkSwatch)
        corner = (-xdescent, -ydescent)
        box = Rectangle(corner, width, height, facecolor=orig_handle.shade, linewidth=0, transform=trans)
        strip = Rectangle(
            corner, width, height * orig_handle.strip, facecolor="#222222", linewidth=0, transform=trans
        )
        return [box, strip]
