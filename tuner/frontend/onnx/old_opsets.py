"""Bring a graph of an old opset to operators that TVM's importer takes.

Files of model zoos are of opsets 6 to 12, where axes, pads and scales are attributes, `Upsample` resizes, a
softmax flattens what follows its axis, and a batch may be normalised element by element. onnx's own version
converter rewrites them; what it gets wrong or refuses is written here. A graph without such operators, or
that the converter does not take, stays as it is: the importer then names what it lacks. Checked in
tests/tuner/frontend/onnx/test_old_opsets.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper, numpy_helper, version_converter

from tuner.frontend.onnx.rewrite import OnnxModel, OnnxNode, Shapes, opset_of, take_graph

logger = logging.getLogger(__name__)

_NEW_OPSET = 13

_CHANGED = {
    "Resize": 11,
    "Slice": 10,
    "TopK": 11,
    "Upsample": 10,
}
"""Operators by the version since which the importer takes them as they are."""

_DROPPED = {"Reshape": "shape"}
"""Attributes that later versions take as inputs."""

_BROADCAST_SINCE = 7
"""The version since which operands broadcast by their last axes; before, by those from `axis` on."""

_PLACED_SINCE = 11
"""The version since which `Resize` says where it samples; before, it did so from the corner, rounded down."""


def has_old_operators(model: OnnxModel) -> bool:
    """Say whether the importer takes an operator of the graph only as later versions have it."""
    opset = opset_of(model)
    return any(
        opset < _CHANGED.get(node.op_type, 0)
        or any(attribute.name == _DROPPED.get(node.op_type) for attribute in node.attribute)
        for node in model.graph.node
    )


def raise_opset(model: OnnxModel, inferred: OnnxModel) -> None:
    """Write a graph in operators of a later opset, where onnx's converter can.

    Args:
        model: is changed.
        inferred: the same graph with the shapes of its tensors and without its large constants, which the
            converter would copy.
    """
    opset = opset_of(model)
    try:
        converted = version_converter.convert_version(inferred, _NEW_OPSET)
    except Exception as error:  # foreign code: an assertion in C++, of a kind that is not told
        logger.debug("onnx does not convert opset %d: %s", opset, error)
        return
    take_graph(model, converted)
    if opset < _PLACED_SINCE:
        for node in model.graph.node:
            if node.op_type == "Resize":
                _place_at_corner(node)


def _place_at_corner(node: OnnxNode) -> None:
    """Let a node sample as before it said where, which the converter does not."""
    placed = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    kept = [attribute for attribute in node.attribute if attribute.name not in placed]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in placed.items())])


def align_operands(model: OnnxModel, shapes: Shapes) -> bool:
    """Give operands that broadcast from an axis on the axes that follow; return whether there were any.

    Those whose shapes are not known yet stay; what follows one that is aligned may be known then.
    """
    if opset_of(model) >= _BROADCAST_SINCE:
        return False
    nodes: list[OnnxNode] = []
    is_changed = False
    for node in model.graph.node:
        said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        known = [shapes.get(name) for name in node.input]
        if "axis" in said and said.get("broadcast", 0) and len(known) == 2 and None not in known:
            whole, part = (len(shape or ()) for shape in known)
            following = whole - said["axis"] % whole - part
            kept = [attribute for attribute in node.attribute if attribute.name != "axis"]
            if following > 0:
                aligned = f"{node.output[0]}/aligned"
                axes = list(range(part, part + following))
                nodes.append(helper.make_node("Unsqueeze", [node.input[1]], [aligned], axes=axes))
                node.input[1] = aligned
            del node.attribute[:]
            node.attribute.extend(kept)
            is_changed = True
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return is_changed


def normalise_by_element(model: OnnxModel) -> None:
    """Write batch normalisation of each element (`spatial = 0`, until version 9) as what it computes."""
    graph = model.graph
    nodes: list[OnnxNode] = []
    for node in graph.node:
        said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type != "BatchNormalization" or said.get("spatial", 1) or len(node.output) != 1:
            nodes.append(node)
            continue
        made, epsilon = _by_element(node, said)
        nodes.extend(made)
        graph.initializer.append(epsilon)
    del graph.node[:]
    graph.node.extend(nodes)


def _by_element(node: OnnxNode, said: Mapping[str, Any]) -> tuple[list[OnnxNode], Any]:
    """Return `(x - mean) / sqrt(variance + ε) · scale + shift`, which broadcasts over the batch, and ε."""
    x, scale, shift, mean, variance = node.input
    (result,) = node.output
    names = {
        part: f"{result}/{part}" for part in ("epsilon", "centred", "shifted", "deviation", "unit", "scaled")
    }
    epsilon = np.array(said.get("epsilon", 1e-5), "float32")
    calls = [
        ("Sub", (x, mean), names["centred"]),
        ("Add", (variance, names["epsilon"]), names["shifted"]),
        ("Sqrt", (names["shifted"],), names["deviation"]),
        ("Div", (names["centred"], names["deviation"]), names["unit"]),
        ("Mul", (names["unit"], scale), names["scaled"]),
        ("Add", (names["scaled"], shift), result),
    ]
    made = [helper.make_node(kind, inputs, [output], name=node.name) for kind, inputs, output in calls]
    return made, numpy_helper.from_array(epsilon, names["epsilon"])
