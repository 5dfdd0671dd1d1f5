"""Attention of several heads as one TVM kernel that costs no tuning.

Queries, keys and values are read as products leave them, and results written as the next one reads them: all
heads of a position lie in one row, and no tensor is cut into heads or put together again. For each head the
keys are turned once; then, a tile of queries at a time, scores, softmax and the sum of values follow each
other while they are in the cache. All scores of a tile are kept, so that the largest is known before the
first exponential. Checked in tests/tuner/backends/cpu/test_attention.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from tuner.backends.cpu.kernels.accumulators import AVX2, Sums, tile_vectors
from tuner.backends.cpu.kernels.memory import flat
from tuner.backends.cpu.kernels.packed_product import LANES
from tuner.backends.tvm.vector_math import vectorise_math
from tuner.graph.relax_types import PrimFunc

_ROWS = (6, 5, 4)
"""Queries of a tile. With more, the compiler keeps the exponential's constants in registers and partial sums
in memory, and the kernel takes twice as long."""

_AVX2_ROWS, _AVX2_KEYS = 3, 64
"""The same with AVX2, of more keys than these: 1.27 to 1.57 times as fast as four to six for 77 to 512
positions, 0.93 for 50 and 64."""

_LOWEST = -3e38
"""A score that nothing is given to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Where the heads of queries, keys or values lie.

    Attributes:
        operand: which of the operands holds them.
        stride: elements from one position to the next.
        offset: where the first head begins.
    """

    operand: int
    stride: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """softmax(scale · query keyᵀ + mask) value, for each head.

    Attributes:
        batch: how many sequences.
        heads: heads of each position.
        depth: features of a head, a multiple of `LANES`.
        queries: positions that ask.
        keys: positions that answer; at least `LANES`.
        scale: what scores are multiplied by.
        operands: shapes of what holds queries, keys and values; one tensor may hold all three.
        rows: of queries, keys and values in these.
        mask: shape of what is added to scores, which has at most their four axes; None for nothing.
        registers: vectors of `LANES` that all registers hold (`tuner.targets.vector_registers`).
    """

    batch: int
    heads: int
    depth: int
    queries: int
    keys: int
    scale: float
    operands: tuple[tuple[int, ...], ...]
    rows: tuple[Rows, Rows, Rows]
    mask: tuple[int, ...] | None
    registers: int = 32

    @property
    def tile_rows(self) -> int:
        """Queries of a tile: what divides them best."""
        if self.registers == AVX2 and self.keys > _AVX2_KEYS:
            return min(_AVX2_ROWS, self.queries)
        choices = [rows for rows in _ROWS if rows <= self.queries] or [self.queries]
        return min(choices, key=lambda rows: -(-self.queries // rows) * rows)

    @property
    def padded_keys(self) -> int:
        """Keys that fill vectors."""
        return -(-self.keys // LANES) * LANES

    @property
    def key_vectors(self) -> int:
        """Vectors of keys of a tile of scores."""
        return tile_vectors(min(2, self.keys // LANES), LANES, self.registers)

    @property
    def value_vectors(self) -> int:
        """Vectors of features of a tile of results."""
        return tile_vectors(2 if self.depth % (2 * LANES) == 0 else 1, LANES, self.registers)


def attention_kernel(shape: AttentionShape) -> PrimFunc:
    """Return the kernel of the operands, the mask where there is one, and the result.

    The result has the shape (batch, queries, heads x depth).
    """
    features = shape.heads * shape.depth
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("attention")
        given = [
            script.arg(f"operand_{index}", script.buffer(operand, "float32"))
            for index, operand in enumerate(shape.operands)
        ]
        added = script.arg("mask", script.buffer(shape.mask, "float32")) if shape.mask is not None else None
        result = script.arg("result", script.buffer((shape.batch, shape.queries, features), "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            memory = [flat(each, math.prod(size)) for each, size in zip(given, shape.operands, strict=True)]
            query, key, value = (memory[rows.operand] for rows in shape.rows)
            mask = flat(added, math.prod(shape.mask)) if shape.mask is not None else None
            target = flat(result, shape.batch * shape.queries * features)
            with script.parallel(shape.batch * shape.heads) as task:
                sequence, head = script.Bind(task // shape.heads), script.Bind(task % shape.heads)
                turned = _emit_turned_keys(shape, key, sequence, head)
                gathered = _emit_gathered_values(shape, value, sequence, head)
                _emit_queries(shape, (query, turned, gathered), mask, target, sequence, head)
    return vectorise_math(builder.get())


def _first(shape: AttentionShape, which: int, position: Any, sequence: Any, head: Any) -> Any:
    """Return where a position's head begins in its operand."""
    rows = shape.rows[which]
    length = shape.queries if which == 0 else shape.keys
    return (sequence * length + position) * rows.stride + rows.offset + head * shape.depth


def _emit_turned_keys(shape: AttentionShape, key: Any, sequence: Any, head: Any) -> Any:
    """Return the keys by panels of positions, each feature by feature; the last panel may repeat some."""
    panel = shape.key_vectors * LANES
    num_panels = -(-shape.keys // panel)
    turned = script.alloc_buffer((num_panels * shape.depth * panel,), "float32")
    with script.serial(num_panels) as which, script.serial(panel) as position:
        first = _first(shape, 1, script.min(which * panel, shape.keys - panel) + position, sequence, head)
        for vector in range(shape.depth // LANES):
            at = (which * shape.depth + vector * LANES) * panel + position
            script.buffer_store(
                turned,
                key[script.Ramp(first + vector * LANES, 1, LANES)],
                [script.Ramp(at, panel, LANES)],
            )
    return turned


def _emit_gathered_values(shape: AttentionShape, value: Any, sequence: Any, head: Any) -> Any:
    """Return the values by panels of features, each position by position: theirs lie far from each other."""
    panel = shape.value_vectors * LANES
    gathered = script.alloc_buffer((shape.keys * shape.depth,), "float32")
    with script.serial(shape.keys) as position:
        first = _first(shape, 2, position, sequence, head)
        for vector in range(shape.depth // LANES):
            which, within = divmod(vector * LANES, panel)
            at = (which * shape.keys + position) * panel + within
            script.buffer_store(
                gathered, value[script.Ramp(first + vector * LANES, 1, LANES)], [script.Ramp(at, 1, LANES)]
            )
    return gathered


def _emit_queries(
    shape: AttentionShape, operands: tuple[Any, Any, Any], mask: Any, target: Any, sequence: Any, head: Any
) -> None:
    """Compute the results of a head, a tile of queries at a time; the last tile may repeat some."""
    query, turned, value = operands
    num_rows, width = shape.tile_rows, shape.padded_keys
    key_panel, value_panel = shape.key_vectors * LANES, shape.value_vectors * LANES
    with script.serial(-(-shape.queries // num_rows)) as tile:
        row = script.Bind(script.min(tile * num_rows, shape.queries - num_rows))
        scores = script.alloc_buffer((num_rows * width,), "float32")
        with script.serial(-(-shape.keys // key_panel)) as which:
            column = script.Bind(script.min(which * key_panel, shape.keys - key_panel))
            asked = script.Bind(_first(shape, 0, row, sequence, head))
            sums = _emit_sums(
                (num_rows, shape.key_vectors),
                shape.depth,
                lambda line, step: query[asked + line * shape.rows[0].stride + step],
                turned,
                lambda step: (which * shape.depth + step) * key_panel,
            )
            for line, vector in sums.places:
                with script.vectorized(LANES) as lane:
                    score = sums.memory[line * key_panel + vector * LANES + lane] * script.float32(
                        shape.scale
                    )
                    at = column + vector * LANES + lane
                    if mask is not None:
                        score = score + mask[_mask_index(shape, sequence, head, row + line, at)]
                    script.buffer_store(scores, score, [line * width + at])
        factors = _emit_softmax(shape, scores, num_rows)
        with script.serial(shape.depth // value_panel) as which:
            given = script.Bind(which * shape.keys * value_panel)
            sums = _emit_sums(
                (num_rows, shape.value_vectors),
                shape.keys,
                lambda line, step: scores[line * width + step],
                value,
                lambda step: given + step * value_panel,
            )
            features = shape.heads * shape.depth
            place = (sequence * shape.queries + row) * features + head * shape.depth + which * value_panel
            for line, vector in sums.places:
                script.buffer_store(
                    target,
                    sums.load(line, vector) * script.Broadcast(factors[line], LANES),
                    [script.Ramp(place + line * features + vector * LANES, 1, LANES)],
                )


def _emit_sums(
    tile: tuple[int, int],
    length: int,
    left: Callable[[int, Any], Any],
    memory: Any,
    first: Callable[[Any], Any],
) -> Sums:
    """Return a tile of sums of products.

    Args:
        tile: rows and vectors.
        length: terms of each sum.
        left: the element of a row and a term.
        memory: what holds the vectors of all terms.
        first: where those of a term begin.
    """
    sums = Sums(*tile, LANES)
    with script.serial(length) as step:
        right = sums.bound(memory, first(step))
        sums.add(lambda line: left(line, step), right)
    return sums


def _emit_softmax(shape: AttentionShape, scores: Any, num_rows: int) -> Any:
    """Replace a tile's scores by exponentials, and return by what each row's are to be multiplied."""
    width = shape.padded_keys
    factors = script.alloc_buffer((num_rows,), "float32")
    with script.serial(num_rows) as line:
        for column in range(shape.keys, width):
            script.buffer_store(scores, script.float32(_LOWEST), [line * width + column])
        extreme = script.alloc_buffer((LANES,), "float32")
        total = script.alloc_buffer((LANES,), "float32")
        everywhere = script.Ramp(0, 1, LANES)
        script.buffer_store(extreme, script.Broadcast(script.float32(_LOWEST), LANES), [everywhere])
        script.buffer_store(total, script.Broadcast(script.float32(0), LANES), [everywhere])
        with script.serial(width // LANES) as vector:
            found = scores[script.Ramp(line * width + vector * LANES, 1, LANES)]
            script.buffer_store(extreme, script.max(extreme[everywhere], found), [everywhere])
        largest = script.Bind(_emit_largest(extreme))
        with script.serial(width // LANES) as vector:
            with script.vectorized(LANES) as lane:
                at = line * width + vector * LANES + lane
                script.buffer_store(scores, tirx.exp(scores[at] - largest), [at])
            found = scores[script.Ramp(line * width + vector * LANES, 1, LANES)]
            script.buffer_store(total, total[everywhere] + found, [everywhere])
        script.buffer_store(factors, script.float32(1) / _folded_sum(total), [line])
    return factors


def _emit_largest(vector: Any) -> Any:
    """Return a vector's largest element, found by halves that are stored: it is then the first.

    A maximum of maxima in one expression compiles for six seconds: that NaN passes makes each of them name
    its operands three times, and TVM's code generator simplifies what the names stand for.
    """
    half = LANES // 2
    while half:
        left, right = (script.Ramp(first, 1, half) if half > 1 else first for first in (0, half))
        script.buffer_store(vector, script.max(vector[left], vector[right]), [left])
        half //= 2
    return vector[0]


def _folded_sum(vector: Any) -> Any:
    """Return the sum of a vector's elements, by halves."""
    elements = [vector[lane] for lane in range(LANES)]
    while len(elements) > 1:
        half = len(elements) // 2
        elements = [first + second for first, second in zip(elements[:half], elements[half:], strict=True)]
    return elements[0]


def _mask_index(shape: AttentionShape, *place: Any) -> Any:
    """Return where the mask of a sequence, head, query and key lies; axes of length 1 hold for all."""
    assert shape.mask is not None
    index: Any = 0
    for extent, at in zip(shape.mask, place[-len(shape.mask) :], strict=True):
        index = index * extent + (at if extent > 1 else 0)
    return index
