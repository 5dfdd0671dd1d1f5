"""Write products and convolutions of quantised numbers in floating point, with one rounding at the end.

TVM's importer has none of them. Whole numbers of eight bits, less their zero points, are multiplied and
added as numbers of floating point, which is exact as long as a sum fits the type's digits; the sum is scaled
once, as ONNX defines it, and rounded to the nearest even number. Where the result is a whole number itself
(`ConvInteger`) and a sum may be too large for float32, it is computed in float64. Checked against onnx's
reference in tests/tuner/frontend/onnx/test_quantised.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tuner.frontend.onnx.rewrite import NodeWriter, OnnxModel, OnnxNode, Shapes

_EXACT = 2**24
"""Whole numbers below are numbers of float32."""

_LARGEST_PRODUCT = 255 * 255
"""Of two numbers of eight bits less their zero points."""


def write_out_quantised(model: OnnxModel, shapes: Shapes) -> bool:
    """Replace quantised products and convolutions; return whether there was one.

    Args:
        model: is changed.
        shapes: by name of tensor; those of scales, zero points and kernels are needed.
    """
    nodes: list[OnnxNode] = []
    constants: dict[str, Any] = {}
    for node in model.graph.node:
        write = _WRITERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        writer = _Writer(node, shapes=shapes)
        if write is not None and write(node, writer):
            nodes.extend(writer.nodes)
            constants |= writer.constants
        else:
            nodes.append(node)
    if len(nodes) == len(model.graph.node):
        return False
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(constants.values())
    return True


@dataclass
class _Writer(NodeWriter):
    """Collects constants as well, and knows shapes."""

    shapes: Shapes = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)

    def along(self, x: str, axis: int, rank: int) -> str:
        """Return one number for all, or one for each place of an axis, so that it broadcasts there."""
        shape = [1] * rank
        shape[axis] = -1
        name = f"{self.origin.output[0]}/shape{len(self.nodes)}"
        self.constants[name] = numpy_helper.from_array(np.array(shape, "int64"), name)
        return self.emit("Reshape", x, name)

    def shifted(self, x: str, zero: str, axis: int, dtype: int) -> str:
        """Return whole numbers less their zero point, 0 where it is left out, in floating point."""
        wide = self.emit("Cast", x, to=dtype)
        if not zero:
            return wide
        return self.emit("Sub", wide, self.along(self.emit("Cast", zero, to=dtype), axis, self.rank(x)))

    def scale(self, name: str, axis: int, rank: int) -> str:
        return self.along(self.emit("Cast", name, to=TensorProto.FLOAT), axis, rank)

    def rank(self, name: str) -> int:
        return len(self.shapes[name] or ())

    def knows(self, *names: str) -> bool:
        """Say whether the shapes of tensors are known; one that is left out has none."""
        return all(self.shapes.get(name) is not None for name in names if name)

    def is_of_one_axis(self, *names: str) -> bool:
        """Say whether tensors are single numbers, or one for each place of one axis."""
        return all(len(self.shapes.get(name) or ()) <= 1 for name in names if name)


def _matrix_product(node: OnnxNode, writer: _Writer) -> bool:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.input
    details = (a_scale, a_zero, b_scale, b_zero, y_scale, y_zero)
    if not writer.knows(a, b, *details) or not writer.is_of_one_axis(*details):
        return False
    if min(writer.rank(a), writer.rank(b)) < _MATRIX:
        return False
    rank = max(writer.rank(a), writer.rank(b))
    one = writer.shifted(a, a_zero, -2, TensorProto.FLOAT)
    other = writer.shifted(b, b_zero, -1, TensorProto.FLOAT)
    factor = writer.emit("Mul", writer.scale(a_scale, -2, rank), writer.scale(b_scale, -1, rank))
    factor = writer.emit("Div", factor, writer.scale(y_scale, -2, rank))
    _round(writer, writer.emit("Mul", writer.emit("MatMul", one, other), factor), y_zero)
    return True


def _convolution(node: OnnxNode, writer: _Writer) -> bool:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = [*node.input, ""][:9]
    details = (x_scale, x_zero, w_scale, w_zero, y_scale, y_zero)
    if not writer.knows(x, w, *details) or not writer.is_of_one_axis(*details):
        return False
    rank = writer.rank(x)
    image = writer.shifted(x, x_zero, 1, TensorProto.FLOAT)
    kernel = writer.shifted(w, w_zero, 0, TensorProto.FLOAT)
    added = [writer.emit("Cast", bias, to=TensorProto.FLOAT)] if bias else []
    found = writer.emit("Conv", image, kernel, *added, **_attributes(node))
    factor = writer.emit("Mul", writer.scale(x_scale, 1, rank), writer.scale(w_scale, 1, rank))
    factor = writer.emit("Div", factor, writer.scale(y_scale, 1, rank))
    _round(writer, writer.emit("Mul", found, factor), y_zero)
    return True


def _whole_convolution(node: OnnxNode, writer: _Writer) -> bool:
    x, w, x_zero, w_zero = [*node.input, "", ""][:4]
    if not writer.knows(x, w, x_zero, w_zero) or not writer.is_of_one_axis(x_zero, w_zero):
        return False
    terms = math.prod((writer.shapes[w] or ())[1:])
    dtype = TensorProto.FLOAT if terms * _LARGEST_PRODUCT < _EXACT else TensorProto.DOUBLE
    image, kernel = writer.shifted(x, x_zero, 1, dtype), writer.shifted(w, w_zero, 0, dtype)
    found = writer.emit("Conv", image, kernel, **_attributes(node))
    writer.emit("Cast", found, result=node.output[0], to=TensorProto.INT32)
    return True


_MATRIX = 2
"""Axes of a matrix."""

_WRITERS: dict[str, Callable[[OnnxNode, _Writer], bool]] = {
    "ConvInteger": _whole_convolution,
    "QLinearConv": _convolution,
    "QLinearMatMul": _matrix_product,
}


def _round(writer: _Writer, x: str, zero: str) -> None:
    """Write the result: the nearest whole numbers, from their zero point on, within their type."""
    name = f"{writer.origin.output[0]}/one"
    writer.constants[name] = numpy_helper.from_array(np.array(1.0, "float32"), name)
    writer.emit("QuantizeLinear", x, name, zero, result=writer.origin.output[0])


def _attributes(node: OnnxNode) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
