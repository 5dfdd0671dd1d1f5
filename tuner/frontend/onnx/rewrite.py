"""Rewrite operators that TVM's ONNX importer mishandles into ones that it imports correctly.

Sums become additions, PRelu two sides, and `auto_pad` explicit padding, which the importer would hide in a
kernel; `TopK` in any order becomes one in order; dropout, identities and places of maxima that nobody reads
go; and nodes without a name get one. Checked in tests/tuner/frontend/onnx/test_graph.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from onnx import helper, numpy_helper

OnnxModel: TypeAlias = Any
"""An `onnx.ModelProto`; its types are generated and not known to the type checker."""

OnnxNode: TypeAlias = Any
"""An `onnx.NodeProto`."""

Shapes: TypeAlias = Mapping[str, tuple[int, ...] | None]
"""Shapes by name of tensor; None, or no entry, where one is not known."""

Constant: TypeAlias = Callable[[Any], np.ndarray | None]
"""Gives the value of an input that is a constant; None for others, and for an input that is left out."""

_SCOPES = "pkg.torch.onnx.name_scopes"
"""Key of the metadata of a node under which torch's exporter notes the modules around it."""


def opset_of(model: OnnxModel) -> int:
    """Return the version of ONNX's own operators that a model uses."""
    return max(
        (int(item.version) for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0
    )


def take_graph(model: OnnxModel, rewritten: OnnxModel) -> None:
    """Take the nodes, new constants and opsets of a rewritten graph, which held no large constants.

    Args:
        model: is changed; its own constants stay.
        rewritten: what a tool of onnx made of it.
    """
    graph = model.graph
    known = {tensor.name for tensor in graph.initializer}
    graph.initializer.extend(tensor for tensor in rewritten.graph.initializer if tensor.name not in known)
    del graph.node[:]
    graph.node.extend(rewritten.graph.node)
    del model.opset_import[:]
    model.opset_import.extend(rewritten.opset_import)


def text_of(value: bytes | str) -> str:
    """Return an attribute of text, which onnx gives as bytes."""
    return value.decode() if isinstance(value, bytes) else value


@dataclass
class NodeWriter:
    """Collects the nodes that take a node's place, under names after its own and with its notes.

    Attributes:
        nodes: what was written, in order.
    """

    origin: OnnxNode
    nodes: list[OnnxNode] = field(default_factory=list)

    def emit(self, kind: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its result, made up where none is given."""
        origin, number = self.origin, len(self.nodes)
        result = result or f"{origin.output[0] or origin.name}/{kind}{number}"
        name = f"{origin.name}_{kind}{number}" if origin.name else ""
        node = helper.make_node(kind, list(inputs), [result], name=name, **attributes)
        node.metadata_props.extend(origin.metadata_props)
        self.nodes.append(node)
        return result


def drop_widths_of_one(model: OnnxModel) -> None:
    """Leave out that `SplitToSequence` splits by 1, which is so anyway, where it is to drop the axis.

    torch's exporter writes both for `unbind`, and ONNX Runtime drops the axis; but as ONNX words it, the axis
    stays where widths are given, and its shape inference goes by that.
    """
    ones = {tensor.name for tensor in model.graph.initializer if _is_one(tensor)}
    for node in model.graph.node:
        said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Constant" and "value" in said and _is_one(said["value"]):
            ones.add(node.output[0])
        elif node.op_type == "SplitToSequence" and not said.get("keepdims", 1) and node.input[-1] in ones:
            del node.input[1:]


def _is_one(tensor: Any) -> bool:
    return not tensor.dims and bool(numpy_helper.to_array(tensor) == 1)


def simplify_graph(model: OnnxModel, shapes: Shapes) -> None:
    """Write what the importer takes badly as what it takes well, and drop dropout and identities."""
    graph = model.graph
    outputs = {output.name for output in graph.output}
    read = outputs | {name for node in graph.node for name in node.input}
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        if node.op_type == "Dropout":
            _keep_all(node, model, shapes)
        if node.op_type in ("Dropout", "Identity") and node.output[0] not in outputs:
            renamed[node.output[0]] = node.input[0]
        elif node.op_type == "Sum" and len(node.input) > 1:
            nodes.extend(_additions(node))
        elif node.op_type == "PRelu":
            _spread_slope(node, model, shapes)
            nodes.extend(_two_sides(node))
        else:
            if node.op_type == "TopK":
                _sort(node)
            elif node.op_type == "MaxPool" and len(node.output) > 1 and node.output[1] not in read:
                del node.output[1:]
            nodes.append(node)
    for node in nodes:
        node.name = _scoped_name(node) or node.name or node.output[0]
    del graph.node[:]
    graph.node.extend(nodes)


def spell_out_padding(model: OnnxModel, shapes: Shapes) -> None:
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


def spell_out_extents(model: OnnxModel, shapes: Shapes) -> None:
    """Replace `output_shape` of a transposed convolution by the padding that gives it (ConvTranspose-11)."""
    for node in model.graph.node:
        said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type != "ConvTranspose" or not said.get("output_shape"):
            continue
        shape, kernel = shapes.get(node.input[0]), said.get("kernel_shape")
        kernel = kernel or (shapes.get(node.input[1]) or ())[2:]
        if shape is None or not kernel:
            continue
        axes = range(len(kernel))
        strides, dilations = (said.get(name) or [1] * len(kernel) for name in ("strides", "dilations"))
        extra = list(said.get("output_padding") or [0] * len(kernel))
        before, after = [], []
        for axis in axes:
            full = strides[axis] * (shape[2 + axis] - 1) + (kernel[axis] - 1) * dilations[axis] + 1
            total = full + extra[axis] - said["output_shape"][-len(kernel) :][axis]
            # More than there is: zeros follow.
            extra[axis] += max(0, -total)
            small = max(0, total) // 2
            large = max(0, total) - small
            is_upper = said.get("auto_pad", b"NOTSET") == b"SAME_UPPER"
            before.append(small if is_upper else large)
            after.append(large if is_upper else small)
        replaced = ("auto_pad", "output_padding", "output_shape", "pads")
        kept = [attribute for attribute in node.attribute if attribute.name not in replaced]
        del node.attribute[:]
        node.attribute.extend(
            [
                *kept,
                helper.make_attribute("pads", [*before, *after]),
                helper.make_attribute("output_padding", extra),
            ]
        )


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


def _keep_all(node: OnnxNode, model: OnnxModel, shapes: Shapes) -> None:
    """Give the mask of a dropout that drops nothing, which the importer has of another type."""
    shape = shapes.get(node.input[0])
    if len(node.output) < 2 or not node.output[1] or shape is None:
        return
    mask = np.ones(shape, bool if opset_of(model) >= 10 else np.float32)
    model.graph.initializer.append(numpy_helper.from_array(mask, node.output[1]))
    del node.output[1:]


def _sort(node: OnnxNode) -> None:
    """Let `TopK` give in order what it may give in any, which is all that the importer takes."""
    kept = [attribute for attribute in node.attribute if attribute.name != "sorted"]
    del node.attribute[:]
    node.attribute.extend(kept)


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
    """Give a slope of PRelu-6, one per channel, the axes by which it broadcasts as later versions ask for."""
    graph, slope = model.graph, node.input[1]
    shape = shapes.get(node.input[0])
    for tensor in graph.initializer:
        if opset_of(model) < 7 and tensor.name == slope and shape is not None and len(tensor.dims) == 1:
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
