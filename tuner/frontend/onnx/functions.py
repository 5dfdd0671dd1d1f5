"""Write out what ONNX defines by simpler operators: functions of a file's own, and operators that TVM lacks.

ONNX gives a body to some fifty of its operators (attention, rotary embeddings, losses, gated activations);
onnx's own inliner puts it in their place. An operator that TVM's importer takes is left to it. Checked in
tests/tuner/frontend/onnx/test_functions.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from onnx import AttributeProto, TensorProto, defs, helper, inliner
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.frontend.onnx.rewrite import OnnxModel, opset_of, take_graph

logger = logging.getLogger(__name__)

_MAX_DEPTH = 8
"""Functions within functions; onnx's own are three deep at most."""

_OTHER = frozenset({"Attention"})
"""Operators that the importer knows by their name alone: those of another domain, with other inputs."""


def functions_to_write_out(model: OnnxModel) -> tuple[tuple[str, str], ...]:
    """Return domain and name of what is to be written out."""
    own = {(function.domain, function.name) for function in model.functions}
    known = onnx_frontend._get_convert_map()
    opset = opset_of(model)
    found = set()
    for node in model.graph.node:
        key = (node.domain, node.op_type)
        is_taken = node.op_type in known and node.op_type not in _OTHER
        if key in own or (node.domain in ("", "ai.onnx") and not is_taken and _has_body(node.op_type, opset)):
            found.add(key)
    return tuple(sorted(found))


def write_out_functions(model: OnnxModel, inferred: OnnxModel) -> bool:
    """Put the bodies of functions in their place, as far as onnx's inliner can; return whether it could any.

    Args:
        model: is changed; its functions go.
        inferred: the same graph with the shapes of its tensors and without its large constants, which the
            inliner would copy.
    """
    written = inferred
    _name_types(written)
    for _ in range(_MAX_DEPTH):
        functions = functions_to_write_out(written)
        if not functions:
            break
        _spell_out_defaults(written, functions)
        try:
            written = inliner.inline_selected_functions(
                written, list(functions), inline_schema_functions=True
            )
        except Exception as error:  # foreign code: an assertion in C++, of a kind that is not told
            logger.debug("onnx does not write out %s: %s", functions, error)
            break
    if written is inferred:
        return False
    take_graph(model, written)
    del model.functions[:]
    model.functions.extend(written.functions)
    return True


def _name_types(model: OnnxModel) -> None:
    """State the types of constants, and of inputs that are left out: the inliner asks for every one."""
    graph = model.graph
    known = {value.name for value in (*graph.input, *graph.value_info)}
    graph.value_info.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name not in known
    )
    graph.value_info.append(helper.make_tensor_value_info("", TensorProto.FLOAT, []))


def _spell_out_defaults(model: OnnxModel, functions: Sequence[tuple[str, str]]) -> None:
    """Give nodes the attributes that they leave to their default, which the inliner would drop."""
    opset = opset_of(model)
    for node in model.graph.node:
        if (node.domain, node.op_type) not in functions or node.domain not in ("", "ai.onnx"):
            continue
        given = {attribute.name for attribute in node.attribute}
        for name, attribute in defs.get_schema(node.op_type, opset, "").attributes.items():
            if name not in given and attribute.default_value.type != AttributeProto.UNDEFINED:
                node.attribute.append(attribute.default_value)


def _has_body(operator: str, opset: int) -> bool:
    """Say whether onnx gives an operator of its own a body in a version."""
    try:
        schema = defs.get_schema(operator, opset, "")
    except defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)
