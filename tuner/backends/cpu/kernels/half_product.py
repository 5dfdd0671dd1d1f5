"""Products of bfloat16 with packed weights, for processors that multiply pairs of it.

An instruction of AVX-512 adds to each of 16 sums of float32 the products of two neighbouring numbers of
bfloat16: twice the multiplications of a step of float32. So weights are packed in pairs of rows, and a step
of a tile takes a pair of each line. What follows the product is computed in float32 and rounded once, at the
end, where the model's own operators round one by one. Checked in
tests/tuner/backends/cpu/test_half_matmul.py.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from tuner.backends.bfloat16_patterns import HALF
from tuner.backends.cpu.kernels.accumulators import Sums
from tuner.backends.cpu.kernels.packed_product import ProductShape, activated
from tuner.backends.library_call import Then
from tuner.backends.tvm.vector_math import vectorise_math
from tuner.graph.relax_types import PrimFunc
from tuner.runtime.library_calls import Activation

_DOT = "tessel_dot_bfloat16"

_LLVM = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)

define linkonce_odr <16 x float> @{_DOT}(<16 x float> %sums, <16 x i32> %left, <16 x i32> %right) #0 {{
  %a = bitcast <16 x i32> %left to <32 x bfloat>
  %b = bitcast <16 x i32> %right to <32 x bfloat>
  %found = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
      <16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %found
}}

attributes #0 = {{ alwaysinline nounwind memory(none) "target-features"="+avx512f,+avx512bf16" }}
"""
"""TVM makes float32 of every bfloat16 that an expression names, so that the instruction stands in a function
of LLVM's own language, which takes pairs as whole numbers and is inlined."""


def pack_pairs_kernel(shape: ProductShape, *, transposed: bool) -> PrimFunc:
    """Return the kernel that packs a matrix of bfloat16 into panels of pairs (`pairs_shape`).

    Args:
        shape: the product, whose depth is even.
        transposed: whether the matrix has a row for each column of the product.
    """
    num_panels, pairs, panel = pairs_shape(shape)
    columns, depth = shape.columns, shape.depth
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("pack_pairs")
        matrix = script.arg(
            "matrix", script.buffer((columns, depth) if transposed else (depth, columns), HALF)
        )
        packed = script.arg("packed", script.buffer((num_panels, pairs, panel), "uint32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            source = script.decl_buffer((columns * depth,), HALF, data=matrix.data)
            with script.parallel(num_panels) as which, script.serial(pairs) as pair:
                first = script.min(which * panel, columns - panel)
                with script.serial(panel) as place:
                    column = first + place
                    low, high = (
                        source[column * depth + row if transposed else row * columns + column]
                        for row in (2 * pair, 2 * pair + 1)
                    )
                    both = _bits(low) + _bits(high) * tirx.const(1 << 16, "uint32")
                    script.buffer_store(packed, both, [which, pair, place])
    return builder.get()


def half_product_kernel(
    shape: ProductShape,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    activation: Activation,
    then: Then,
    *,
    bias_shape: tuple[int, ...] | None,
) -> PrimFunc:
    """Return the kernel of data, packed pairs of weights, bias, what else is joined, and the result.

    Args:
        shape: the product, whose depth is even.
        shapes: of the data and of the result in memory.
        activation: what is done to the sums.
        then: how another tensor of the result's shape is joined after that.
        bias_shape: of a bias with one element per column, or None.
    """
    data_shape, result_shape = shapes
    rows, depth, columns, panel = shape.rows, shape.depth, shape.columns, shape.panel
    num_panels, pairs, _ = pairs_shape(shape)
    num_tiles = -(-rows // shape.tile_rows)
    num_blocks = -(-num_tiles // shape.block_tiles)
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("half_product")
        data = script.arg("data", script.buffer(data_shape, HALF))
        packed = script.arg("packed", script.buffer((num_panels, pairs, panel), "uint32"))
        added = script.arg("bias", script.buffer(bias_shape, HALF)) if bias_shape is not None else None
        other = script.arg("other", script.buffer(result_shape, HALF)) if then else None
        result = script.arg("result", script.buffer(result_shape, HALF))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"), script.attr(tirx.const(0, "int32"), "pragma_import_llvm", _LLVM):
            source = script.decl_buffer((rows * depth,), HALF, data=data.data)
            weights = script.decl_buffer((num_panels * pairs * panel,), "uint32", data=packed.data)
            bias = None if added is None else script.decl_buffer((columns,), HALF, data=added.data)
            joined: Any = other
            if other is not None:
                joined = script.decl_buffer((rows * columns,), HALF, data=other.data)
            target = script.decl_buffer((rows * columns,), HALF, data=result.data)
            with script.parallel(num_blocks * num_panels) as task, script.serial(shape.block_tiles) as member:
                which = task % num_panels
                index = script.min(task // num_panels * shape.block_tiles + member, num_tiles - 1)
                row = script.min(index * shape.tile_rows, rows - shape.tile_rows)
                column = script.min(which * panel, columns - panel)
                sums = Sums(shape.tile_rows, shape.vectors, shape.lanes)
                with script.serial(pairs) as pair:
                    first = (which * pairs + pair) * panel
                    _add_pairs(sums, source, weights, (row * depth, depth, pair), first)
                with script.serial(sums.rows) as line:
                    for vector in range(shape.vectors):
                        with script.vectorized(shape.lanes) as lane:
                            at = column + vector * shape.lanes + lane
                            place = (row + line) * columns + at
                            value = sums.memory[line * panel + vector * shape.lanes + lane]
                            value = activated(value if bias is None else value + _wide(bias[at]), activation)
                            if then == "add":
                                value = value + _wide(joined[place])
                            elif then == "multiply":
                                value = value * _wide(joined[place])
                            script.buffer_store(target, tirx.Cast(HALF, value), [place])
    return vectorise_math(builder.get())


def pairs_shape(shape: ProductShape) -> tuple[int, int, int]:
    """Return the shape of packed weights: panels, pairs of rows, and columns of a panel."""
    num_panels, depth, panel = shape.packed_shape
    return num_panels, depth // 2, panel


def _add_pairs(sums: Sums, source: Any, weights: Any, data: tuple[Any, int, Any], first: Any) -> None:
    """Add the products of a pair of every line with the weights from an element on.

    Args:
        source: the data.
        weights: packed.
        data: where the tile's data begin, how far a line is from the next, and which pair of it is taken.
        first: where the pair's weights lie.
    """
    start, stride, pair = data
    right = [
        script.Bind(weights[script.Ramp(first + vector * sums.lanes, 1, sums.lanes)])
        for vector in range(sums.vectors)
    ]
    for row in range(sums.rows):
        both = tirx.reinterpret("uint32", source[script.Ramp(start + row * stride + 2 * pair, 1, 2)])
        left = script.Bind(script.Broadcast(both, sums.lanes))
        for vector in range(sums.vectors):
            dot = tirx.call_pure_extern("float32x16", _DOT, sums.load(row, vector), left, right[vector])
            script.buffer_store(sums.memory, dot, [sums.at(row, vector)])


def _bits(value: Any) -> Any:
    return tirx.Cast("uint32", tirx.reinterpret("uint16", value))


def _wide(value: Any) -> Any:
    return tirx.Cast("float32", value)
