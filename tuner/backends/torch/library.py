"""torch's kernels, several operators per call: MKL and oneDNN on a CPU, cuBLAS and cuDNN on a GPU.

A partition that is one library call becomes one packed call without a copy of its operands. A call through
Python and DLPack costs some 8 us, which is part of every measurement. Checked in tests/tuner/backends/.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from tuner.backends.library_call import LibraryCall, recognise_call, shape_of
from tuner.backends.torch.attention_patterns import attention_patterns
from tuner.backends.torch.half_calls import half_patterns, recognise_half_call
from tuner.backends.torch.operators import TorchCalls, is_one_torch_call
from tuner.backends.tvm.native import as_public, replace_function
from tuner.graph.relax_types import IRModule, RelaxFunction, weights_of
from tuner.rules.combinators import Union
from tuner.rules.pattern import LabelledPattern
from tuner.rules.protocol import Rule
from tuner.rules.styles import library_rule
from tuner.runtime.library_calls import Convolution, Linear, encode_call
from tuner.targets.target import Target

_CALLS_MODULE = "tuner.runtime.torch_calls"

_ACTIVATIONS = ("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "sigmoid", "tanh")


class TorchLibrary:
    """Runs linear layers, convolutions, attention, normalisation and torch calls with torch."""

    name = "torch"
    settings = ""
    reference = "torch"
    packs_weights = True
    runs_torch_calls = True

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return torch's version, which fixes those of the libraries inside it."""
        return (("torch", importlib.metadata.version("torch")),)

    def unavailable_reason(self, target: Target) -> str | None:
        """Say that torch is not installed, or cannot reach the device."""
        if importlib.util.find_spec("torch") is None:
            return "torch is not installed; install the extra `torch`"
        if target.kind == "cuda" and not importlib.import_module("torch").cuda.is_available():
            return "this torch finds no CUDA device"
        return None

    def rule(self, target: Target) -> Rule:
        """Return the rule that proposes each library call, and each torch call of the importer's."""
        calls = library_rule((*LIBRARY_PATTERNS, *half_patterns()), name=self.name)
        return Union(self.name, (calls, TorchCalls()))

    def refusal(self, function: RelaxFunction, target: Target) -> str | None:
        """Say that the function is not exactly one call."""
        if _recognised(function) is None and not is_one_torch_call(function):
            return (
                "it is not one linear layer, convolution, attention, layer norm or softmax of float32 or "
                "bfloat16"
            )
        return None

    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each function as one packed call."""
        importlib.import_module(_CALLS_MODULE)  # registers the packed function, and imports torch
        for name in functions:
            function = module[name]
            lowered = (
                tvm.IRModule({"main": as_public(function)})  # it is a packed call as the importer wrote it
                if is_one_torch_call(function)
                else _called(function, target)
            )
            module = replace_function(module, name, lowered)
        return module


def _recognised(function: RelaxFunction) -> LibraryCall | None:
    return recognise_call(function) or recognise_half_call(function)


def _called(function: RelaxFunction, target: Target) -> IRModule:
    found = _recognised(function)
    if found is None:
        raise ValueError("the function is not one library call; ask `refusal` before lowering")
    fresh = {parameter: relax.Var(parameter.name, parameter.ty) for parameter in function.params}
    operands = [fresh.get(operand, operand) for operand in found.operands]
    text = tvm.ir.StringImm(encode_call(found.call))
    builder = relax.BlockBuilder()
    with builder.function("main", list(fresh.values())):
        with builder.dataflow():
            if target.kind == "cpu" and _is_packed(found, function):
                data, *weights = operands
                extents = relax.ShapeExpr(shape_of(data))
                packed = builder.emit(
                    relax.call_pure_packed(
                        "tessel.torch.pack", text, extents, *weights, ty_args=relax.ObjectType()
                    )
                )
                call = relax.call_dps_packed(
                    "tessel.torch.call_packed", [packed, data], out_ty=function.ret_ty
                )
            else:
                call = relax.call_dps_packed("tessel.torch.call", [text, *operands], out_ty=function.ret_ty)
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    return builder.get()


def _is_packed(found: LibraryCall, function: RelaxFunction) -> bool:
    """Say whether a call's matrix or filters never change, and its bias neither, while its data does."""
    constant = {function.params[position] for position in weights_of(function)}
    if not set(found.operands[1:]) <= constant or found.operands[0] in constant:
        return False
    if isinstance(found.call, Linear):
        return not found.call.left_transposed and len(shape_of(found.operands[1])) == 2
    return isinstance(found.call, Convolution)


def _patterns() -> tuple[LabelledPattern, ...]:
    patterns = [LabelledPattern("attention", pattern) for pattern in attention_patterns(wildcard)]
    for core, label in ((_product, "linear"), (_convolution, "convolution")):
        for variant in range(4 if label == "linear" else 1):
            for with_bias in (False, True):
                for activation in ("", *_ACTIVATIONS):
                    pattern = core(variant)
                    pattern = is_op("relax.add")(pattern, wildcard()) if with_bias else pattern
                    pattern = is_op(f"relax.{activation}")(pattern) if activation else pattern
                    patterns.append(LabelledPattern(_label(label, with_bias, activation), pattern))
    patterns.append(
        LabelledPattern("layer_norm", is_op("relax.nn.layer_norm")(wildcard(), wildcard(), wildcard()))
    )
    for name in ("softmax", "log_softmax"):
        patterns.append(LabelledPattern(name, is_op(f"relax.nn.{name}")(wildcard())))
    return tuple(patterns)


def _label(core: str, with_bias: bool, activation: str) -> str:
    return "_".join(part for part in (core, "bias" * with_bias, activation.removeprefix("nn.")) if part)


def _product(variant: int) -> Any:
    """Return a product whose left, right, both or neither operand is transposed first."""
    operands = [is_op("relax.permute_dims")(wildcard()) if variant & bit else wildcard() for bit in (1, 2)]
    return is_op("relax.matmul")(*operands)


def _convolution(_variant: int) -> Any:
    return is_op("relax.nn.conv2d")(wildcard(), wildcard())


LIBRARY_PATTERNS = _patterns()
"""One pattern for each variant of a call that libraries of tensor operators have."""
