"""Which tile of a reduction's results to keep in vector registers, and which operand to pack for it.

The model: a vector step covers `lanes` neighbouring results, a tile is some rows of several vectors, and all
of its partial results stay in registers while the reduction runs. A vector is cheap to load where the
operand holds its axis last and steps by one; an operand that holds it elsewhere can be packed. Tiles divide
their axes: nothing is left over. Latencies and cache sizes are left out. Checked in
tests/tuner/backends/kernels/test_register_tile.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import sym

Block: TypeAlias = Any
"""A `tvm.tirx` block statement; TVM ships no types."""

NUM_ACCUMULATORS = 24
"""Vector registers for partial results; AVX-512 has 32, and operands need some."""

_MAX_ROWS = 7
"""Rows of a tile: 7 divides the extents of many convolutions, and 4 those of most products."""

_LANES = (16, 8, 4)
"""Elements of a vector step, the best first: one AVX-512 register of float32, two of AVX2, and less."""

_MAX_VECTORS = 16
"""Vectors along one row of a tile, where rows are few."""


@dataclass(frozen=True, slots=True)
class Access:
    """How one operand is read as an axis advances by one.

    Attributes:
        read: which of the block's reads it is.
        position: which of the operand's axes advances, or None where none or several do.
        step: by how much; 0 where the operand does not hold the axis.
        is_last: whether the axis that advances is the operand's last.
    """

    read: int
    position: int | None
    step: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class ResultAxis:
    """One axis of the results: its loop, how each operand is read along it, and where the result holds it."""

    loop: Any
    extent: int
    position: int | None
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A tile of results; axes are named by position.

    Attributes:
        vector: the axis that vectors lie along.
        lanes: elements of a vector step.
        vector_tile: elements of the tile along it, a multiple of `lanes`.
        result_position: which of the result's axes it is.
        rows: the axis of the tile's rows, or None for a single row.
        row_tile: rows of the tile.
        packed_read: the read to pack so that the vector's axis comes last, or None.
        packed_position: where that operand holds the axis.
        shared: axes that the packed operand holds too: a panel belongs to one point of them.
    """

    vector: int
    lanes: int
    vector_tile: int
    result_position: int
    rows: int | None
    row_tile: int
    packed_read: int | None = None
    packed_position: int = 0
    shared: tuple[int, ...] = ()


def result_axes(schedule: Any, block: Any) -> tuple[ResultAxis, ...]:
    """Return the axes of what a block computes, in order of its loops; none where a binding is not plain."""
    statement = schedule.get(block)
    loads = _operand_loads(statement)
    loops = schedule.get_loops(block)
    if len(loops) != len(statement.iter_vars):
        return ()
    return tuple(
        ResultAxis(
            loop=loop,
            extent=int(axis.dom.extent),
            position=_position(statement.body, axis.var),
            accesses=tuple(_access(load, read, axis.var) for read, load in loads),
        )
        for loop, axis in zip(loops, statement.iter_vars, strict=True)
        if axis.iter_type == tvm.tirx.IterVar.DataPar
    )


def choose_tile(axes: Sequence[ResultAxis], *, packs: bool) -> Tile | None:
    """Return the tile with the widest vectors; of equals, one without packing, then the last axis.

    Args:
        axes: the axes of the results.
        packs: whether the operands' elements are read often enough to pay for packing.
    """
    choices = []
    for index, axis in enumerate(axes):
        lanes = lanes_of(axis.extent)
        to_pack = [access for access in axis.accesses if access.step and not is_contiguous(access)]
        if not lanes or axis.position is None or len(to_pack) > int(packs):
            continue
        if not any(access.step for access in axis.accesses):
            continue
        if any(access.step != 1 or access.position is None for access in to_pack):
            continue
        choices.append((lanes, -len(to_pack), index))
    if not choices:
        return None
    lanes, packing, vector = max(choices)
    return _tile(axes, vector, lanes, packs_operand=packing < 0)


def _tile(axes: Sequence[ResultAxis], vector: int, lanes: int, *, packs_operand: bool) -> Tile:
    rows = _row_axis(axes, vector)
    row_tile = largest_divisor(axes[rows].extent, _MAX_ROWS) if rows is not None else 1
    most_vectors = min(_MAX_VECTORS, NUM_ACCUMULATORS // row_tile)
    result_position = axes[vector].position
    assert result_position is not None, "only an axis that the result holds is chosen"
    tile = Tile(
        vector=vector,
        lanes=lanes,
        vector_tile=lanes * largest_divisor(axes[vector].extent // lanes, most_vectors),
        result_position=result_position,
        rows=rows,
        row_tile=row_tile,
    )
    return _packing(tile, axes) if packs_operand else tile


def _packing(tile: Tile, axes: Sequence[ResultAxis]) -> Tile:
    """Return the tile together with the operand that it packs."""
    accesses = axes[tile.vector].accesses
    packed = next(access for access in accesses if access.step and not is_contiguous(access))
    assert packed.position is not None, "only an operand with one advancing axis is packed"
    shared = tuple(
        index
        for index, axis in enumerate(axes)
        if index != tile.vector
        and any(access.read == packed.read and access.step for access in axis.accesses)
    )
    return replace(tile, packed_read=packed.read, packed_position=packed.position, shared=shared)


def _row_axis(axes: Sequence[ResultAxis], vector: int) -> int | None:
    """Return the last axis along which the operand that vectors are loaded from stays the same."""
    vector_reads = {access.read for access in axes[vector].accesses if access.step}
    for index in reversed(range(len(axes))):
        if index != vector and axes[index].extent > 1:
            moved = {access.read for access in axes[index].accesses if access.step}
            if moved and not moved & vector_reads:
                return index
    return None


def lanes_of(extent: int) -> int:
    """Return the widest vector that divides the extent; 0 where none does."""
    return next((lanes for lanes in _LANES if extent % lanes == 0), 0)


def largest_divisor(extent: int, limit: int) -> int:
    """Return the largest divisor of the extent up to the limit."""
    return next(size for size in range(min(extent, limit), 0, -1) if extent % size == 0)


def is_contiguous(access: Access) -> bool:
    """Say whether neighbours along the axis are neighbours in the operand's memory."""
    return access.is_last and access.step == 1


def _position(store: Any, variable: Any) -> int | None:
    """Return which axis of its result a store indexes by the bare variable."""
    if not isinstance(store, tvm.tirx.BufferStore):
        return None
    found = [position for position, index in enumerate(store.indices) if index.same_as(variable)]
    return found[0] if found else None


def _operand_loads(statement: Block) -> list[tuple[int, Any]]:
    """Return what the block loads beside its own result, each with its place among the block's reads."""
    loads: list[Any] = []
    tvm_ffi.structural_walk(statement.body, (tvm.ir.TensorLoad, loads.append))
    result = statement.writes[0].source
    found = []
    for load in loads:
        if load.source.same_as(result):
            continue
        reads = [index for index, region in enumerate(statement.reads) if region.source.same_as(load.source)]
        found.append((reads[0], load))
    return found


def _access(load: Any, read: int, variable: Any) -> Access:
    analyzer = sym.Analyzer()
    steps = [analyzer.simplify(_advanced(index, variable) - index) for index in load.indices]
    moving = [position for position, step in enumerate(steps) if not _is_number(step, 0)]
    if not moving:
        return Access(read, None, 0, False)
    last = moving[-1]
    if len(moving) > 1 or not hasattr(steps[last], "value"):
        return Access(read, None, 2, False)
    return Access(read, last, int(steps[last].value), last == len(steps) - 1)


def _advanced(index: Any, variable: Any) -> Any:
    """Return the index with the variable one larger."""
    return tvm_ffi.structural_map(
        index, (tvm.tirx.Var, lambda found: found + 1 if found.same_as(variable) else found)
    )


def _is_number(expression: Any, number: int) -> bool:
    return hasattr(expression, "value") and int(expression.value) == number
