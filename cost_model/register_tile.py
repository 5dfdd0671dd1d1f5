"""Choose the tile of a reduction's results that is kept in vector registers, from extents and strides alone.

The model: a vector covers `lanes` neighbouring results, a tile is some rows of several vectors, and all of
its partial results stay in registers while the reduction runs. A vector is cheap to load where the operand
holds its axis last and advances by one; an operand that holds it elsewhere can be packed. Tiles divide their
axes: there is no remainder. Axes that no good tile divides are padded first, where operands can be padded and
their elements are read often enough (`choose_padding`). Latencies and cache sizes are not modelled.

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

_MOST_ACCUMULATORS = 26
"""Of a tile of many rows, whose other operand is read from memory: two vectors of 13 rows."""

NARROW_ACCUMULATORS = {8: 6, 4: 2}
"""Vectors of 16 for partial results by how many all registers hold, where those are fewer: with AVX2 (8), six
are twelve of sixteen registers. With SSE or NEON a vector of 16 is four registers."""

_WIDE = 32
"""Vectors of 16 that the registers of AVX-512 hold."""

_MIN_ACCUMULATORS = 8
"""Two multiplications a cycle, of which each result can be added to after four."""

_MAX_ROWS = 7
"""Rows of a tile: 7 divides the extents of many convolutions, and 4 those of most products."""

_MIN_ROWS = 3
"""Rows below which vectors are loaded about as often as they are used, so that a tile of more is sought."""

_LANES = (16, 8, 4)
"""Elements of a vector, the best first: one AVX-512 register of float32, two of AVX2, and less."""

_MAX_VECTORS = 16
"""Vectors along one row of a tile, where rows are few."""

_MIN_PADDED = 5
"""Elements of an axis below which a vector of 8 would be mostly padding."""

_PADDING_GAIN = 1.5
"""How many times fewer vectors there are with padding than without, at least."""

_PACKED_WORTH = 0.75
"""Of a vector whose operand is packed, and whose results are not neighbours, beside one where both are."""

_MAX_COPIED = 1 << 21
"""Elements of an operand above which a padded copy of it costs more memory traffic than it saves: 8 MiB."""


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
        packs: whether the operand that moves along the vectors is packed.
    """

    vector_axis: int
    lanes: int
    vectors: int
    row_axis: int | None
    rows: int
    packs: bool


def choose_tile(axes: Sequence[TileAxis], *, packs: bool, registers: int = _WIDE) -> RegisterTile | None:
    """Return the tile with the widest vectors; of equals, one without packing, then the last axis.

    Args:
        axes: the axes of the results.
        packs: whether the operands' elements are read often enough to pay for packing.
        registers: vectors of 16 that all registers hold: 32 with AVX-512.

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
    row_extent = 1 if row_axis is None else axes[row_axis].extent
    num_vectors = axes[vector_axis].extent // lanes
    if registers < _WIDE:
        rows, vectors = _narrow_rows_and_vectors(row_extent, num_vectors, lanes, registers)
    else:
        rows, vectors = _rows_and_vectors(row_extent, num_vectors)
    return RegisterTile(vector_axis, lanes, vectors, row_axis, rows, packs=packing < 0)


def choose_padding(
    axes: Sequence[TileAxis], operands: Sequence[int], *, packs: bool, registers: int = _WIDE
) -> tuple[int, ...] | None:
    """Return the extents to pad the axes to before `choose_tile`; None where they are best as they are.

    Args:
        axes: the axes of the results; no operand is read by a sum of several of them.
        operands: elements of each operand; large ones are not copied.
        packs: as in `choose_tile`; without it nothing is padded.
        registers: as in `choose_tile`.
    """
    if not packs:
        return None
    extents = [axis.extent for axis in axes]

    def padded(axis: TileAxis, extent: int) -> int:
        copies = any(operands[step.operand] > _MAX_COPIED for step in axis.steps)
        return axis.extent if copies else extent

    choices = []
    for index, axis in enumerate(axes):
        to_pack = [step for step in axis.steps if not step.is_contiguous]
        extent = padded(axis, padded_for_vectors(axis.extent))
        lanes = lanes_of(extent)
        if not (lanes and axis.takes_vectors and axis.steps) or len(to_pack) > 1:
            continue
        if all(step.step == 1 for step in to_pack):
            worth = lanes * axis.extent / extent * (_PACKED_WORTH if to_pack else 1.0)
            choices.append((worth, index, extent))
    if not choices:
        return None
    _, vector_axis, extents[vector_axis] = max(choices)
    row_axis = _row_axis(axes, vector_axis)
    if row_axis is not None:
        extents[row_axis] = padded(axes[row_axis], padded_for_rows(extents[row_axis], registers))
    return None if extents == [axis.extent for axis in axes] else tuple(extents)


def padded_for_vectors(extent: int) -> int:
    """Return the extent that vectors fill with at least `_PADDING_GAIN` times fewer, or as it is."""
    if extent < _MIN_PADDED:
        return extent
    lanes = 16 if extent > 8 else 8
    count = -(-extent // lanes)
    today = lanes_of(extent) or 1
    return lanes * count if extent >= today * count * _PADDING_GAIN else extent


def padded_for_rows(extent: int, registers: int = _WIDE) -> int:
    """Return the extent that tiles of several rows divide: the least, or as it is where some do."""
    if registers < _WIDE:
        most = NARROW_ACCUMULATORS[registers]
        if extent <= most or largest_divisor(extent, most) >= min(most, _MIN_ROWS):
            return extent
        return min(rows * -(-extent // rows) for rows in range(most // 2 + 1, most + 1))
    if extent <= NUM_ACCUMULATORS or rows_of(extent) >= _MIN_ROWS:
        return extent
    return min(rows * -(-extent // rows) for rows in range(4, _MAX_ROWS + 1))


@functools.lru_cache(maxsize=1 << 16)
def rows_of(extent: int) -> int:
    """Return the rows of a tile: a divisor, of up to 7 rows; more where those are too few, such as of 13."""
    rows = largest_divisor(extent, _MAX_ROWS)
    if rows >= _MIN_ROWS:
        return rows
    more = range(_MAX_ROWS + 1, NUM_ACCUMULATORS + 1)
    return next((size for size in more if extent % size == 0), rows)


@functools.lru_cache(maxsize=1 << 16)
def _rows_and_vectors(row_extent: int, num_vectors: int) -> tuple[int, int]:
    """Return the rows of a tile and the vectors in one: most rows first, unless that leaves few accumulators.

    Multiplications of few accumulators wait for each other's results; of such tiles, that with the highest
    throughput is taken.
    """
    rows = rows_of(row_extent)
    vectors = _most_vectors(rows, num_vectors)
    if rows * vectors >= _MIN_ACCUMULATORS:
        return rows, vectors
    choices = [
        (size, _most_vectors(size, num_vectors))
        for size in range(1, min(row_extent, NUM_ACCUMULATORS) + 1)
        if row_extent % size == 0
    ]
    return max([(rows, vectors), *choices], key=lambda tile: _throughput(*tile))


@functools.lru_cache(maxsize=1 << 16)
def _narrow_rows_and_vectors(
    row_extent: int, num_vectors: int, lanes: int, registers: int
) -> tuple[int, int]:
    """Return the rows of a tile and the vectors in one, where a vector may be several registers.

    Of tiles with the highest throughput that with most rows, which loads the least from the other operand.
    """
    most = NARROW_ACCUMULATORS[registers] * _LANES[0] // lanes
    parts = max(1, lanes // registers)  # a register has as many elements as 16 hold vectors of 16
    choices = [
        (rows, largest_divisor(num_vectors, min(_MAX_VECTORS, most // rows)))
        for rows in range(1, min(row_extent, most) + 1)
        if row_extent % rows == 0
    ]
    return max(choices, key=lambda tile: (_throughput(tile[0], tile[1] * parts), tile[0]))


def _most_vectors(rows: int, num_vectors: int) -> int:
    accumulators = NUM_ACCUMULATORS if rows <= _MAX_ROWS else _MOST_ACCUMULATORS
    return largest_divisor(num_vectors, min(_MAX_VECTORS, accumulators // rows))


def _throughput(rows: int, vectors: int) -> float:
    """Return which part of the peak a tile reaches whose multiplications and loads are two a cycle each."""
    return rows * vectors / max(rows * vectors, rows + vectors, _MIN_ACCUMULATORS)


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
