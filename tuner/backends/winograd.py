"""3 x 3 convolutions with stride 1 by Winograd's method: fewer multiplications, as untuned TVM kernels.

A partition is a convolution with its bias and ReLU. Its weights are transformed by a kernel of their own,
which runs once where they never change (`tuner.weight_binding`): only then is it fast. Data and result are
NCHW in memory, as everywhere; inside, channels are last. Checked in tests/tuner/backends/test_winograd.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from cost_model.register_tile import lanes_of
from tuner.backends.cpu_kernels import CpuKernels
from tuner.backends.kernels.bounds import RELU, UNBOUNDED
from tuner.backends.kernels.schedule import as_finished
from tuner.backends.kernels.winograd import convolution_kernel, weights_kernel
from tuner.backends.kernels.winograd_shape import choose_shape
from tuner.backends.library_call import Convolution, recognise_call, shape_of
from tuner.backends.protocol import IRModule, RelaxFunction
from tuner.backends.tvm_native import replace_function
from tuner.rules.pattern import LabelledPattern
from tuner.rules.protocol import Rule
from tuner.rules.styles import library_rule
from tuner.target import Target


class Winograd(CpuKernels):
    """Runs 3 x 3 convolutions with stride 1 by Winograd's method."""

    name = "winograd"
    kernels_version = 1
    reference = "winograd"
    packs_weights = True

    def rule(self, target: Target) -> Rule:
        """Return the rule that proposes each convolution, with and without its bias and ReLU."""
        return library_rule(_PATTERNS, name=self.name)

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say that the function is no such convolution."""
        found = recognise_call(function)
        if found is None or not isinstance(found.call, Convolution):
            return "it is not one convolution of float32 with its bias and activation"
        call = found.call
        if shape_of(found.operands[1])[2:] != (3, 3):
            return "its window is not 3 x 3"
        if set(call.strides) | set(call.dilation) | {call.groups} != {1}:
            return "it has strides, dilation or groups"
        if call.activation not in ("", "relu"):
            return f"it has {call.activation} for an activation, not ReLU"
        filters, channels = shape_of(found.operands[1])[:2]
        if not (lanes_of(filters) and lanes_of(channels)):
            return "its channels do not fill vectors of 4"
        return None

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each function as two kernels, the first of which reads weights alone."""
        for name in functions:
            module = replace_function(module, name, _kernels(module[name], target))
        return module


def _kernels(function: RelaxFunction, target: Target) -> IRModule:
    found = recognise_call(function)
    if found is None or not isinstance(found.call, Convolution):
        raise ValueError("the function is not one convolution; ask `refusal` before lowering")
    call = found.call
    fresh = {parameter: relax.Var(parameter.name, parameter.ty) for parameter in function.params}
    data, weights, *bias = (fresh.get(operand, operand) for operand in found.operands)
    padding = (call.padding[0], call.padding[1])
    shape = choose_shape(shape_of(data), shape_of(weights)[0], padding, target.num_threads)
    kernel = convolution_kernel(
        shape, shape_of(bias[0]) if bias else None, RELU if call.activation == "relu" else UNBOUNDED
    )
    builder = relax.BlockBuilder()
    transform = builder.add_func(as_finished(weights_kernel(shape)), "winograd_weights")
    convolve = builder.add_func(as_finished(kernel), "winograd_convolution")
    with builder.function("main", list(fresh.values())):
        with builder.dataflow():
            packed = builder.emit(
                relax.call_tir(transform, [weights], relax.TensorType(shape.packed_shape, "float32"))
            )
            result = builder.emit_output(relax.call_tir(convolve, [data, packed, *bias], function.ret_ty))
        builder.emit_func_output(result)
    return builder.get()


def _patterns() -> tuple[LabelledPattern, ...]:
    patterns = []
    for bias in ("", "_bias"):
        for activation in ("", "_relu"):
            pattern = is_op("relax.nn.conv2d")(wildcard(), wildcard())
            pattern = is_op("relax.add")(pattern, wildcard()) if bias else pattern
            pattern = is_op("relax.nn.relu")(pattern) if activation else pattern
            patterns.append(LabelledPattern(f"convolution{bias}{activation}", pattern))
    return tuple(patterns)


_PATTERNS = _patterns()
