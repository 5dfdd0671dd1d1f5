"""Products of bfloat16 with constant weights, and what follows each: recognised, and written as two kernels.

The importer widens what an operator of bfloat16 reads, computes in float32 and rounds once
(`tuner.frontend.converters.bfloat16`). A partition begins where a product's operands are widened and ends
where the last of its operators rounds; as in TVM's fused kernels, nothing is rounded between. Checked in
tests/tuner/backends/cpu/test_half_matmul.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from tuner.backends.bfloat16_patterns import HALF, converted, is_half
from tuner.backends.cpu.kernels.half_product import half_product_kernel, pack_pairs_kernel, pairs_shape
from tuner.backends.cpu.kernels.packed_product import LANES, ProductShape
from tuner.backends.library_call import ACTIVATIONS, JOINS, CallReader, Then, read_linear, shape_of
from tuner.backends.tvm.schedule import as_finished
from tuner.graph.relax_types import IRModule, RelaxFunction
from tuner.rules.pattern import LabelledPattern
from tuner.runtime.library_calls import Activation, Linear


@dataclass(frozen=True, slots=True)
class HalfProduct:
    """A product of bfloat16, and what follows it.

    Attributes:
        linear: the product; its own activation is empty.
        operands: left, right, the bias where there is one, and the other tensor where there is one.
        activation: of the sums.
        then: how the other tensor is joined.
    """

    linear: Linear
    operands: tuple[Any, ...]
    activation: Activation
    then: Then


def recognise_half_product(function: RelaxFunction) -> HalfProduct | None:
    """Return the product of bfloat16 that a function is, with what follows it, or None."""
    reader = CallReader(function)
    found = _product(reader, reader.result)
    if found is not None and reader.used == reader.bound:
        return found
    reader.used.clear()
    joined = _rounded(reader, reader.result, *JOINS)
    if joined is None:
        return None
    before = set(reader.used)
    for mine, theirs in (joined.args, reversed(joined.args)):
        reader.used = set(before)
        product, other = _widened(reader, mine), _widened(reader, theirs)
        found = None if product is None or other is None else _product(reader, product)
        is_whole = found is not None and reader.used == reader.bound and other not in reader.values
        if found is not None and is_whole and shape_of(other) == shape_of(product) == shape_of(joined):
            then = JOINS[joined.op.name]
            return HalfProduct(found.linear, (*found.operands, other), found.activation, then)
    return None


def refusal_of(found: HalfProduct, function: RelaxFunction) -> str | None:
    """Return why there is no kernel of a product, or None."""
    if len(shape_of(found.operands[1])) != 2 or len(shape_of(found.operands[0])) < 2:
        return "its right operand is not one matrix"
    if found.linear.left_transposed:
        return "its left operand is transposed"
    if shape_of(function.body.body)[-1] < LANES:
        return f"it has fewer than {LANES} columns"
    return "its sums have an odd number of terms" if shape_of(found.operands[0])[-1] % 2 else None


def half_kernels(function: RelaxFunction, found: HalfProduct, registers: int) -> IRModule:
    """Return a function as two kernels, the first of which reads weights alone."""
    fresh = {parameter: relax.Var(parameter.name, parameter.ty) for parameter in function.params}
    data, matrix, *rest = (fresh.get(operand, operand) for operand in found.operands)
    *outer, depth = shape_of(data)
    result_shape = shape_of(function.body.body)
    shape = ProductShape(
        rows=math.prod(outer),
        depth=depth,
        columns=result_shape[-1],
        registers=registers,
        least_lanes=LANES,  # as the instruction has
    )
    builder = relax.BlockBuilder()
    packing = pack_pairs_kernel(shape, transposed=found.linear.right_transposed)
    pack = builder.add_func(as_finished(packing), "pack_pairs")
    product = half_product_kernel(
        shape,
        (shape_of(data), result_shape),
        found.activation,
        found.then,
        bias_shape=shape_of(rest[0]) if found.linear.has_bias else None,
    )
    multiply = builder.add_func(as_finished(product), "half_product")
    with builder.function("main", list(fresh.values())):
        with builder.dataflow():
            packed = builder.emit(
                relax.call_tir(pack, [matrix], relax.TensorType(pairs_shape(shape), "uint32"))
            )
            result = builder.emit_output(relax.call_tir(multiply, [data, packed, *rest], function.ret_ty))
        builder.emit_func_output(result)
    return builder.get()


def half_patterns() -> Iterator[LabelledPattern]:
    """Yield the patterns of products between conversions, with and without what follows."""
    variants = itertools.product((True, False), (False, True), ("", *ACTIVATIONS))
    for turns, has_bias, activation in variants:
        make = partial(_pattern, turns=turns, has_bias=has_bias, activation=activation)
        name = activation.removeprefix("relax.").removeprefix("nn.")
        label = "_".join(part for part in ("half_product", "bias" * has_bias, name) if part)
        product, matrix = make()
        yield LabelledPattern(label, product, is_half, given=matrix)
        for join, on_left in itertools.product(
            ("multiply",) if activation else ("add", "multiply"), (True, False)
        ):
            product, matrix = make()
            operands = (converted(product), converted(wildcard()))
            joined = is_op(f"relax.{join}")(*(operands if on_left else reversed(operands)))
            yield LabelledPattern(f"{label}_{join}", converted(joined), is_half, given=matrix)


def _pattern(*, turns: bool, has_bias: bool, activation: str) -> tuple[Any, Any]:
    """Return the pattern of a product with what follows it, and that of its matrix."""
    matrix = wildcard()
    right = is_op("relax.permute_dims")(converted(matrix)) if turns else converted(matrix)
    product = is_op("relax.matmul")(converted(wildcard()), right)
    product = is_op("relax.add")(product, converted(wildcard())) if has_bias else product
    rounded = converted(product)
    if activation:
        rounded = converted(is_op(activation)(converted(rounded)))
    return rounded, matrix


def _product(reader: CallReader, result: Any) -> HalfProduct | None:
    """Return the product that an expression of bfloat16 is bound to, with its activation, or None."""
    before = set(reader.used)
    activated = _rounded(reader, result, *ACTIVATIONS)
    activation: Activation = ""
    if activated is not None:
        activation = ACTIVATIONS[activated.op.name]
        result = _widened(reader, activated.args[0])
    else:
        reader.used = before
    rounded = None if result is None else reader.call(result, "relax.astype")
    if rounded is None or str(rounded.ty.dtype) != HALF:
        return None
    found = read_linear(reader, rounded.args[0])
    if found is None or not isinstance(found.call, Linear) or found.call.activation:
        return None
    operands = tuple(_widened(reader, each) for each in found.operands)
    return None if None in operands else HalfProduct(found.call, operands, activation, "")


def _rounded(reader: CallReader, expression: Any, *names: str) -> Any:
    """Return the call of one of some operators whose result an expression is, rounded; or None."""
    rounded = reader.call(expression, "relax.astype")
    if rounded is None or str(rounded.ty.dtype) != HALF:
        return None
    return reader.call(rounded.args[0], *names)


def _widened(reader: CallReader, expression: Any) -> Any:
    """Return what an expression widens from bfloat16, or None."""
    call = reader.call(expression, "relax.astype")
    return call.args[0] if call is not None and str(call.args[0].ty.dtype) == HALF else None
