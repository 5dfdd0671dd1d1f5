"""Schedules for CPU kernels that cost no tuning: inline, fuse, parallelise, vectorise, tile matrix products.

A kernel is a list of loop nests. Cheap producers are first inlined into their only consumer; then each nest
that is left gets the first rule that applies: matrix products and convolutions are tiled so that a block of
the result stays in vector registers, row reductions keep a vector of partial results, everything else is
parallel over its outer loops and a vector along its innermost. Cache sizes and exact vector units are left
out: that is what tuning is for. Checked in tests/tuner/backends/test_cpu_schedule.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError

logger = logging.getLogger(__name__)

PrimFunc: TypeAlias = Any
"""A `tvm.tirx.PrimFunc`; TVM ships no types."""

Schedule: TypeAlias = Any
"""A `tvm.s_tir.Schedule`."""

BlockHandle: TypeAlias = Any
"""What a schedule calls one of its blocks."""

_VECTOR = 16
"""Elements of a vector step: one AVX-512 register of float32, two of AVX2."""

_TILE_COLUMNS = 64
"""Columns of a register tile: with `_TILE_ROWS` 24 accumulators of 16 elements; AVX-512 has 32 registers."""

_TILE_ROWS = 6

_MIN_PARALLEL_ELEMENTS = 1 << 14
"""Results below which starting other threads costs more (some 5 us) than they save."""


def schedule_for_cpu(kernel: PrimFunc) -> PrimFunc:
    """Return the kernel with a schedule; nests to which no rule applies keep their loops."""
    schedule = s_tir.Schedule(kernel)
    try:
        _inline_producers(schedule)
        for name in _nest_names(schedule):
            schedule = _schedule_nest(schedule, name)
    except ScheduleError as error:
        logger.debug("kernel keeps its loops: %s", error)
        return kernel
    return (
        schedule.mod["main"].with_attrs(dict(kernel.attrs.items())) if kernel.attrs else schedule.mod["main"]
    )


def _nests(schedule: Schedule) -> list[BlockHandle]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _nest_names(schedule: Schedule) -> list[str]:
    return [str(schedule.get(block).name_hint) for block in _nests(schedule)]


def _inline_producers(schedule: Schedule) -> None:
    """Inline nests that cost little into their only consumer, last ones first."""
    for block in reversed(_nests(schedule)):
        consumers = schedule.get_consumers(block)
        if len(consumers) != 1 or not _is_injective(schedule, block):
            continue
        if _reuses_inputs(schedule, consumers[0]) and not _only_moves(schedule, block):
            continue
        try:
            schedule.compute_inline(block)
        except ScheduleError as error:
            logger.debug("not inlined: %s", error)


def _schedule_nest(schedule: Schedule, name: str) -> Schedule:
    """Return the schedule after the first rule that applies to the nest."""
    for rule in (_tile_product, _vectorise_row_reduction, _vectorise_column_reduction, _vectorise_injective):
        attempt = schedule.copy()
        block = attempt.get_sblock(name)
        try:
            if rule(attempt, block):
                return attempt
        except (ScheduleError, tvm.error.InternalError) as error:
            # A few primitives fail by a check of TVM's own where they ought to say that they do not apply.
            logger.debug("%s does not apply to %s: %s", rule.__name__, name, error)
    return schedule


def _tile_product(schedule: Schedule, block: BlockHandle) -> bool:
    """Tile a sum of products: a block of results in registers, the row of the second operand packed."""
    kinds = _axis_kinds(schedule, block)
    if not _reuses_inputs(schedule, block) or kinds[-1] != "R" or kinds.count("S") < 2:
        return False
    loops = schedule.get_loops(block)
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    accumulator = schedule.cache_write(block, 0, "local")
    rows, columns = spatial[-2], spatial[-1]
    row_tile = _divisor(_extent(schedule, rows), _TILE_ROWS)
    column_tile = _divisor(_extent(schedule, columns), _TILE_COLUMNS)
    if column_tile % 4:
        return False
    outer_rows, inner_rows = schedule.split(rows, [None, row_tile])
    outer_columns, inner_columns = schedule.split(columns, [None, column_tile])
    middle, lanes = schedule.split(inner_columns, [None, _divisor(column_tile, _VECTOR)])
    schedule.reorder(*spatial[:-2], outer_columns, outer_rows, *reduction, inner_rows, middle, lanes)
    schedule.unroll(inner_rows)
    schedule.unroll(middle)
    schedule.vectorize(lanes)
    schedule.reverse_compute_at(accumulator, outer_rows)
    _vectorise_innermost(schedule, accumulator)
    _parallelise(schedule, [*spatial[:-2], outer_columns])
    schedule.decompose_reduction(block, reduction[0])
    return True


def _vectorise_row_reduction(schedule: Schedule, block: BlockHandle) -> bool:
    """Keep a vector of partial results along the innermost reduced axis."""
    kinds = _axis_kinds(schedule, block)
    if not kinds or kinds[-1] != "R":
        return False
    loops = schedule.get_loops(block)
    lanes = _divisor(_extent(schedule, loops[-1]), _VECTOR)
    if lanes < 4 or _extent(schedule, loops[-1]) <= lanes:
        return False
    _, lane = schedule.split(loops[-1], [None, lanes])
    partial = schedule.rfactor(lane, factor_axis=-1 if kinds.count("S") else 0)
    kept = kinds.count("S")
    for nest in (partial, block):
        _parallelise(schedule, schedule.get_loops(nest)[:kept])
    partial_loops = schedule.get_loops(partial)
    vector = partial_loops[-1]
    schedule.vectorize(vector)
    return True


def _vectorise_column_reduction(schedule: Schedule, block: BlockHandle) -> bool:
    """Reduce over outer axes with a vector of neighbouring results."""
    kinds = _axis_kinds(schedule, block)
    if "R" not in kinds or "S" not in kinds:
        return False
    loops = schedule.get_loops(block)
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    outer, lanes = schedule.split(spatial[-1], [None, _divisor(_extent(schedule, spatial[-1]), _VECTOR)])
    schedule.reorder(*spatial[:-1], outer, *reduction, lanes)
    schedule.vectorize(lanes)
    _parallelise(schedule, [*spatial[:-1], outer])
    schedule.decompose_reduction(block, reduction[0])
    return True


def _vectorise_injective(schedule: Schedule, block: BlockHandle) -> bool:
    if not _is_injective(schedule, block):
        return False
    lanes_of = _vectorise_innermost(schedule, block)
    loops = schedule.get_loops(block)
    _parallelise(schedule, loops[: len(loops) - lanes_of])
    return True


def _vectorise_innermost(schedule: Schedule, block: BlockHandle) -> int:
    """Make vectors of the innermost loop; return how many loops, innermost first, must stay as they are."""
    loops = schedule.get_loops(block)
    if not loops:
        return 0
    extent = _extent(schedule, loops[-1])
    lanes = _divisor(extent, _VECTOR)
    if lanes < 2:
        return 0
    if lanes == extent:
        schedule.vectorize(loops[-1])
        return 1
    _, lane = schedule.split(loops[-1], [None, lanes])
    schedule.vectorize(lane)
    return 1


def _parallelise(schedule: Schedule, loops: Sequence[Any]) -> None:
    """Fuse the loops and share them out among threads, where there is enough to do."""
    if not loops:
        return
    fused = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    if _extent(schedule, fused) > 1:
        schedule.parallel(fused)


def _extent(schedule: Schedule, loop: Any) -> int:
    """Return how often a loop runs; every shape is known when a kernel is scheduled."""
    return int(schedule.get(loop).extent)


def _divisor(extent: int, limit: int) -> int:
    """Return the largest divisor of the extent up to the limit: no tile is left over."""
    return next(size for size in range(min(extent, limit), 0, -1) if extent % size == 0)


def _axis_kinds(schedule: Schedule, block: BlockHandle) -> str:
    """Return one letter a loop: S spatial, R reduction, O anything else."""
    letters = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
    return "".join(letters.get(axis.iter_type, "O") for axis in schedule.get(block).iter_vars)


def _is_injective(schedule: Schedule, block: BlockHandle) -> bool:
    return set(_axis_kinds(schedule, block)) <= {"S"}


def _reuses_inputs(schedule: Schedule, block: BlockHandle) -> bool:
    """Say whether the nest is a sum of products whose operands are each read many times."""
    kinds = _axis_kinds(schedule, block)
    statement = schedule.get(block)
    if "R" not in kinds or "S" not in kinds:
        return False
    points = math.prod(int(axis.dom.extent) for axis in statement.iter_vars)
    operands = [math.prod(int(extent) for extent in region.source.shape) for region in statement.reads]
    return len(operands) >= 2 and points > 4 * max(operands)


def _only_moves(schedule: Schedule, block: BlockHandle) -> bool:
    """Say whether the nest copies elements without computing on them."""
    body = schedule.get(block).body
    return isinstance(body, tirx.BufferStore) and isinstance(body.value, tvm.ir.TensorLoad)


Rule: TypeAlias = Callable[[Schedule, BlockHandle], bool]
"""Schedules a nest in place; False, or a `ScheduleError`, where it does not apply."""
