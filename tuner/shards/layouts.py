"""Say how a tensor lies over the devices of a group: whole on each, divided along an axis, or as terms.

    Replicated          every shard holds the whole tensor
    Split(axis, …)      every shard holds some intervals of one axis, one after another
    Partial("sum")      every shard holds a term of the whole's shape; together they are the tensor

A split lists intervals and not only extents, because a product whose columns are query, key and value of
several heads gives each shard three intervals: its heads of each. Extents need not be equal. Checked in
tests/tuner/shards/test_layouts.py.

Source: Xu et al., "GSPMD: General and Scalable Parallelization for ML Computation Graphs" (2021), section
3.1, which has the three kinds; its splits are even and padded, these are uneven and are not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tuner.errors import TunerError

Reduction: TypeAlias = Literal["sum", "max", "min"]
"""How the terms of a partial tensor make the whole."""

Interval: TypeAlias = tuple[int, int]
"""First index and length, at least 1."""


@dataclass(frozen=True, slots=True)
class Replicated:
    """The whole tensor on every shard."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A term of the tensor on every shard."""

    reduction: Reduction


@dataclass(frozen=True, slots=True)
class Split:
    """A part of one axis on every shard.

    Attributes:
        axis: counted from the front.
        pieces: each shard's intervals, rising and apart; together all shards' cover the axis once.

    Raises:
        ValueError: a shard holds nothing, or the intervals do not cover the axis once.
    """

    axis: int
    pieces: tuple[tuple[Interval, ...], ...]

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError(f"axis {self.axis} of a split is negative; count axes from the front")
        if any(not piece for piece in self.pieces):
            raise ValueError(f"shards {self.pieces} leave one without any part; use fewer shards")
        covered = sorted(interval for piece in self.pieces for interval in piece)
        if any(
            first + length != start for (first, length), (start, _) in itertools.pairwise([(0, 0), *covered])
        ):
            raise ValueError(f"shards {self.pieces} do not cover the axis once; list each index once")
        if any(tuple(sorted(piece)) != piece for piece in self.pieces):
            raise ValueError(f"shards {self.pieces} list intervals out of order; let them rise")

    @property
    def extent(self) -> int:
        """The whole axis's extent."""
        return sum(self.extents)

    @property
    def extents(self) -> tuple[int, ...]:
        """The extent of the axis on each shard."""
        return tuple(sum(length for _, length in piece) for piece in self.pieces)

    @property
    def starts(self) -> tuple[int, ...] | None:
        """The first index of each shard, or None where some shard holds several intervals."""
        if any(len(piece) > 1 for piece in self.pieces):
            return None
        return tuple(piece[0][0] for piece in self.pieces)

    def moved(self, axis: int) -> Split:
        """Return the same intervals of another axis."""
        return Split(axis, self.pieces)


Layout: TypeAlias = Replicated | Split | Partial
"""How one tensor lies over the shards."""


def split_axis(axis: int, extent: int, num_shards: int, *, unit: int = 1, sections: int = 1) -> Split:
    """Divide an axis as evenly as whole units allow: parts differ by at most a unit in each section.

    Args:
        axis: counted from the front.
        extent: of the whole axis, a multiple of `sections * unit`.
        num_shards: at least 1, and at most the units of a section.
        unit: indices that stay together, such as the width of an attention head.
        sections: equal runs of the axis that are each divided, such as 3 for query, key and value.

    Raises:
        TunerError: there are fewer units than shards, or the extent is no multiple.
    """
    length, remainder = divmod(extent, sections * unit)
    if remainder:
        raise TunerError(
            f"an axis of extent {extent} has no {sections} sections of whole units of {unit}; give others"
        )
    if length < num_shards:
        raise TunerError(
            f"an axis of extent {extent} has {length} units of {unit}, fewer than {num_shards} shards; "
            "use fewer shards"
        )
    bounds = [unit * (-(-length * rank // num_shards)) for rank in range(num_shards + 1)]
    return Split(
        axis,
        tuple(
            tuple((section * length * unit + first, stop - first) for section in range(sections))
            for first, stop in itertools.pairwise(bounds)
        ),
    )


def local_shape(layout: Layout, shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the shape of a shard's part of a tensor."""
    if not isinstance(layout, Split):
        return tuple(shape)
    return (*shape[: layout.axis], layout.extents[rank], *shape[layout.axis + 1 :])


def take_shard(array: np.ndarray, layout: Layout, rank: int) -> np.ndarray:
    """Return a shard's part of a whole tensor.

    Raises:
        ValueError: the layout is partial, so that no part follows from the whole.
    """
    if isinstance(layout, Partial):
        raise ValueError("a whole tensor has no terms; give it replicated or split")
    if isinstance(layout, Replicated):
        return array
    pieces = [
        array[(slice(None),) * layout.axis + (slice(first, first + length),)]
        for first, length in layout.pieces[rank]
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=layout.axis)


def join_shards(parts: Sequence[np.ndarray], layout: Layout) -> np.ndarray:
    """Return the whole tensor from all shards' parts; of a replicated one, the first."""
    if isinstance(layout, Partial):
        return reduce_terms(parts, layout.reduction)
    if isinstance(layout, Replicated):
        return parts[0]
    located = []
    for part, piece in zip(parts, layout.pieces, strict=True):
        ends = np.cumsum([length for _, length in piece])[:-1]
        runs = np.split(part, ends, axis=layout.axis)
        located += [(first, run) for (first, _), run in zip(piece, runs, strict=True)]
    located.sort(key=lambda entry: entry[0])
    return np.concatenate([run for _, run in located], axis=layout.axis)


def reduce_terms(terms: Sequence[np.ndarray], reduction: Reduction) -> np.ndarray:
    """Return the whole tensor from its terms, one from each shard."""
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[reduction]
    return np.asarray(combine.reduce(list(terms)))
