"""Matrix products with constant weights, as untuned TVM kernels that read them packed.

A partition is a product with its bias and activation, and the sum or product with one more tensor: the
residual sum of a transformer's block, the gate of its feed-forward layer. Nothing of it is written and read
again, and no call leaves TVM's code: among the calls of a whole network, a call through Python into a library
costs some 0.1 ms, for its own code has left the caches. Weights are packed by a kernel of their own when they
are bound (`tuner.lowering.weight_binding`). Processors with instructions for bfloat16 multiply that type too
(`half_products`). Checked in tests/tuner/backends/cpu/test_packed_matmul.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from tuner.backends.cpu.half_products import half_kernels, half_patterns, recognise_half_product, refusal_of
from tuner.backends.cpu.kernels.packed_product import LANES, ProductShape, pack_kernel, product_kernel
from tuner.backends.kernel_version import CpuKernels
from tuner.backends.library_call import recognise_product, shape_of
from tuner.backends.tvm.native import replace_function
from tuner.backends.tvm.schedule import as_finished
from tuner.graph.relax_types import IRModule, RelaxFunction
from tuner.rules.pattern import LabelledPattern
from tuner.rules.protocol import Rule
from tuner.rules.segments import WithPackedWeights
from tuner.rules.styles import library_rule
from tuner.targets.target import Target
from tuner.targets.vector_registers import multiplies_bfloat16, vector_registers

_ACTIVATIONS = ("", "nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "sigmoid", "tanh")


class PackedMatmul(CpuKernels):
    """Runs products with packed weights, and what follows them."""

    name = reference = "packed_matmul"
    kernels_version = 7
    packs_weights = True

    def rule(self, target: Target) -> Rule:
        """Return the rule that proposes each product, with and without what follows it."""
        patterns = (*_PATTERNS, *_HALF_PATTERNS) if multiplies_bfloat16(target) else _PATTERNS
        return WithPackedWeights(library_rule(patterns, name=self.name))

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say that the function is no such product."""
        half = recognise_half_product(function)
        if half is not None:
            has_units = multiplies_bfloat16(target)
            return refusal_of(half, function) if has_units else "the processor does not multiply bfloat16"
        found = recognise_product(function)
        if found is None:
            return "it is not one product of float32 with its bias, activation and sum"
        if len(shape_of(found.operands[1])) != 2 or len(shape_of(found.operands[0])) < 2:
            return "its right operand is not one matrix"
        if found.linear.left_transposed:
            return "its left operand is transposed"
        if shape_of(function.body.body)[-1] < LANES:
            return f"it has fewer than {LANES} columns"
        return None

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each function as two kernels, the first of which reads weights alone."""
        for name in functions:
            half = recognise_half_product(module[name])
            if half is None:
                kernels = _kernels(module[name], vector_registers(target))
            else:
                kernels = half_kernels(module[name], half, vector_registers(target))
            module = replace_function(module, name, kernels)
        return module


def _kernels(function: RelaxFunction, registers: int) -> IRModule:
    found = recognise_product(function)
    if found is None:
        raise ValueError("the function is not one product; ask `refusal` before lowering")
    fresh = {parameter: relax.Var(parameter.name, parameter.ty) for parameter in function.params}
    data, matrix, *rest = (fresh.get(operand, operand) for operand in found.operands)
    *outer, depth = shape_of(data)
    result_shape = shape_of(function.body.body)
    shape = ProductShape(rows=math.prod(outer), depth=depth, columns=result_shape[-1], registers=registers)
    kernel = product_kernel(
        shape,
        (shape_of(data), result_shape),
        found.linear.activation,
        found.then,
        bias_shape=shape_of(rest[0]) if found.linear.has_bias else None,
    )
    builder = relax.BlockBuilder()
    packing = pack_kernel(shape, transposed=found.linear.right_transposed)
    pack = builder.add_func(as_finished(packing), "pack_panels")
    multiply = builder.add_func(as_finished(kernel), "packed_product")
    with builder.function("main", list(fresh.values())):
        with builder.dataflow():
            packed = builder.emit(
                relax.call_tir(pack, [matrix], relax.TensorType(shape.packed_shape, "float32"))
            )
            result = builder.emit_output(relax.call_tir(multiply, [data, packed, *rest], function.ret_ty))
        builder.emit_func_output(result)
    return builder.get()


def _patterns() -> Iterator[LabelledPattern]:
    for turns in (True, False):
        for has_bias in (False, True):
            for activation in _ACTIVATIONS:
                parts = ("product", "bias" * has_bias, activation.removeprefix("nn."))
                label = "_".join(part for part in parts if part)
                make = partial(_product, turns=turns, has_bias=has_bias, activation=activation)
                yield _labelled(label, *make())
                for join in ("add", "multiply") if not activation else ("multiply",):
                    for on_left in (True, False):
                        product, matrix = make()
                        operands = (product, wildcard()) if on_left else (wildcard(), product)
                        yield _labelled(f"{label}_{join}", is_op(f"relax.{join}")(*operands), matrix)


def _product(*, turns: bool, has_bias: bool, activation: str) -> tuple[Any, Any]:
    """Return the pattern of a product with what follows it, and that of its matrix."""
    matrix = wildcard()
    product = is_op("relax.matmul")(wildcard(), is_op("relax.permute_dims")(matrix) if turns else matrix)
    product = is_op("relax.add")(product, wildcard()) if has_bias else product
    return (is_op(f"relax.{activation}")(product) if activation else product), matrix


def _labelled(label: str, pattern: Any, matrix: Any) -> LabelledPattern:
    """Return the pattern for matrices that are parameters or made of weights alone: others change."""
    return LabelledPattern(label, pattern, given=matrix)


_PATTERNS = tuple(_patterns())
_HALF_PATTERNS = tuple(half_patterns())
