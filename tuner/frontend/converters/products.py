"""Products of matrices, in the type that torch gives, where TVM's converters turn halves into floats.

Checked against torch in tests/tuner/frontend/converters/test_layers.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr, dtype_of, rank_of, shape_of
from tuner.frontend.converters.reductions import root_of_sum


def _linear(call: Call) -> Expr:
    """Emit x Wᵀ + b."""
    turned = call.emit(relax.op.permute_dims(call["weight"]))
    product = call.emit(relax.op.matmul(call["input"], turned))
    return call.emit(relax.op.add(product, call["bias"])) if call.has("bias") else product


def _product(second: str) -> Converter:
    return lambda call: call.emit(relax.op.matmul(call["self"], call[second]))


def _matrix_vector(call: Call) -> Expr:
    return call.emit(relax.op.matmul(call["self"], call["vec"]))


def _dot(call: Call) -> Expr:
    return call.emit(relax.op.matmul(call["self"], call["tensor"]))


def _add_product(first: str, second: str) -> Converter:
    """Convert β x + α A B."""

    def convert(call: Call) -> Expr:
        product = call.emit(relax.op.matmul(call[first], call[second]))
        product = _scaled(call, product, call["alpha"])
        if not call["beta"]:
            return product
        return call.emit(relax.op.add(_scaled(call, call.operand("self"), call["beta"]), product))

    return convert


def _scaled(call: Call, x: Expr, factor: float) -> Expr:
    return x if factor == 1 else call.emit(relax.op.multiply(x, call.cast(factor, dtype_of(x))))


def _bilinear(call: Call) -> Expr:
    """Emit y_k = aᵀ W_k b (+ bias): one product with all W_k side by side, and a weighted sum."""
    one, other, weight = call["input1"], call["input2"], call["weight"]
    count, rows, columns = shape_of(weight)
    turned = call.emit(relax.op.permute_dims(weight, [1, 0, 2]))
    wide = call.emit(relax.op.matmul(one, call.reshaped(turned, [rows, count * columns])))
    parts = call.reshaped(wide, [*shape_of(one)[:-1], count, columns])
    weights = call.emit(relax.op.expand_dims(other, rank_of(other) - 1))
    found = call.emit(relax.op.sum(call.emit(relax.op.multiply(parts, weights)), axis=[rank_of(parts) - 1]))
    return call.emit(relax.op.add(found, call["bias"])) if call.has("bias") else found


def _distances(call: Call) -> Expr:
    """Emit the distance in the p-norm of each row of one tensor to each of the other."""
    one = call.emit(relax.op.expand_dims(call["x1"], rank_of(call["x1"]) - 1))
    other = call.emit(relax.op.expand_dims(call["x2"], rank_of(call["x2"]) - 2))
    gap = call.emit(relax.op.subtract(one, other))
    axis = [rank_of(gap) - 1]
    p, dtype = float(call["p"]), call.dtype
    if p == 2:
        return root_of_sum(call, call.emit(relax.op.sum(call.emit(relax.op.square(gap)), axis=axis)))
    if p == 0:
        differs = call.emit(relax.op.not_equal(gap, relax.const(0, dtype)))
        return call.emit(relax.op.sum(call.emit(relax.op.astype(differs, dtype)), axis=axis))
    size = call.emit(relax.op.abs(gap))
    if p in (1, float("inf")):
        return call.emit((relax.op.sum if p == 1 else relax.op.max)(size, axis=axis))
    total = call.emit(relax.op.sum(call.emit(relax.op.power(size, relax.const(p, dtype))), axis=axis))
    return root_of_sum(call, total, lambda each: relax.op.power(each, relax.const(1 / p, dtype)))


def _grouped(call: Call) -> Expr:
    """Emit products of rows with the matrix of their group, where groups follow each other.

    Each row is multiplied by every group's matrix, and all but its own products are set to zero: which group
    a row belongs to is known only when the model runs, and shapes must not depend on it. Rows after the last
    group give zeros.
    """
    rows, matrices, ends = call["input"], call["weight"], call["offs"]
    count, groups = shape_of(rows)[0], shape_of(matrices)[0]
    places = relax.const(np.arange(count, dtype="int64").reshape(1, count), "int64")
    ends = call.reshaped(call.cast(ends, "int64"), [groups, 1])
    is_before = call.cast(call.emit(relax.op.less(places, ends)), call.dtype)
    # A row before the end of group g and not before that of group g - 1 belongs to g.
    zeros = relax.const(np.zeros((1, count)), call.dtype)
    lasts = call.emit(relax.op.strided_slice(is_before, [0], [0], [groups - 1])) if groups > 1 else None
    previous = zeros if lasts is None else call.emit(relax.op.concat([zeros, lasts], axis=0))
    belongs = call.reshaped(call.emit(relax.op.subtract(is_before, previous)), [groups, count, 1])
    wide = call.emit(relax.op.expand_dims(rows, 0))
    products = call.emit(relax.op.matmul(wide, matrices))
    return call.emit(relax.op.sum(call.emit(relax.op.multiply(products, belongs)), axis=[0]))


PRODUCTS: Mapping[str, Converter] = {
    "linear.default": _linear,
    "matmul.default": _product("other"),
    "mm.default": _product("mat2"),
    "bmm.default": _product("mat2"),
    "mv.default": _matrix_vector,
    "dot.default": _dot,
    "addmm.default": _add_product("mat1", "mat2"),
    "baddbmm.default": _add_product("batch1", "batch2"),
    "addmv.default": _add_product("mat", "vec"),
    "bilinear.default": _bilinear,
    "cdist.default": _distances,
    "_cdist_forward.default": _distances,
    "grouped_mm_fallback.default": _grouped,
}
"""Converter by name of operator and overload."""
