"""Products with packed weights, as two TVM kernels that cost no tuning.

One kernel packs the weights: for each panel of columns, row by row, its columns. The other keeps a tile of
results, some rows by a panel, in vector registers while the sum runs, and does the rest as the tile leaves
them: bias, activation, and the sum or product with another tensor. All rows pass a panel before the next, so
that the panel is read from the cache; where all rows are too many for the cache, a block of them. Checked in
tests/tuner/backends/cpu/test_packed_matmul.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from tuner.backends.cpu.kernels.accumulators import (
    AVX2,
    MAX_ROWS,
    SINGLE,
    WIDE,
    Sums,
    avx2_tile,
    tile_rows,
    tile_vectors,
)
from tuner.backends.cpu.kernels.memory import flat
from tuner.backends.library_call import Then
from tuner.backends.tvm.vector_math import vectorise_math
from tuner.graph.relax_types import PrimFunc
from tuner.runtime.library_calls import Activation

LANES = 16
"""Columns of a vector."""

_BEST_ROWS = 8
"""Rows of a tile, of numbers that divide all rows as well."""

_MIN_ROWS = 7
"""Rows of a tile with which one vector of columns hides the latency of multiplication."""

_CUTS = ((2, _BEST_ROWS), (3, _BEST_ROWS), (1, 12))
"""Vectors of a tile and its best rows; of equals the first: one vector needs more rows."""

_MOST_OF_A_ROW = 20
"""Vectors of a tile of one row."""

_SHORT_LANES = 8
"""Columns of the vectors of one row, with AVX2 and more: with AVX-512 panels half as wide come from memory
1.07 times as fast."""

_VECTORS_OF_A_ROW = 8
"""Vectors of a tile of one row that half of AVX2's registers hold: from memory 1.1 times as fast as one of 16
columns, from a cache 1.65 times."""

_UNLIKE = 0.05
"""What a tile of few rows with twice as many vectors as is wanted costs, or with half."""

_ACCUMULATORS = 16
"""Vectors of partial results that hide the latency of multiplication; fewer rows get more vectors."""

_FILLED = 24
"""Those of four rows and more: the wider a panel, the faster it comes from memory."""

_BLOCK_BYTES = 1 << 21
"""Data that stay in the cache while all panels of weights pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductShape:
    """A product of rows x depth by depth x columns; at least `LANES` columns.

    Attributes:
        rows: of the left operand.
        depth: terms of each sum.
        columns: of the right operand.
        registers: vectors of `LANES` that all registers hold (`tuner.targets.vector_registers`).
        least_lanes: columns of the shortest vector that the kernel can be written with.
    """

    rows: int
    depth: int
    columns: int
    registers: int = 32
    least_lanes: int = 1

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return self._rows_and_vectors[0]

    @property
    def lanes(self) -> int:
        """Columns of a vector."""
        if self.least_lanes > _SHORT_LANES or self.registers < AVX2:
            return LANES
        if self.rows == 1:
            return _SHORT_LANES
        return avx2_tile(self.rows, self.columns).lanes if self.registers == AVX2 else LANES

    @property
    def vectors(self) -> int:
        """Vectors of a row of a tile."""
        return self._rows_and_vectors[1]

    @property
    def _rows_and_vectors(self) -> tuple[int, int]:
        """A tile by this module's rule: the one with which least is computed, results twice included."""
        rows, whole = tile_rows(self.rows, _BEST_ROWS, self.registers), self.columns // self.lanes
        wanted = max(1, min(max(2, _ACCUMULATORS // rows), whole))
        if self.registers == AVX2 and self.least_lanes <= _SHORT_LANES:
            if self.rows == 1:
                return 1, min(_VECTORS_OF_A_ROW, whole)
            return avx2_tile(self.rows, self.columns)[:2]
        if self.registers < WIDE or whole < 2:
            return rows, tile_vectors(wanted, LANES, self.registers)
        if rows < _MIN_ROWS:
            most = min(whole, _most_vectors(rows))
            wanted = min(_FILLED // rows, most) if rows > 3 else wanted
            choices = range(-(-_MIN_ROWS // rows), most + 1)
            costs = {
                vectors: self._computed((rows, vectors)) * (1 + _UNLIKE * abs(math.log2(vectors / wanted)))
                for vectors in (wanted, *choices)
            }
            return rows, min(costs, key=costs.__getitem__)
        cuts = [
            (tile_rows(self.rows, best, most=min(MAX_ROWS, (WIDE - 1) // vectors - 1)), vectors)
            for vectors, best in _CUTS
            if vectors <= whole
        ]
        return min(cuts, key=self._computed)

    def _computed(self, cut: tuple[int, int]) -> float:
        """Return how many vectors of results are computed by a cut into rows and vectors."""
        rows, vectors = cut
        panels = -(-self.columns // (vectors * self.lanes))
        return -(-self.rows // rows) * rows * panels * vectors * (SINGLE if vectors == 1 else 1.0)

    @property
    def panel(self) -> int:
        """Columns of a tile."""
        return self.vectors * self.lanes

    @property
    def packed_shape(self) -> tuple[int, int, int]:
        """Panels, of which the last may repeat columns, depth, and columns of a panel."""
        return (-(-self.columns // self.panel), self.depth, self.panel)

    @property
    def block_tiles(self) -> int:
        """Tiles of rows for each panel before the next panel: blocks are as equal as they can be."""
        num_tiles = -(-self.rows // self.tile_rows)
        fitting = max(1, _BLOCK_BYTES // (4 * self.depth * self.tile_rows))
        return -(-num_tiles // -(-num_tiles // fitting))


def _most_vectors(rows: int) -> int:
    """Return how many vectors registers of AVX-512 hold with those of a step, which one row needs not."""
    return _MOST_OF_A_ROW if rows == 1 else (WIDE - 1) // (rows + 1)


def pack_kernel(shape: ProductShape, *, transposed: bool) -> PrimFunc:
    """Return the kernel that packs a matrix into `packed_shape`.

    Args:
        transposed: whether the matrix has a row for each column of the product.
    """
    num_panels, depth, panel = shape.packed_shape
    columns, width = shape.columns, shape.lanes
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("pack_panels")
        matrix = script.arg(
            "matrix", script.buffer((columns, depth) if transposed else (depth, columns), "float32")
        )
        packed = script.arg("packed", script.buffer(shape.packed_shape, "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            source, target = flat(matrix, columns * depth), flat(packed, num_panels * depth * panel)
            with script.parallel(num_panels) as which, script.serial(depth) as row:
                first = script.Bind(script.min(which * panel, columns - panel))
                for vector in range(shape.vectors):
                    column = first + vector * width
                    lanes = (
                        script.Ramp(column * depth + row, depth, width)
                        if transposed
                        else script.Ramp(row * columns + column, 1, width)
                    )
                    at = (which * depth + row) * panel + vector * width
                    script.buffer_store(target, source[lanes], [script.Ramp(at, 1, width)])
    return builder.get()


def product_kernel(
    shape: ProductShape,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    activation: Activation,
    then: Then,
    *,
    bias_shape: tuple[int, ...] | None,
) -> PrimFunc:
    """Return the kernel of data, packed weights, bias, what else is joined, and the result.

    Args:
        shapes: of the data and of the result in memory: as many elements as rows x depth and rows x columns.
        activation: what is done to the results.
        then: how another tensor of the result's shape is joined after that.
        bias_shape: of a bias with one element per column, or None.
    """
    data_shape, result_shape = shapes
    rows, depth, columns = shape.rows, shape.depth, shape.columns
    num_panels, _, panel = shape.packed_shape
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("packed_product")
        data = script.arg("data", script.buffer(data_shape, "float32"))
        packed = script.arg("packed", script.buffer(shape.packed_shape, "float32"))
        added = script.arg("bias", script.buffer(bias_shape, "float32")) if bias_shape is not None else None
        other = script.arg("other", script.buffer(result_shape, "float32")) if then else None
        result = script.arg("result", script.buffer(result_shape, "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            epilogue = _Epilogue(
                shape=shape,
                bias=None if added is None else flat(added, columns),
                activation=activation,
                then=then,
                other=None if other is None else flat(other, rows * columns),
                target=flat(result, rows * columns),
            )
            source, weights = flat(data, rows * depth), flat(packed, num_panels * depth * panel)
            _emit_tiles(shape, source, weights, epilogue)
    return vectorise_math(builder.get())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epilogue:
    """What is done with a tile of sums, and where it is written."""

    shape: ProductShape
    bias: Any
    activation: Activation
    then: Then
    other: Any
    target: Any

    def emit(self, sums: Sums, row: Any, column: Any) -> None:
        """Write the tile whose first result is at a row and a column.

        An activation is a long expression, which written out for all vectors of a tile would not fit in
        registers: the sums are stored first.
        """
        if self.activation in ("", "relu"):
            for index, vector in sums.places:
                self._emit_vector(sums.memory, index, vector, row, column)
            return
        kept = script.alloc_buffer((sums.rows * self.shape.panel,), "float32", scope="local")
        for index, vector in sums.places:
            script.buffer_store(kept, sums.load(index, vector), [sums.at(index, vector)])
        with script.serial(sums.rows) as index:
            for vector in range(self.shape.vectors):
                self._emit_vector(kept, index, vector, row, column)

    def _emit_vector(self, sums: Any, index: Any, vector: int, row: Any, column: Any) -> None:
        width = self.shape.lanes
        with script.vectorized(width) as lane:
            at = column + vector * width + lane
            place = (row + index) * self.shape.columns + at
            value = sums[index * self.shape.panel + vector * width + lane]
            if self.bias is not None:
                value = value + self.bias[at]
            value = activated(value, self.activation)
            if self.then == "add":
                value = value + self.other[place]
            elif self.then == "multiply":
                value = value * self.other[place]
            script.buffer_store(self.target, value, [place])


def _emit_tiles(shape: ProductShape, source: Any, weights: Any, epilogue: _Epilogue) -> None:
    """Compute results tile by tile; the last row of tiles may repeat some of the one before."""
    rows, depth, columns, panel = shape.rows, shape.depth, shape.columns, shape.panel
    num_panels, num_tiles = shape.packed_shape[0], -(-shape.rows // shape.tile_rows)
    num_blocks = -(-num_tiles // shape.block_tiles)
    with script.parallel(num_blocks * num_panels) as task, script.serial(shape.block_tiles) as member:
        which = script.Bind(task % num_panels)
        index = script.min(task // num_panels * shape.block_tiles + member, num_tiles - 1)
        row = script.Bind(script.min(index * shape.tile_rows, rows - shape.tile_rows))
        sums = Sums(shape.tile_rows, shape.vectors, shape.lanes)
        with script.serial(depth) as step:
            right = sums.bound(weights, (which * depth + step) * panel)
            sums.add(lambda line: source[(row + line) * depth + step], right)
        epilogue.emit(sums, row, script.min(which * panel, columns - panel))


def activated(value: Any, activation: Activation) -> Any:
    """Return the activation of a float32 expression, as Relax's operators define them."""
    if activation == "relu":
        return script.max(script.float32(0), value)  # NaN passes: see `clamp`
    if activation == "gelu":
        return value * script.float32(0.5) * (script.float32(1) + tirx.erf(value * script.float32(0.5**0.5)))
    if activation == "gelu_tanh":
        inner = (
            script.float32((2 / 3.141592653589793) ** 0.5)
            * value
            * (script.float32(1) + script.float32(0.044715) * value * value)
        )
        return value * script.float32(0.5) * (script.float32(1) + tirx.tanh(inner))
    if activation == "silu":
        return value / (script.float32(1) + tirx.exp(-value))
    if activation == "sigmoid":
        return script.float32(1) / (script.float32(1) + tirx.exp(-value))
    return tirx.tanh(value) if activation == "tanh" else value
