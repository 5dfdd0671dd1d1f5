"""Name the uses of operators that TVM's importer takes and gives other results for than ONNX.

Checked in tests/tuner/frontend/onnx/test_refusals.py.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tuner.frontend.onnx.rewrite import OnnxModel, OnnxNode, text_of


def refused_use(model: OnnxModel) -> str:
    """Return which node is used as it cannot be imported, and why; empty where all can be."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    constants |= {
        node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"
    }

    def value(node: OnnxNode, place: int) -> np.ndarray | None:
        """Return an input that is a constant; an absent one, or another, is None."""
        name = node.input[place] if place < len(node.input) else ""
        return numpy_helper.to_array(constants[name]) if name in constants else None

    for given in (*model.graph.input, *model.graph.initializer):
        kind = given.data_type if hasattr(given, "data_type") else given.type.tensor_type.elem_type
        if kind in _NARROW:
            return f"{given.name!r} is of type {_name_of(kind)}"
    results = {output.name for output in model.graph.output}
    for node in model.graph.node:
        said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        reason = ""
        if node.op_type == "BatchNormalization" and said.get("training_mode", 0):
            reason = "normalises by the batch, as in training"
        elif node.op_type == "Dropout" and _is_random(node, value(node, 1), value(node, 2)):
            reason = "draws what it drops, as in training"
        elif node.op_type == "NonMaxSuppression":
            reason = "gives as many boxes as its values say"
        elif node.op_type == "RoiAlign" and text_of(said.get("mode", "avg")) != "avg":
            reason = "takes the largest of sampled values"
        elif node.op_type in _SEQUENCES and results.intersection(node.output):
            reason = "gives the model's user a sequence, where only tensors can be given"
        elif node.op_type == "Cast" and said.get("to") in _NARROW:
            reason = f"makes numbers of {_name_of(said['to'])}"
        if reason:
            return f"{node.op_type} {node.name or node.output[0]!r} {reason}"
    return ""


_SEQUENCES = frozenset({"SequenceConstruct", "SequenceErase", "SequenceInsert", "SplitToSequence"})
"""Operators whose result is a sequence."""

_NARROW = frozenset(
    number for name, number in TensorProto.DataType.items() if name.startswith(("FLOAT8", "FLOAT4"))
)
"""Types of floating point of a byte or less, whose numbers TVM converts otherwise than ONNX."""


def _name_of(kind: int) -> str:
    return str(TensorProto.DataType.Name(kind)).lower()


def _is_random(node: OnnxNode, ratio: np.ndarray | None, mode: np.ndarray | None) -> bool:
    """Whether a dropout of version 12 or later drops anything."""
    if len(node.input) < 3 or not node.input[2]:
        return False
    is_off = mode is not None and not mode.any()
    return not is_off and not (ratio is not None and not ratio.any())
