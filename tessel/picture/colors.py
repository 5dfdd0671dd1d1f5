"""Colours and names of blocks, the same in pictures and on pages.

The hues are Okabe and Ito's, which are safe for colour-blind readers. Their sky blue and orange are equally
light, so forward blocks have a darker blue and weight halves a lighter green: kinds that one schedule holds
differ by at least 12 units of CIE lightness (joint backward and weight half, which only a schedule that
chooses between them holds together, by 6), and black text has a contrast of at least 4.5 on all of them.
Tints distinguish the chunks of a device (the stages that it runs of one kind, as interleaved and
zero-bubble-V schedules have them) or, where it runs one stage, the micro-batches. Chunks have a mark
beside the tint (`tessel.picture.draw`), since no twelve tints stay apart in greyscale.
Checked in tests/tessel/picture/test_colors.py. Source: Okabe and Ito, Color Universal Design (2008).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tessel.placement import Block, BlockKind, Placement

COLOR_BY_KIND = {
    BlockKind.FORWARD: "#3A82BE",
    BlockKind.BACKWARD: "#E69F00",
    BlockKind.BACKWARD_INPUT: "#F0E442",
    BlockKind.BACKWARD_WEIGHT: "#35B183",
    BlockKind.RECOMPUTE: "#CC79A7",
    BlockKind.OTHER: "#BBBBBB",
}
LABEL_BY_KIND = {
    BlockKind.FORWARD: "forward",
    BlockKind.BACKWARD: "backward",
    BlockKind.BACKWARD_INPUT: "backward, input",
    BlockKind.BACKWARD_WEIGHT: "backward, weight",
    BlockKind.RECOMPUTE: "recompute",
    BlockKind.OTHER: "other",
}
LABEL_OF_OWN = {"tower_back": "tower backward"}
"""Of kinds that plans have beside those, where the name of their blocks is no words."""

OWN_COLORS = (COLOR_BY_KIND[BlockKind.OTHER], "#B89AD9", "#8FA3A3")
"""Of kinds of one's own, in order of their names."""

CHUNK_COLOR = "#555555"
"""Stands for any kind where a legend explains chunks."""

CRITICAL = "#D55E00"
"""The critical path; no kind of block has this colour."""

IDLE = "#EFEFEF"
DEVICE_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#999999")

_BACKEND_COLORS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#0072B2", "#D55E00", "#BBBBBB")

_ODD_WHITE = 0.35  # share of white in the bars of odd micro-batches
_LAST_WHITE = 0.35  # in those of a device's last chunk

_EQUAL_CONTRAST = 0.179
"""Luminance on which black and white have the same contrast: (1 + 0.05) / (L + 0.05) = (L + 0.05) / 0.05."""


class BlockStyle(NamedTuple):
    """How the bars of a block look.

    Attributes:
        group: its kind, or for kinds of one's own the block's name without the number.
        label: the group as a legend names it.
        color: of the group, as "#RRGGBB".
        chunk: which of the stages of this kind that its device runs, counted from 0.
        white: share of white in the bars of even and of odd micro-batches.
    """

    group: str
    label: str
    color: str
    chunk: int
    white: tuple[float, float]


def block_styles(placement: Placement) -> dict[str, BlockStyle]:
    """Return the style of each block by its name, in order of their kinds."""
    order = {kind.value: number for number, kind in enumerate(BlockKind)}
    group_of = {block.name: _group(block) for block in placement.blocks}
    groups = sorted(set(group_of.values()), key=lambda name: (order.get(name, len(order)), name))
    own = [name for name in groups if name not in order]
    chunk_of = _chunks(placement, group_of)
    last = max(chunk_of.values())
    styles = {}
    for block in sorted(placement.blocks, key=lambda block: groups.index(group_of[block.name])):
        group, chunk = group_of[block.name], chunk_of[block.name]
        white = _LAST_WHITE * chunk / last if last else _ODD_WHITE
        styles[block.name] = BlockStyle(
            group=group,
            label=LABEL_OF_OWN.get(group, group) if group in own else LABEL_BY_KIND[BlockKind(group)],
            color=OWN_COLORS[own.index(group) % len(OWN_COLORS)]
            if group in own
            else COLOR_BY_KIND[BlockKind(group)],
            chunk=chunk,
            white=(white, white) if last else (0.0, white),
        )
    return styles


def chunk_whites(styles: Iterable[BlockStyle]) -> list[float]:
    """Return the share of white of each chunk; empty where no device has more than one."""
    found = {style.chunk: style.white[0] for style in styles}
    return [found[chunk] for chunk in sorted(found)] if len(found) > 1 else []


def color_by_backend(backends: Iterable[str]) -> dict[str, str]:
    """Return a colour for each backend; they take them in order of their names."""
    return {
        backend: _BACKEND_COLORS[number % len(_BACKEND_COLORS)]
        for number, backend in enumerate(sorted(set(backends)))
    }


def luminance(color: Sequence[float]) -> float:
    """Return the relative luminance of an sRGB colour, 0 (black) to 1 (white).

    Args:
        color: red, green and blue, each 0 to 1; more (an alpha) is left out of account.

    Source: WCAG 2.2, definition of relative luminance.
    """
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink_on(color: Sequence[float]) -> str:
    """Return black or white, whichever has the higher contrast on the colour (WCAG 2.2; at least 4.5)."""
    return "black" if luminance(color) > _EQUAL_CONTRAST else "white"


def _group(block: Block) -> str:
    if block.kind is not BlockKind.OTHER:
        return block.kind.value
    return block.name.rstrip("0123456789").rstrip("_") or block.kind.value


def _chunks(placement: Placement, group_of: dict[str, str]) -> dict[str, int]:
    """Number the blocks of a group on the same devices by their stages."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for block in placement.blocks:
        alike[group_of[block.name], block.devices].append(block.name)
    return {
        name: chunk for names in alike.values() for chunk, name in enumerate(sorted(names, key=_stage_number))
    }


def _stage_number(name: str) -> tuple[int, str]:
    """The order of stages: `b10_input` comes after `b9_input`."""
    number = re.search(r"\d+", name)
    return (int(number[0]) if number else 0, name)
