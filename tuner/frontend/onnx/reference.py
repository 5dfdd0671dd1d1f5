"""Results of one node of constants, by onnx's own reference.

The reference lacks older versions of some operators, and takes those of others for later ones: such nodes
are written in a later opset by onnx's own converter first. A node that it does not run even so has no result
here, and is computed when the model runs. Checked in tests/tuner/frontend/onnx/test_reference.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
from onnx import helper, version_converter
from onnx.reference import ReferenceEvaluator

from tuner.frontend.onnx.rewrite import OnnxModel, OnnxNode, opset_of

logger = logging.getLogger(__name__)

MISREAD_BEFORE: Mapping[str, int] = {
    "BatchNormalization": 14,
    "Hardmax": 13,
    "LogSoftmax": 13,
    "Softmax": 13,
}
"""Operators by the version before which the reference gives other results than ONNX says: it takes softmaxes
for those of one axis, and normalises by the batch."""

_NEW_OPSET = 21
"""To which nodes are converted: the reference has all operators of it that it has of any."""


def results_of(
    node: OnnxNode, values: Mapping[str, np.ndarray], model: OnnxModel
) -> dict[str, np.ndarray] | None:
    """Return a node's results by name, or None where the reference cannot tell.

    Args:
        node: holds no graphs, and draws no random numbers.
        values: of its inputs, by name.
        model: tells the versions of its operators.

    Raises:
        MemoryError: the results do not fit in memory.
    """
    is_misread = opset_of(model) < MISREAD_BEFORE.get(node.op_type, 0)
    for is_converted in (True,) if is_misread else (False, True):
        try:
            return _run(_single_node_model(node, values, model, is_converted=is_converted), values)
        except MemoryError:
            raise
        except Exception as error:  # foreign code: the reference and the converter raise errors of any kind
            logger.debug("onnx's reference does not run %s: %s", node.op_type, error)
    return None


def _run(single: OnnxModel, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    given = {each.name: values[each.name] for each in single.graph.input}
    results = ReferenceEvaluator(single).run(None, given)
    names = (output.name for output in single.graph.output)
    return dict(zip(names, map(np.asarray, results), strict=True))


def _single_node_model(
    node: OnnxNode, values: Mapping[str, np.ndarray], model: OnnxModel, *, is_converted: bool
) -> OnnxModel:
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(values[name].dtype), values[name].shape
        )
        for name in dict.fromkeys(node.input)
        if name
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "constant", inputs, outputs)
    single = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    return version_converter.convert_version(single, _NEW_OPSET) if is_converted else single
