"""Choose the tile of a reduction's results that is kept in vector registers, from extents and strides alone.

The model: a vector covers `lanes` neighbouring results, a tile is some rows of several vectors, and all of
its partial results stay in registers while the reduction runs. A vector is cheap to load where the operand
holds its axis last and advances by one; an operand that holds it elsewhere can be packed. Tiles divide their
axes: there is no remainder. Latencies and cache sizes are not modelled.

The tuner schedules kernels by this choice (`tuner.backends.tvm.register_tile`), and the cost model reads
it off a workload (`cost_model.product_tile`), so that both know the same tile. Checked in
tests/cost_model/test_register_tile.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

NUM_ACCUMULATORS = 24
"""Vector registers for partial results; AVX-512 has 32, and operands need some."""

_MAX_ROWS = 7
"""Rows of a tile: 7 divides the extents of many convolutions, and 4 those of most products."""

_LANES = (16, 8, 4)
"""Elements of a vector, the best first: one AVX-512 register of float32, two of AVX2, and less."""

_MAX_VECTORS = 16
"""Vectors along one row of a tile, where rows are few."""


class OperandStep(NamedTuple):
    """How an operand is read as an axis of the result advances by one.

    Attributes:
        operand: which one; operands that the axis does not move have no step.
        step: by how much its own axis advances; anything but 1 where no single axis does.
        is_contiguous: whether neighbours along the axis are neighbours in its memory.
    """

    operand: int
    step: int
    is_contiguous: bool


class TileAxis(NamedTuple):
    """One axis of the results.

    Attributes:
        extent: its elements.
        steps: of the operands that it moves.
        takes_vectors: whether vectors of results can be stored along it.
    """

    extent: int
    steps: tuple[OperandStep, ...]
    takes_vectors: bool = True


class RegisterTile(NamedTuple):
    """A tile of results; axes are named by position.

    Attributes:
        vector_axis: the axis that vectors lie along.
        lanes: elements of a vector.
        vectors: vectors in a row.
        row_axis: the axis of the tile's rows, or None for a single row.
        rows: rows of the tile.
        packs: whether the operand that moves along the vectors is packed.
    """

    vector_axis: int
    lanes: int
    vectors: int
    row_axis: int | None
    rows: int
    packs: bool


def choose_tile(axes: Sequence[TileAxis], *, packs: bool) -> RegisterTile | None:
    """Return the tile with the widest vectors; of equals, one without packing, then the last axis.

    Args:
        axes: the axes of the results.
        packs: whether the operands' elements are read often enough to pay for packing.

    Returns:
        The tile, or None where no axis fills a vector.
    """
    choices = []
    for index, axis in enumerate(axes):
        lanes = lanes_of(axis.extent)
        to_pack = [step for step in axis.steps if not step.is_contiguous]
        if not (lanes and axis.takes_vectors and axis.steps) or len(to_pack) > int(packs):
            continue
        if all(step.step == 1 for step in to_pack):
            choices.append((lanes, -len(to_pack), index))
    if not choices:
        return None
    lanes, packing, vector_axis = max(choices)
    row_axis = _row_axis(axes, vector_axis)
    rows = 1 if row_axis is None else largest_divisor(axes[row_axis].extent, _MAX_ROWS)
    most_vectors = min(_MAX_VECTORS, NUM_ACCUMULATORS // rows)
    vectors = largest_divisor(axes[vector_axis].extent // lanes, most_vectors)
    return RegisterTile(vector_axis, lanes, vectors, row_axis, rows, packs=packing < 0)


def lanes_of(extent: int) -> int:
    """Return the widest vector that divides the extent; 0 where none does."""
    return next((lanes for lanes in _LANES if extent % lanes == 0), 0)


@functools.lru_cache(maxsize=1 << 16)
def largest_divisor(extent: int, limit: int) -> int:
    """Return the largest divisor of the extent up to the limit; 0 where the extent is 0."""
    return next((size for size in range(min(extent, limit), 0, -1) if extent % size == 0), 0)


def _row_axis(axes: Sequence[TileAxis], vector_axis: int) -> int | None:
    """Return the last axis along which the operand that vectors are loaded from stays the same."""
    loaded = {step.operand for step in axes[vector_axis].steps}
    for index in reversed(range(len(axes))):
        moved = {step.operand for step in axes[index].steps}
        if index != vector_axis and axes[index].extent > 1 and moved and not moved & loaded:
            return index
    return None
