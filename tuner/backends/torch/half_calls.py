"""Calls of torch in bfloat16: linear layers, convolutions, attention, layer norms and softmaxes.

The importer widens what an operator of bfloat16 reads, computes in float32 and rounds once
(`tuner.frontend.converters.bfloat16`). A processor with instructions for bfloat16 needs no conversions for
it, nor has a GPU that multiplies on tensor cores, so that a product together with its conversions is one call
here: bfloat16 in, bfloat16 out, sums in float32 between. An activation is left to others, for torch rounds
before it. A mask may be of float32: it is rounded when the call runs. Checked in
tests/tuner/backends/torch/test_half_calls.py.
"""

from __future__ import annotations

from tvm.relax.dpl import is_op, wildcard

from tuner.backends.bfloat16_patterns import HALF, converted, is_half
from tuner.backends.library_call import (
    CallReader,
    LibraryCall,
    read_attention,
    read_convolution,
    read_layer_norm,
    read_linear,
    read_softmax,
)
from tuner.backends.torch.attention_patterns import attention_patterns
from tuner.graph.relax_types import RelaxFunction
from tuner.rules.pattern import DFPattern, LabelledPattern
from tuner.runtime.library_calls import Attention, Convolution, Linear


def recognise_half_call(function: RelaxFunction) -> LibraryCall | None:
    """Return the call of bfloat16 that a function is, or None.

    Its operands are those of bfloat16, before they are widened; a mask is left as it is.
    """
    reader = CallReader(function)
    for read in (read_attention, read_linear, read_convolution, read_layer_norm, read_softmax):
        reader.used.clear()
        rounded = reader.call(reader.result, "relax.astype")
        if rounded is None or str(rounded.ty.dtype) != HALF:
            return None
        found = read(reader, rounded.args[0])
        if found is None or (isinstance(found.call, Linear | Convolution) and found.call.activation):
            continue
        masks = found.operands[3:] if isinstance(found.call, Attention) else ()
        operands = found.operands[: len(found.operands) - len(masks)]
        widened = [reader.call(operand, "relax.astype") for operand in operands]
        if all(each is not None and str(each.args[0].ty.dtype) == HALF for each in widened):
            halves = tuple(each.args[0] for each in widened)
            if reader.used == reader.bound:
                return LibraryCall(found.call, (*halves, *masks))
    return None


def half_patterns() -> tuple[LabelledPattern, ...]:
    """Return a pattern for each variant of a call between conversions."""
    whole = [("attention", core) for core in attention_patterns(_widened)]
    whole.append(("layer_norm", is_op("relax.nn.layer_norm")(_widened(), _widened(), _widened())))
    whole += [(name, is_op(f"relax.nn.{name}")(_widened())) for name in ("softmax", "log_softmax")]
    patterns = [LabelledPattern(f"half_{label}", converted(core), is_half) for label, core in whole]
    for label, cores in (("linear", _products()), ("convolution", [_convolution()])):
        for core in cores:
            for with_bias in (False, True):
                summed = is_op("relax.add")(core, _widened()) if with_bias else core
                name = f"half_{label}{'_bias' * with_bias}"
                patterns.append(LabelledPattern(name, converted(summed), is_half))
    return tuple(patterns)


def _products() -> list[DFPattern]:
    """Return products with the left, right, both or neither operand transposed after it is widened."""
    return [
        is_op("relax.matmul")(*(_transposed() if variant & bit else _widened() for bit in (1, 2)))
        for variant in range(4)
    ]


def _convolution() -> DFPattern:
    return is_op("relax.nn.conv2d")(_widened(), _widened())


def _widened() -> DFPattern:
    return converted(wildcard())


def _transposed() -> DFPattern:
    return is_op("relax.permute_dims")(_widened())
