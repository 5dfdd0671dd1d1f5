"""Values that a file and its import round to neighbouring whole numbers.

A sum in another order may lie on the other side of a half, so that `QuantizeLinear` gives the next whole
number, and the layers behind make much of it. A graph that is cut at its roundings takes what a runtime
rounded as further inputs, so that each part is compared for itself. Checked in
tests/tuner/tuning/test_onnx_import_check.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import helper

from tuner.frontend.onnx.rewrite import OnnxModel

_ROUNDING = frozenset({"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})
"""Operators whose first result is rounded."""

_SUFFIX = "/rounded"

_FEW = 50
"""One value in so many, and one of fewer, may be a tie: a wrong zero point moves all, a wrong scale most."""


def rounded_tensors(model: OnnxModel) -> tuple[str, ...]:
    """Return the names of tensors that nodes of the graph round."""
    return tuple(
        node.output[0]
        for node in model.graph.node
        if node.op_type in _ROUNDING and node.domain in ("", "ai.onnx")
    )


def cut_at_roundings(model: OnnxModel, values: Mapping[str, np.ndarray]) -> None:
    """Let rounded tensors be inputs as well, and what rounds them write to another name.

    Args:
        model: is changed; has static inputs.
        values: of the tensors, by name, in the order of the new inputs; tell types and shapes.
    """
    for node in model.graph.node:
        if node.output and node.output[0] in values:
            node.output[0] += _SUFFIX
    model.graph.input.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    )


def name_in_file(tensor: str) -> str:
    """Return the name that a result of a cut graph has in the file."""
    return tensor.removesuffix(_SUFFIX)


def differ_by_ties(found: np.ndarray, expected: np.ndarray) -> bool:
    """Say whether two rounded tensors are equal up to one step of few values."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    steps = np.abs(found.astype("int64") - expected.astype("int64"))
    few = max(steps.size // _FEW, 1 if steps.size > 1 else 0)
    return bool(steps.max(initial=0) <= 1 and np.count_nonzero(steps) <= few)
