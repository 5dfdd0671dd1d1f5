"""Make an ONNX graph fit for import: static, without what can be computed now, with padding spelled out.

TVM's importer turns every initialiser into a parameter, and what ONNX computes from constants into operators
that run each time. So nodes over constants are evaluated here by onnx's own reference, a shape that is known
becomes a constant, and `auto_pad` becomes explicit padding, which the importer would otherwise hide in a
kernel. Checked in tests/tuner/frontend/test_onnx_graph.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tuner.frontend.shapes import static_shapes

OnnxModel: TypeAlias = Any
"""An `onnx.ModelProto`; its types are generated and not known to the type checker."""

OnnxNode: TypeAlias = Any
"""An `onnx.NodeProto`."""

Shapes: TypeAlias = Mapping[str, tuple[int, ...] | None]
"""Shapes by name of tensor; None, or no entry, where one is not known."""

_LARGEST_SHAPE = 1024
"""Elements above which a constant is taken for a weight, which no shape follows from."""

_RANDOM = (
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)


_SCOPES = "pkg.torch.onnx.name_scopes"
"""Key of the metadata of a node under which torch's exporter notes the modules around it."""


def prepare_graph(model: OnnxModel, name: str, shapes: Mapping[str, tuple[int, ...]]) -> OnnxModel:
    """Return a copy of the model whose inputs are static, with constants folded and padding explicit.

    Args:
        model: as it was loaded; its initialisers may be listed as inputs, as old files do.
        name: of the model, for messages.
        shapes: wanted shapes by name of input; every symbolic input needs one.

    Raises:
        UnknownNameError: a shape is given for what is no input.
        ValueError: an input has symbolic extents and no shape is given, or the given one does not fit.
    """
    prepared = type(model)()
    prepared.CopyFrom(model)
    graph = prepared.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    _bind_shapes(list(graph.input), name, shapes)
    # What a file says of tensors in between and of results may be symbolic: it is inferred anew.
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    shapes_by_name = _infer_shapes(prepared)
    while _fold_constants(prepared, shapes_by_name):
        shapes_by_name = _infer_shapes(prepared)
    _simplify(prepared, shapes_by_name)
    _spell_out_padding(prepared, shapes_by_name)
    return prepared


def graph_operators(model: OnnxModel) -> tuple[str, ...]:
    """Return the names of the operators that the graph uses, with their domain where it is not ONNX's own."""
    names = {
        f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for node in model.graph.node
    }
    return tuple(sorted(names))


def _bind_shapes(inputs: list[Any], name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    declared = {value.name: _declared_shape(value) for value in inputs}
    bound = static_shapes(name, declared, shapes)
    for value in inputs:
        for dimension, extent in zip(value.type.tensor_type.shape.dim, bound[value.name], strict=True):
            dimension.Clear()
            dimension.dim_value = extent


def _declared_shape(value: Any) -> tuple[int, ...]:
    """Return the extents that a file declares, 0 where one is symbolic."""
    return tuple(int(dimension.dim_value) for dimension in value.type.tensor_type.shape.dim)


def _infer_shapes(model: OnnxModel) -> Shapes:
    """Return the shape of every tensor by name; None where onnx's inference cannot tell.

    Inference reads small constants only, so large ones are handed to it as inputs: it copies what it is
    given, and can take no more than 2 GiB.
    """
    graph = model.graph
    large = [tensor for tensor in graph.initializer if math.prod(tensor.dims) > _LARGEST_SHAPE]
    small = [tensor for tensor in graph.initializer if math.prod(tensor.dims) <= _LARGEST_SHAPE]
    weights = [helper.make_tensor_value_info(item.name, item.data_type, item.dims) for item in large]
    light = helper.make_model(
        helper.make_graph(graph.node, "light", [*graph.input, *weights], graph.output, small),
        opset_imports=list(model.opset_import),
        # Before version 4 the inference looks for initialisers among the inputs alone.
        ir_version=max(model.ir_version, 4),
        functions=list(model.functions),
    )
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    constants = {tensor.name: tuple(tensor.dims) for tensor in small}
    return {value.name: _known_shape(value) for value in values} | constants


def _fold_constants(model: OnnxModel, shapes: Shapes) -> bool:
    """Evaluate every node whose inputs, or whose input's shape, are known; return whether there was one."""
    graph = model.graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    folded: dict[str, np.ndarray] = {}
    kept = []
    for node in graph.node:
        results = _evaluate(node, values, shapes, model)
        if results is None:
            kept.append(node)
        values |= results or {}
        folded |= results or {}
    if not folded:
        return False
    used = {name for node in kept for name in _names_used(node)} | {output.name for output in graph.output}
    unused = [index for index, tensor in enumerate(graph.initializer) if tensor.name not in used]
    for index in reversed(unused):
        del graph.initializer[index]
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in folded.items() if name in used
    )
    del graph.node[:]
    graph.node.extend(kept)
    return True


def _evaluate(
    node: OnnxNode,
    values: Mapping[str, np.ndarray],
    shapes: Shapes,
    model: OnnxModel,
) -> dict[str, np.ndarray] | None:
    """Return the node's outputs by name, or None where they are known only when the model runs."""
    if node.op_type == "Shape" and not node.attribute and shapes.get(node.input[0]) is not None:
        return {node.output[0]: np.array(shapes[node.input[0]], dtype="int64")}
    if node.op_type in _RANDOM or any(attribute.HasField("g") for attribute in node.attribute):
        return None
    if any(name and name not in values for name in node.input):
        return None
    evaluator = ReferenceEvaluator(_single_node_model(node, model))
    results = evaluator.run(None, {name: values[name] for name in node.input if name})
    return dict(zip(node.output, map(np.asarray, results), strict=True))


def _single_node_model(node: OnnxNode, model: OnnxModel) -> OnnxModel:
    inputs = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(node.input) if name]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "constant", inputs, outputs)
    return helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)


def _known_shape(value: Any) -> tuple[int, ...] | None:
    dimensions = value.type.tensor_type.shape.dim
    if not value.type.tensor_type.HasField("shape") or not all(d.HasField("dim_value") for d in dimensions):
        return None
    return tuple(int(dimension.dim_value) for dimension in dimensions)


def _names_used(node: OnnxNode) -> tuple[str, ...]:
    """Return every name a node reads, also inside the graphs of its branches."""
    inner = [
        name
        for attribute in node.attribute
        if attribute.HasField("g")
        for branch in attribute.g.node
        for name in _names_used(branch)
    ]
    return (*node.input, *inner)


def _simplify(model: OnnxModel, shapes: Shapes) -> None:
    """Write what the importer takes badly as what it takes well, and drop dropout and identities."""
    graph = model.graph
    outputs = {output.name for output in graph.output}
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        if node.op_type in ("Dropout", "Identity") and node.output[0] not in outputs:
            renamed[node.output[0]] = node.input[0]
        elif node.op_type == "Sum" and len(node.input) > 1:
            nodes.extend(_additions(node))
        elif node.op_type == "PRelu":
            _spread_slope(node, model, shapes)
            nodes.extend(_two_sides(node))
        else:
            nodes.append(node)
    for node in nodes:
        node.name = _scoped_name(node) or node.name or node.output[0]
    del graph.node[:]
    graph.node.extend(nodes)


def _scoped_name(node: OnnxNode) -> str:
    """Return `/path/of/module/operator` from the scopes that torch's newer exporter notes; empty without.

    It writes the path of every enclosing module and then the operator, as a list: `['', 'h', 'h.0', 'add']`.
    """
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            *modules, operator = re.findall(r"'([^']*)'", entry.value) or [""]
            innermost = modules[-1] if modules else ""
            return f"/{innermost}/{operator}" if innermost else ""
    return ""


def _additions(node: OnnxNode) -> list[OnnxNode]:
    """Return the additions, from the left, that a sum of several tensors stands for."""
    partial = [f"{node.output[0]}/partial{index}" for index in range(1, len(node.input) - 1)]
    results = [*partial, node.output[0]]
    lefts = [node.input[0], *partial]
    return [
        helper.make_node("Add", [left, right], [result], name=node.name)
        for left, right, result in zip(lefts, node.input[1:], results, strict=True)
    ]


def _spread_slope(node: OnnxNode, model: OnnxModel, shapes: Shapes) -> None:
    """Give a slope of PRelu-6, one a channel, the axes by which it broadcasts as later versions ask for."""
    graph, slope = model.graph, node.input[1]
    version = max(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))
    shape = shapes.get(node.input[0])
    for tensor in graph.initializer:
        if version < 7 and tensor.name == slope and shape is not None and len(tensor.dims) == 1:
            tensor.dims.extend([1] * (len(shape) - 2))


def _two_sides(node: OnnxNode) -> list[OnnxNode]:
    """Return `relu(x) - slope · relu(-x)`, which has a gradient and takes any slope that broadcasts."""
    x, slope = node.input
    positive, flipped, negative, scaled = (
        f"{node.output[0]}/{part}" for part in ("pos", "flip", "neg", "scaled")
    )
    return [
        helper.make_node("Relu", [x], [positive], name=node.name),
        helper.make_node("Neg", [x], [flipped], name=node.name),
        helper.make_node("Relu", [flipped], [negative], name=node.name),
        helper.make_node("Mul", [negative, slope], [scaled], name=node.name),
        helper.make_node("Sub", [positive, scaled], [node.output[0]], name=node.name),
    ]


def _spell_out_padding(model: OnnxModel, shapes: Shapes) -> None:
    """Replace `auto_pad = SAME_UPPER | SAME_LOWER | VALID` by `pads`, where the input's shape is known."""
    for node in model.graph.node:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        rule = attributes.get("auto_pad", b"NOTSET").decode()
        shape = shapes.get(node.input[0]) if node.input else None
        if rule == "NOTSET" or shape is None or node.op_type not in ("Conv", "MaxPool", "AveragePool"):
            continue
        kernel = attributes.get("kernel_shape") or (shapes[node.input[1]] or ())[2:]
        pads = _pads(rule, shape[2:], tuple(kernel), attributes)
        remaining = [a for a in node.attribute if a.name not in ("auto_pad", "pads")]
        del node.attribute[:]
        node.attribute.extend([*remaining, helper.make_attribute("pads", pads)])


def _pads(
    rule: str, extents: tuple[int, ...], kernel: tuple[int, ...], attributes: Mapping[str, Any]
) -> list[int]:
    """Return padding before each axis and then after each, by ONNX's rule for Conv-11 and MaxPool-12."""
    axes = range(len(extents))
    strides = attributes.get("strides") or [1 for _ in axes]
    dilations = attributes.get("dilations") or [1 for _ in axes]
    if rule == "VALID":
        return [0 for _ in axes] * 2
    totals = [
        max(
            0,
            (-(-extents[i] // strides[i]) - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - extents[i],
        )
        for i in axes
    ]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return small + large if rule == "SAME_UPPER" else large + small
