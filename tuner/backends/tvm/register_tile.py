"""Register tiles of a block, from how its loops read their operands.

The choice of the tile is `cost_model.register_tile`, from extents and strides alone; here these are read off
a block, and the tile names its loops and the operand to pack. Checked in
tests/tuner/backends/tvm/test_register_tile.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import sym

from cost_model import register_tile
from cost_model.register_tile import OperandStep, TileAxis
from tuner.targets.vector_registers import WIDE

Block: TypeAlias = Any
"""A `tvm.tirx` block statement; TVM ships no types."""


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
    """Return the axes of what a block computes, in order of its loops.

    None where a binding is not plain, or where it computes several results at once, such as a largest value
    and its place.
    """
    statement = schedule.get(block)
    loops = schedule.get_loops(block)
    if len(loops) != len(statement.iter_vars) or len(statement.writes) != 1:
        return ()
    loads = _operand_loads(statement)
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


def choose_tile(axes: Sequence[ResultAxis], *, packs: bool, registers: int = WIDE) -> Tile | None:
    """Return the tile with the widest vectors; of equals, one without packing, then the last axis.

    Args:
        packs: whether the operands' elements are read often enough to pay for packing.
        registers: vectors of 16 that all registers hold (`tuner.targets.vector_registers`).
    """
    chosen = register_tile.choose_tile(
        [_as_tile_axis(axis) for axis in axes], packs=packs, registers=registers
    )
    if chosen is None:
        return None
    result_position = axes[chosen.vector_axis].position
    assert result_position is not None, "only an axis that the result holds is chosen"
    tile = Tile(
        vector=chosen.vector_axis,
        lanes=chosen.lanes,
        vector_tile=chosen.lanes * chosen.vectors,
        result_position=result_position,
        rows=chosen.row_axis,
        row_tile=chosen.rows,
    )
    return _packing(tile, axes) if chosen.packs else tile


def choose_padding(
    axes: Sequence[ResultAxis], operands: Sequence[int], *, packs: bool, registers: int = WIDE
) -> tuple[int, ...] | None:
    """Return the extents to pad the axes to, as `cost_model.register_tile` has it.

    Args:
        operands: elements of each of the block's reads.
        packs: as in `choose_tile`.
        registers: as in `choose_tile`.
    """
    if any(axis.position is None for axis in axes):
        return None
    return register_tile.choose_padding(
        [_as_tile_axis(axis) for axis in axes], operands, packs=packs, registers=registers
    )


def _as_tile_axis(axis: ResultAxis) -> TileAxis:
    """Return what the choice asks of an axis; an operand whose position is unknown cannot be packed."""
    steps = (
        OperandStep(access.read, access.step if access.position is not None else 0, is_contiguous(access))
        for access in axis.accesses
        if access.step
    )
    return TileAxis(axis.extent, tuple(steps), takes_vectors=axis.position is not None)


def _packing(tile: Tile, axes: Sequence[ResultAxis]) -> Tile:
    """Return the tile together with the operand that it packs."""
    accesses = axes[tile.vector].accesses
    packed = next(access for access in accesses if access.step and not is_contiguous(access))
    assert packed.position is not None, "only an operand with one advancing axis is packed"
    packing = replace(tile, packed_read=packed.read, packed_position=packed.position)
    return sharing(packing, axes, packed.read)


def sharing(tile: Tile, axes: Sequence[ResultAxis], read: int) -> Tile:
    """Return the tile with the axes that one read holds beside the vector's: its panels belong to those."""
    shared = tuple(
        index
        for index, axis in enumerate(axes)
        if index != tile.vector and any(access.read == read and access.step for access in axis.accesses)
    )
    return replace(tile, shared=shared)


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
