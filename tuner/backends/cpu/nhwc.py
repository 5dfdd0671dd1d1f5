"""Contiguous sub-graphs of convolutional networks in channels-last layout, as untuned TVM kernels.

A partition becomes kernels on NHWC tensors; data is transposed on entry and on exit. 3 x 3 convolutions with
stride 1 use Winograd's method, others of one group direct kernels, and those with a group for each channel
depthwise ones, each with its bias, a tensor that is added, and ReLU or a clip in one kernel. A direct
convolution, a depthwise one of its result and a pixelwise one are one kernel, which works row by row. What
goes into one kernel is decided in `tuner.backends.cpu.convolution_chains`, what becomes of the operators
between them in `tuner.backends.cpu.nhwc_writer`. Weights are packed once where they never change.

Within a partition bfloat16 is computed in float32 and rounded where it leaves: the importer has each operator
of bfloat16 widen what it reads and round what it gives (`tuner.frontend.converters.bfloat16`), which between
two operators of one partition is no more than a loss of time and digits, and hides from a convolution what
follows it. Checked in tests/tuner/backends/cpu/test_nhwc.py and test_roundings.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from tuner.backends.cpu.convolution_chains import bindings_of, has_kernel
from tuner.backends.cpu.hoist_pooling import with_pooling_hoisted
from tuner.backends.cpu.nhwc_writer import with_channels_last
from tuner.backends.cpu.rewriting import Write, rewritten, values_of
from tuner.backends.kernel_version import CpuKernels
from tuner.backends.tvm.native import fuse_as_tvm_does, replace_function
from tuner.backends.tvm.schedule import schedule_kernels
from tuner.graph.legalization import legalize_operators
from tuner.graph.relax_types import Expression, IRModule, RelaxFunction
from tuner.rules.protocol import Rule
from tuner.rules.segments import ContiguousSubgraphs, WithPackedWeights
from tuner.targets.target import Target


class Nhwc(CpuKernels):
    """Runs sub-graphs of convolutional networks in channels-last layout, 3 x 3 by Winograd's method."""

    name = reference = "nhwc"
    kernels_version = 11
    packs_weights = True
    takes_contiguous_subgraphs = True

    def rule(self, target: Target) -> Rule:
        """Return the rule that proposes contiguous sub-graphs of an inference model."""
        return WithPackedWeights(ContiguousSubgraphs(self.name, frozenset({"nn.conv2d"})))

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say that the function has no convolution that its kernels are for."""
        if any(has_kernel(binding.value) for binding in bindings_of(function)):
            return None
        return "it has no convolution of float32 in one group, or a group a channel, that fills vectors of 4"

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each function as kernels on tensors with channels last."""
        for name in functions:
            function = with_pooling_hoisted(without_roundings(module[name]))
            turned = with_channels_last(function, target)
            kernels = fuse_as_tvm_does(legalize_operators()(turned))
            module = replace_function(module, name, schedule_kernels(kernels, target))
        return module


def without_roundings(function: RelaxFunction) -> RelaxFunction:
    """Return the function in which whoever widens a rounded float32 reads it as it was before.

    Results that are rounded stay so; the function itself where nothing is widened again.
    """
    values = values_of(function)
    writers = {
        variable: _as(source)
        for variable, value in values.items()
        if _converts(value, "float32") and (source := _before_rounding(values, value.args[0])) is not None
    }
    return relax.analysis.remove_all_unused(rewritten(function, writers)) if writers else function


def _as(source: Expression) -> Write:
    return lambda _builder, renamed: renamed(source)


def _before_rounding(values: dict[Expression, Expression], expression: Expression) -> Expression | None:
    """Return the float32 that an expression is the rounding of, or None."""
    while isinstance(values.get(expression), relax.Var):
        expression = values[expression]
    value = values.get(expression)
    if value is None or not _converts(value, "bfloat16", "float16"):
        return None
    source = value.args[0]
    return source if isinstance(source, relax.Var) and str(source.ty.dtype) == "float32" else None


def _converts(value: Expression, *dtypes: str) -> bool:
    """Say whether a value is a conversion to one of some types."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    return value.op.name == "relax.astype" and str(value.ty.dtype) in dtypes
