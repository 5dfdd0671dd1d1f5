"""Write out operators that ONNX Runtime puts in place of several, in files that it optimised.

These are operators of the domain `com.microsoft`, which onnx does not define: products with a transposition
and a factor, approximations of GELU, a sum before a normalisation, an activation after a convolution. Others
of that domain, and uses with further results or inputs, stay and are refused later by name. Checked against
ONNX Runtime in tests/tuner/frontend/onnx/test_fused.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tuner.frontend.onnx.rewrite import NodeWriter, OnnxModel, OnnxNode, opset_of, text_of

DOMAIN = "com.microsoft"

_NORMALISES_LAYERS_SINCE = 17
"""The version of ONNX that has an operator for it."""

_ACTIVATIONS = {"Identity": (), "LeakyRelu": ("alpha",), "Relu": (), "Sigmoid": (), "Tanh": ()}
"""Activations after a product or a convolution, with what their parameters are, in order."""

_Type = tuple[int, int]
"""Type of the elements, and number of axes."""


def write_out_fused(model: OnnxModel, inferred: OnnxModel) -> bool:
    """Replace fused operators that read tensors of known type; return whether there was one.

    Args:
        model: is changed.
        inferred: the same graph with the types of its tensors.
    """
    types = _types(inferred.graph)
    nodes: list[OnnxNode] = []
    constants: dict[str, Any] = {}
    changed = False
    for node in model.graph.node:
        write = _WRITERS.get(node.op_type) if node.domain == DOMAIN else None
        writer = _Writer(node, types=types, opset=opset_of(model))
        if write is not None and node.input[0] in types and write(node, writer):
            nodes.extend(writer.nodes)
            constants |= writer.constants
            changed = True
        else:
            nodes.append(node)
    if changed:
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        model.graph.initializer.extend(constants.values())
    return changed


def _types(graph: Any) -> dict[str, _Type]:
    found = {tensor.name: (tensor.data_type, len(tensor.dims)) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info):
        kind = value.type.tensor_type
        if kind.elem_type and kind.HasField("shape"):
            found[value.name] = kind.elem_type, len(kind.shape.dim)
    return found


@dataclass
class _Writer(NodeWriter):
    """Collects constants as well, and knows types."""

    types: Mapping[str, _Type] = field(default_factory=dict)
    opset: int = 0
    constants: dict[str, Any] = field(default_factory=dict)

    def number(self, value: float) -> str:
        """Return a constant of the type of the node's first input."""
        dtype = helper.tensor_dtype_to_np_dtype(self.types[self.origin.input[0]][0])
        name = f"{self.origin.output[0]}/number{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.array(value, dtype), name)
        return name

    @property
    def result(self) -> str:
        return str(self.origin.output[0])


def _product(node: OnnxNode, writer: _Writer) -> bool:
    said = _attributes(node)
    if any(said.get(name, 0) for name in ("transBatchA", "transBatchB")):
        return False
    sides = []
    for name, flag in zip(node.input, ("transA", "transB"), strict=True):
        if not said.get(flag, 0):
            sides.append(name)
            continue
        if name not in writer.types or writer.types[name][1] < _MATRIX:
            return False
        *axes, row, column = range(writer.types[name][1])
        sides.append(writer.emit("Transpose", name, perm=[*axes, column, row]))
    product = writer.emit("MatMul", *sides)
    writer.emit("Mul", product, writer.number(said.get("alpha", 1.0)), result=writer.result)
    return True


def _gelu(node: OnnxNode, writer: _Writer) -> bool:
    """Write `x / 2 · (1 + erf(x / √2))`, of the sum with a bias where there is one."""
    x = writer.emit("Add", *node.input) if len(node.input) > 1 else node.input[0]
    share = writer.emit("Erf", writer.emit("Mul", x, writer.number(math.sqrt(0.5))))
    half = writer.emit("Mul", x, writer.number(0.5))
    writer.emit("Mul", half, writer.emit("Add", share, writer.number(1.0)), result=writer.result)
    return True


def _fast_gelu(node: OnnxNode, writer: _Writer) -> bool:
    """Write `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`, of the sum with a bias where there is one."""
    x = writer.emit("Add", *node.input) if len(node.input) > 1 else node.input[0]
    cube = writer.emit("Mul", writer.emit("Mul", x, x), x)
    inner = writer.emit("Add", x, writer.emit("Mul", cube, writer.number(0.044715)))
    share = writer.emit("Tanh", writer.emit("Mul", inner, writer.number(math.sqrt(2 / math.pi))))
    half = writer.emit("Mul", x, writer.number(0.5))
    writer.emit("Mul", half, writer.emit("Add", share, writer.number(1.0)), result=writer.result)
    return True


def _quick_gelu(node: OnnxNode, writer: _Writer) -> bool:
    """Write `x · sigmoid(α x)`."""
    (x,) = node.input
    scaled = writer.emit("Mul", x, writer.number(_attributes(node).get("alpha", 1.702)))
    writer.emit("Mul", x, writer.emit("Sigmoid", scaled), result=writer.result)
    return True


def _skip_layer_normalisation(node: OnnxNode, writer: _Writer) -> bool:
    """Write a sum, and what normalises it along its last axis; the sum may be a result too."""
    x, skip, scale, shift, bias = [*node.input, "", ""][:5]
    _, mean, deviation, total = [*node.output, "", "", ""][:4]
    if mean or deviation or writer.opset < _NORMALISES_LAYERS_SINCE:
        return False
    both = writer.emit("Add", x, skip, result="" if bias else total)
    if bias:
        both = writer.emit("Add", both, bias, result=total)
    given = [both, scale, shift] if shift else [both, scale]
    epsilon = _attributes(node).get("epsilon", 1e-12)
    writer.emit("LayerNormalization", *given, result=writer.result, axis=-1, epsilon=epsilon)
    return True


def _activated(node: OnnxNode, writer: _Writer) -> bool:
    """Write a product or a convolution, a sum where a fourth input stands for one, and an activation."""
    said = _attributes(node)
    kind = text_of(said.pop("activation", b"")) or "Identity"
    numbers = [*said.pop("activation_params", [])]
    numbers += [said.pop(name) for name in list(said) if name.startswith("activation_")]
    if kind not in _ACTIVATIONS or len(numbers) < len(_ACTIVATIONS[kind]):
        return False
    *inputs, added = [*node.input, "", ""][:4]
    found = writer.emit(_ACTIVATED[node.op_type], *filter(None, inputs), **said)
    if added:
        found = writer.emit("Add", found, added)
    parameters = dict(zip(_ACTIVATIONS[kind], numbers, strict=False))
    writer.emit(kind, found, result=writer.result, **parameters)
    return True


_MATRIX = 2
"""Axes of a matrix."""

_ACTIVATED = {"FusedConv": "Conv", "FusedGemm": "Gemm"}
"""What computes the numbers that are activated."""

_WRITERS: dict[str, Callable[[OnnxNode, _Writer], bool]] = {
    "BiasGelu": _gelu,
    "FastGelu": _fast_gelu,
    "FusedConv": _activated,
    "FusedGemm": _activated,
    "FusedMatMul": _product,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_layer_normalisation,
}


def _attributes(node: OnnxNode) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
