"""Colours and names of kinds of blocks, the same in pictures and on pages.

The palette is Okabe and Ito's, which colour-blind people can tell apart; its lightness differs from kind to
kind, so that a grey print still tells forward from backward. Source: Okabe and Ito, Color Universal Design
(2008).
"""

from collections.abc import Iterable

from tessel.placement import BlockKind

COLOR_BY_KIND = {
    BlockKind.FORWARD: "#56B4E9",
    BlockKind.BACKWARD: "#E69F00",
    BlockKind.BACKWARD_INPUT: "#F0E442",
    BlockKind.BACKWARD_WEIGHT: "#009E73",
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
OWN_COLORS = (COLOR_BY_KIND[BlockKind.OTHER], "#0072B2", "#777777")
"""Of kinds of one's own, in order of their names."""

CRITICAL = "#D55E00"
"""The critical path; no kind of block has this colour."""

IDLE = "#EFEFEF"
DEVICE_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#999999")

_BACKEND_COLORS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#0072B2", "#D55E00", "#BBBBBB")


def color_by_backend(backends: Iterable[str]) -> dict[str, str]:
    """Return a colour for each backend; they take them in order of their names."""
    return {
        backend: _BACKEND_COLORS[number % len(_BACKEND_COLORS)]
        for number, backend in enumerate(sorted(set(backends)))
    }
