"""Tessel's own name for a piece of one micro-batch's work, and for what waits for what: `Block`.

Imported from `tessel.schedule.schedplan`, as in Tessel. Checked in tests/tessel/test_schedplan.py.

Source: Lin et al., Tessel (HPCA 2024); the names are those of its tutorial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tessel.errors import ScheduleError, shown
from tessel.placement import BlockKind


class Block:
    """One piece of one micro-batch's work; compared by identity, and its span and memory may be changed.

    Attributes:
        mid: micro-batch.
        span: steps, >= 0.
        memory: units added on each of its devices when it starts; negative frees.
        btype: "forward" or "backward", in any case.
        gid: position in its placement, once it has one.
    """

    def __init__(self, mid: int, span: int, memory: int, btype: str, *, gid: int | None = None) -> None:
        self.mid = mid
        self.span = span
        self.memory = memory
        self.btype = _block_type(btype)
        self.gid = gid
        # Dictionaries keep the order in which dependencies were made; sets would not.
        self.before: dict[Block, None] = {}
        self.after: dict[Block, None] = {}

    @staticmethod
    def make_dependency(prev: Block, next: Block) -> None:
        """Make `next` wait for `prev`."""
        prev.after[next] = None
        next.before[prev] = None

    def __repr__(self) -> str:
        return f"{self.btype[0]}{self.mid}"


def btype_of(kind: BlockKind) -> Literal["forward", "backward"]:
    """Return what a kind counts as here: all but forwards run on the way back."""
    return "forward" if kind is BlockKind.FORWARD else "backward"


def edges_of(gid_of: Mapping[Block, int | None]) -> tuple[tuple[int, int], ...]:
    """Return which block waits for which within a micro-batch, as pairs of their `gid`, each once."""
    found: set[tuple[int, int]] = set()
    for block, source in gid_of.items():
        for later in block.after:
            target = gid_of.get(later)
            if source is not None and target is not None and later.mid == block.mid:
                found.add((source, target))
    return tuple(sorted(found))


def link(by_place: Mapping[tuple[int, int], Block], edges: Sequence[tuple[int, int]]) -> None:
    """Make the blocks of each micro-batch wait for each other.

    Args:
        by_place: blocks by `gid` and micro-batch.
        edges: `gid` of a block and of one that waits for it.
    """
    micro_batches = sorted({mid for _, mid in by_place})
    for source, target in edges:
        for mid in micro_batches:
            if (source, mid) in by_place and (target, mid) in by_place:
                Block.make_dependency(by_place[source, mid], by_place[target, mid])


def _block_type(given: str) -> Literal["forward", "backward"]:
    match given.lower():
        case "forward":
            return "forward"
        case "backward":
            return "backward"
        case _:
            raise ScheduleError(f'a block has btype {shown(given)!r}; it is "forward" or "backward"')
