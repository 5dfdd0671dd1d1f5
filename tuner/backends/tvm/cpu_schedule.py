"""Schedules for CPU kernels that cost no tuning: inline, fuse, parallelise, vectorise, tile matrix products.

A kernel is a list of loop nests. Cheap producers are first inlined into their only consumer; then each nest
that is left gets the first rule that applies: matrix products and convolutions are tiled so that a block of
the result stays in vector registers, products whose extents no good tile divides with zeros beyond them, row
reductions keep a vector of partial results, everything else is parallel over its outer loops and a vector
along its innermost. A rule that fails costs its nest a warning, and the nest keeps its loops. Cache sizes and
exact vector units are left out: that is what tuning is for.
Checked in tests/tuner/backends/tvm/test_cpu_schedule.py and test_schedule.py.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError

from cost_model.register_tile import largest_divisor
from tuner.backends.tvm.index_periods import has_branches, index_periods
from tuner.backends.tvm.register_tile import (
    ResultAxis,
    Tile,
    choose_padding,
    choose_tile,
    is_contiguous,
    result_axes,
    sharing,
)
from tuner.graph.relax_types import PrimFunc
from tuner.targets.vector_registers import WIDE

logger = logging.getLogger(__name__)

Schedule: TypeAlias = Any
"""A `tvm.s_tir.Schedule`."""

BlockHandle: TypeAlias = Any
"""What a schedule calls one of its blocks."""

_VECTOR = 16
"""Elements of a vector step: one AVX-512 register of float32, two of AVX2."""

_MIN_LANES = 4
"""Elements below which a vector step is not worth its shuffles."""

_MIN_ONCE_ROWS = 7
_ONCE_STEPS = 4
"""Steps of a reduction that are unrolled where a tile holds all rows of a product, and so many at least.

The other operand is then read from memory once, and loads of several steps are under way together: 13 rows of
768 by 768 took 154 µs for 208, and 7 rows of 512 by 768 took 72 to 82 for 93 to 102, on a loaded Xeon core.
"""

_MIN_PARALLEL_POINTS = 1 << 14
"""Points of a loop nest below which waking other threads costs more (some 5 us) than they save."""


def schedule_for_cpu(kernel: PrimFunc, registers: int = WIDE) -> PrimFunc:
    """Return the kernel with a schedule; nests to which no rule applies keep their loops.

    Args:
        kernel: without a schedule.
        registers: vectors of 16 that all registers hold (`tuner.targets.vector_registers`).
    """
    schedule = cpu_schedule_of(kernel, registers)
    if schedule is None:
        return kernel
    return (
        schedule.mod["main"].with_attrs(dict(kernel.attrs.items())) if kernel.attrs else schedule.mod["main"]
    )


def cpu_schedule_of(kernel: PrimFunc, registers: int = WIDE) -> Schedule | None:
    """Return the schedule of a kernel with the trace of what made it; None where its loops stay."""
    schedule = s_tir.Schedule(kernel)
    try:
        _inline_producers(schedule)
        for name in _nest_names(schedule):
            if name in _nest_names(schedule):  # an epilogue goes into the nest before it
                schedule = _schedule_nest(schedule, name, registers)
    except ScheduleError as error:
        logger.debug("kernel keeps its loops: %s", error)
        return None
    except Exception as error:  # a fault of what stands before the rules
        warn_of_rule(schedule_for_cpu.__name__, f"{type(error).__name__}: {error}")
        return None
    return schedule


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
        if not _is_injective(schedule, consumers[0]) and _has_periods_in_branches(
            schedule, (block, consumers[0])
        ):
            continue
        try:
            schedule.compute_inline(block)
        except ScheduleError as error:
            logger.debug("not inlined: %s", error)


def _schedule_nest(schedule: Schedule, name: str, registers: int) -> Schedule:
    """Return the schedule after the first rule that applies to the nest."""
    for rule in (
        functools.partial(_tile_padded_product, registers=registers),
        functools.partial(_tile_product, registers=registers),
        _vectorise_row_reduction,
        _vectorise_column_reduction,
        _split_at_periods,
        _tile_transposition,
        _vectorise_injective,
    ):
        attempt = schedule.copy()
        block = attempt.get_sblock(name)
        try:
            if rule(attempt, block):
                return attempt
        except (ScheduleError, tvm.error.InternalError) as error:
            # A few primitives fail by a check of TVM's own where they ought to say that they do not apply.
            logger.debug("%s does not apply to %s: %s", _name_of(rule), name, error)
        except Exception as error:  # a fault of the rule; the nest's own loops are slower, never wrong
            warn_of_rule(_name_of(rule), f"{type(error).__name__}: {error}")
    return schedule


def _name_of(rule: Rule) -> str:
    return str((rule.func if isinstance(rule, functools.partial) else rule).__name__)


@functools.cache
def warn_of_rule(rule: str, fault: str) -> None:
    """Say once that a rule fails, however many kernels it fails on."""
    logger.warning(
        "the schedule rule %s failed (%s), so that its kernels keep plain loops, which are slower and never "
        "wrong; please report the model",
        rule,
        fault.strip().partition("\n")[0],
    )


def _tile_product(schedule: Schedule, block: BlockHandle, *, registers: int) -> bool:
    """Keep a tile of results in vector registers while the reduction runs over it.

    The vector lies along the axis that fills vectors best; an operand that holds this axis elsewhere than
    last is packed, a panel at a time, where its elements are used often enough.
    """
    kinds = _axis_kinds(schedule, block)
    if "R" not in kinds or "S" not in kinds:
        return False
    axes = result_axes(schedule, block)
    choice = choose_tile(axes, packs=_reuses_inputs(schedule, block), registers=registers)
    if choice is None:
        return False
    packed = _pack(schedule, block, choice)
    results = schedule.cache_write(block, 0, "local")
    schedule.transform_layout(block, ("write", 0), _move_last(choice.result_position, len(axes)))
    _fuse_epilogue(schedule, results)
    _compute_in_tiles(schedule, block, axes, choice, results=results, panel=packed)
    _vectorise_innermost(schedule, results)
    return True


def _tile_padded_product(schedule: Schedule, block: BlockHandle, *, registers: int) -> bool:
    """Tile a product some of whose extents no good tile divides, such as 49 columns or 197 rows.

    Its operands are copied with zeros beyond their ends, that of the vectors a panel at a time; the results
    stay in registers, and only those that are no padding are copied out. Not for convolutions: what their
    images are read by is no plain loop.
    """
    kinds = _axis_kinds(schedule, block)
    if "S" not in kinds or kinds.count("R") != 1:
        return False
    axes = result_axes(schedule, block)
    reads = schedule.get(block).reads
    operands = [math.prod(int(extent) for extent in region.source.shape) for region in reads]
    extents = choose_padding(axes, operands, packs=_reuses_inputs(schedule, block), registers=registers)
    if extents is None:
        return False
    wanted = dict(zip((_variable(schedule, axis.loop) for axis in axes), extents, strict=True))
    factors = [
        wanted.get(_variable(schedule, loop), _extent(schedule, loop)) for loop in schedule.get_loops(block)
    ]
    unpadded = _producer_names(schedule, block)
    schedule.pad_einsum(block, factors)
    paddings = [
        schedule.get_sblock(name) for name in _producer_names(schedule, block) if name not in unpadded
    ]
    (crop,) = schedule.get_consumers(block)
    results = _inline_crop(schedule, crop)
    axes = result_axes(schedule, block)
    choice = choose_tile(axes, packs=True, registers=registers)
    if choice is None:
        return False
    panel = _pack(schedule, block, choice)
    if panel is not None:
        paddings = _inline_padding(schedule, panel, paddings)
    else:
        read = next(access.read for access in axes[choice.vector].accesses if access.step)
        source = schedule.get(block).reads[read].source
        panel = next((each for each in paddings if _writes(schedule, each, source)), None)
        if panel is not None:
            choice = sharing(choice, axes, read)
            paddings = [each for each in paddings if not _writes(schedule, each, source)]
    schedule.transform_layout(block, ("write", 0), _move_last(choice.result_position, len(axes)))
    schedule.set_scope(block, 0, "local")
    _compute_in_tiles(schedule, block, axes, choice, results=results, panel=panel)
    # A vector that is only partly a result would be taken apart; the compiler has masks for it.
    if axes[choice.vector].extent == _extents_of(schedule, results)[-1]:
        _vectorise_innermost(schedule, results)
    for padding in paddings:
        _parallelise(schedule, padding, schedule.get_loops(padding)[:-1])
    return True


def _variable(schedule: Schedule, loop: Any) -> str:
    return str(schedule.get(loop).loop_var)


def _producer_names(schedule: Schedule, block: BlockHandle) -> list[str]:
    return [str(schedule.get(each).name_hint) for each in schedule.get_producers(block)]


def _writes(schedule: Schedule, block: BlockHandle, buffer: Any) -> bool:
    return bool(schedule.get(block).writes[0].source.same_as(buffer))


def _extents_of(schedule: Schedule, block: BlockHandle) -> list[int]:
    return [int(axis.dom.extent) for axis in schedule.get(block).iter_vars]


def _inline_crop(schedule: Schedule, crop: BlockHandle) -> BlockHandle:
    """Return the block that copies results out of their padding: what follows, where that is elementwise."""
    consumers = schedule.get_consumers(crop)
    if len(consumers) != 1 or not _is_injective(schedule, consumers[0]):
        return crop
    if _extents_of(schedule, consumers[0]) != _extents_of(schedule, crop):
        return crop
    schedule.compute_inline(crop)
    return consumers[0]


def _inline_padding(
    schedule: Schedule, panel: BlockHandle, paddings: Sequence[BlockHandle]
) -> list[BlockHandle]:
    """Let the panel pad the operand that it packs; return the other paddings."""
    rest = []
    for padding in paddings:
        if str(schedule.get(padding).name_hint) in _producer_names(schedule, panel):
            schedule.compute_inline(padding)
        else:
            rest.append(padding)
    return rest


def _compute_in_tiles(
    schedule: Schedule,
    block: BlockHandle,
    axes: Sequence[ResultAxis],
    choice: Tile,
    *,
    results: BlockHandle,
    panel: BlockHandle | None,
) -> None:
    """Split the loops of a product into those of its tile and those over tiles, and share out the latter.

    Args:
        results: the block that copies a tile's results out.
        panel: the block that packs an operand, if one does.
    """
    kinds = _axis_kinds(schedule, block)
    loops = schedule.get_loops(block)
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    outer_vector, inner_vector = schedule.split(axes[choice.vector].loop, [None, choice.vector_tile])
    middle, lanes = schedule.split(inner_vector, [None, choice.lanes])
    outer = [axis.loop for index, axis in enumerate(axes) if index not in (choice.vector, choice.rows)]
    outer_rows, inner_rows = [], []
    if choice.rows is not None:
        rows = schedule.split(axes[choice.rows].loop, [None, choice.row_tile])
        outer_rows, inner_rows = [rows[0]], [rows[1]]
    unrolled = []
    if panel is None and _is_read_once(axes, choice) and _extent(schedule, reduction[-1]) % _ONCE_STEPS == 0:
        steps, inner_steps = schedule.split(reduction[-1], [None, _ONCE_STEPS])
        reduction, unrolled = [*reduction[:-1], steps], [inner_steps]
    before = [axis.loop for index, axis in enumerate(axes) if axis.loop in outer and index in choice.shared]
    after = [loop for loop in outer if loop not in before]
    inner = [*unrolled, *inner_rows, middle]
    schedule.reorder(*before, outer_vector, *after, *outer_rows, *reduction, *inner, lanes)
    for loop in inner:
        schedule.unroll(loop)
    schedule.vectorize(lanes)
    innermost = [*before, outer_vector, *after, *outer_rows][-1]
    schedule.reverse_compute_at(results, innermost)
    if panel is not None:
        schedule.compute_at(panel, outer_vector)
        _parallelise(schedule, block, [*before, outer_vector])
    else:
        _parallelise(schedule, block, [*before, outer_vector, *after])
    schedule.decompose_reduction(block, reduction[0])


def _is_read_once(axes: Sequence[ResultAxis], choice: Tile) -> bool:
    """Say whether a tile holds all rows, so that what the vectors are of is read for no other tile."""
    return (
        choice.rows is not None
        and choice.row_tile >= _MIN_ONCE_ROWS
        and axes[choice.rows].extent == choice.row_tile
    )


def _pack(schedule: Schedule, block: BlockHandle, choice: Tile) -> BlockHandle | None:
    """Copy the operand that does not hold the vector's axis last into a local panel that does."""
    if choice.packed_read is None:
        return None
    panel = schedule.cache_read(block, choice.packed_read, "local")
    move_last = _move_last(choice.packed_position, len(schedule.get(panel).iter_vars))
    schedule.transform_layout(block, ("read", choice.packed_read), move_last)
    return panel


def _move_last(position: int, rank: int) -> tirx.IndexMap:
    """Return the layout that holds one axis last."""

    def moved(*indices: Any) -> list[Any]:
        return [*indices[:position], *indices[position + 1 :], indices[position]]

    return tirx.IndexMap.from_func(moved, ndim=rank)


def _fuse_epilogue(schedule: Schedule, results: BlockHandle) -> None:
    """Let the copy out of the registers compute what follows the product, where that is elementwise.

    What reads only some of the results, such as a slice, stays a nest of its own: inlined, it is guarded by a
    predicate, which TVM drops when the copy is moved into the tile's loops. The kernel would then write what
    the slice leaves out, beyond the rows it belongs to and beyond the end of the result.
    """
    for consumer in schedule.get_consumers(results):
        if _num_points(schedule, consumer) != _num_points(schedule, results):
            continue
        attempt = schedule.copy()
        try:
            attempt.reverse_compute_inline(consumer)
        except (ScheduleError, tvm.error.InternalError) as error:
            logger.debug("epilogue stays a nest of its own: %s", error)
        else:
            schedule.reverse_compute_inline(consumer)


def _vectorise_row_reduction(schedule: Schedule, block: BlockHandle) -> bool:
    """Keep a vector of partial results along the innermost reduced axis."""
    kinds = _axis_kinds(schedule, block)
    if not kinds or kinds[-1] != "R":
        return False
    loops = schedule.get_loops(block)
    lanes = largest_divisor(_extent(schedule, loops[-1]), _VECTOR)
    if lanes < 4 or _extent(schedule, loops[-1]) <= lanes:
        return False
    _, lane = schedule.split(loops[-1], [None, lanes])
    partial = schedule.rfactor(lane, factor_axis=-1 if kinds.count("S") else 0)
    kept = kinds.count("S")
    for nest in (partial, block):
        _parallelise(schedule, nest, schedule.get_loops(nest)[:kept])
    partial_loops = schedule.get_loops(partial)
    vector = partial_loops[-1]
    schedule.vectorize(vector)
    return True


def _vectorise_column_reduction(schedule: Schedule, block: BlockHandle) -> bool:
    """Reduce over outer axes with a vector of neighbouring results.

    Not where a reduction has several results, as the place of a maximum and its value: in a vector, places
    came out wrong for windows that overlap (the backward of a pool).
    """
    kinds = _axis_kinds(schedule, block)
    if "R" not in kinds or "S" not in kinds or len(schedule.get(block).writes) > 1:
        return False
    loops = schedule.get_loops(block)
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    outer, lanes = schedule.split(
        spatial[-1], [None, largest_divisor(_extent(schedule, spatial[-1]), _VECTOR)]
    )
    schedule.reorder(*spatial[:-1], outer, *reduction, lanes)
    schedule.vectorize(lanes)
    _parallelise(schedule, block, [*spatial[:-1], outer])
    schedule.decompose_reduction(block, reduction[0])
    return True


def _split_at_periods(schedule: Schedule, block: BlockHandle) -> bool:
    """Split the innermost loop where indices repeat, if there are branches too: see `index_periods`."""
    if not _is_injective(schedule, block) or not _has_periods_in_branches(schedule, (block,)):
        return False
    loops = schedule.get_loops(block)
    if not loops:
        return False
    rest = loops[-1]
    for period in reversed(index_periods(schedule.get(block))):
        inner = math.gcd(period, _extent(schedule, rest))
        if 1 < inner < _extent(schedule, rest):
            _, rest = schedule.split(rest, [None, inner])
    return _vectorise_injective(schedule, block)


def _has_periods_in_branches(schedule: Schedule, blocks: Sequence[BlockHandle]) -> bool:
    """Say whether blocks that become one have branches, and indices that repeat along their loops."""
    found = [schedule.get(block) for block in blocks]
    return any(map(has_branches, found)) and any(map(index_periods, found))


def _tile_transposition(schedule: Schedule, block: BlockHandle) -> bool:
    """Move square tiles, where an operand is contiguous along another axis than the result."""
    if not _is_injective(schedule, block):
        return False
    *outer, last = result_axes(schedule, block) or (None,)
    if last is None or not any(access.step and not access.is_last for access in last.accesses):
        return False
    across = next((axis for axis in outer if any(is_contiguous(access) for access in axis.accesses)), None)
    if across is None:
        return False
    loops = [across.loop, last.loop]
    sizes = [largest_divisor(axis.extent, _VECTOR) for axis in (across, last)]
    if min(sizes) < _MIN_LANES:
        return False
    tiles = [schedule.split(loop, [None, size]) for loop, size in zip(loops, sizes, strict=True)]
    rest = [axis.loop for axis in outer if axis is not across]
    schedule.reorder(*rest, tiles[0][0], tiles[1][0], tiles[0][1], tiles[1][1])
    schedule.vectorize(tiles[1][1])
    _parallelise(schedule, block, [*rest, tiles[0][0]])
    return True


def _vectorise_injective(schedule: Schedule, block: BlockHandle) -> bool:
    if not _is_injective(schedule, block):
        return False
    num_inner = _vectorise_innermost(schedule, block)
    loops = schedule.get_loops(block)
    _parallelise(schedule, block, loops[: len(loops) - num_inner])
    return True


def _vectorise_innermost(schedule: Schedule, block: BlockHandle) -> int:
    """Make vectors of the innermost loop; return how many loops, innermost first, must stay as they are.

    A loop that no vector divides is left to the compiler, which makes vectors of its simple cases and a rest.
    """
    loops = schedule.get_loops(block)
    if not loops:
        return 0
    extent = _extent(schedule, loops[-1])
    lanes = largest_divisor(extent, _VECTOR)
    if lanes < _MIN_LANES:
        return int(extent >= _VECTOR)
    if lanes == extent:
        schedule.vectorize(loops[-1])
        return 1
    _, lane = schedule.split(loops[-1], [None, lanes])
    schedule.vectorize(lane)
    return 1


def _parallelise(schedule: Schedule, block: BlockHandle, loops: Sequence[Any]) -> None:
    """Fuse the loops and share them out among threads, where there is enough to do."""
    if not loops or _num_points(schedule, block) < _MIN_PARALLEL_POINTS:
        return
    fused = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    if _extent(schedule, fused) > 1:
        schedule.parallel(fused)


def _extent(schedule: Schedule, loop: Any) -> int:
    """Return how often a loop runs; every shape is known when a kernel is scheduled."""
    return int(schedule.get(loop).extent)


def _axis_kinds(schedule: Schedule, block: BlockHandle) -> str:
    """Return one letter per loop: S spatial, R reduction, O anything else."""
    letters = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
    return "".join(letters.get(axis.iter_type, "O") for axis in schedule.get(block).iter_vars)


def _is_injective(schedule: Schedule, block: BlockHandle) -> bool:
    return set(_axis_kinds(schedule, block)) <= {"S"}


def _reuses_inputs(schedule: Schedule, block: BlockHandle) -> bool:
    """Say whether the nest is a sum of products whose operands are each read many times."""
    kinds = _axis_kinds(schedule, block)
    if "R" not in kinds or "S" not in kinds:
        return False
    reads = schedule.get(block).reads
    operands = [math.prod(int(extent) for extent in region.source.shape) for region in reads]
    return len(operands) >= 2 and _num_points(schedule, block) > 4 * max(operands)


def _num_points(schedule: Schedule, block: BlockHandle) -> int:
    """Return how often the nest's block runs."""
    return math.prod(int(axis.dom.extent) for axis in schedule.get(block).iter_vars)


def _only_moves(schedule: Schedule, block: BlockHandle) -> bool:
    """Say whether the nest copies elements without computing on them."""
    body = schedule.get(block).body
    return isinstance(body, tirx.BufferStore) and isinstance(body.value, tvm.ir.TensorLoad)


Rule: TypeAlias = Callable[[Schedule, BlockHandle], bool]
"""Schedules a nest in place; False, or a `ScheduleError`, where it does not apply."""
