"""Write out control flow whose course is known before the model runs.

An `If` becomes the branch that it takes, or, where only the model's inputs tell which, both branches and a
choice between their results. A `Scan`, and a `Loop` of which it is known after each step whether another
follows, become their steps, one after the other. Conditions and counts are known where they follow from
constants and from shapes. What is left as it is, and refused later by name: a loop that ends when values
say so, or that makes more nodes than `MAX_NODES`, and a branch that is not always taken and reads at
computed places, which may lie outside a tensor. Checked in tests/tuner/frontend/onnx/test_control_flow.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, helper, numpy_helper

from tuner.frontend.onnx.rewrite import OnnxModel, OnnxNode, Shapes, opset_of

_DECIDED_BY = {"If": 1, "Loop": 2}
"""Leading inputs that say which course is taken, or how often."""

MAX_NODES = 50_000
"""Nodes that one loop may become."""

_SCAN_BY_STEPS = 9
"""The version from which a `Scan` has no batch of its own."""

_AXES_AS_INPUT = 13
"""The version from which `Unsqueeze` reads its axes as an input."""

_READ_AT_PLACES = frozenset(
    {"Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND", "SequenceAt"}
)
"""Operators whose second input says where a tensor is read or written."""

Evaluate = Callable[[OnnxNode, Mapping[str, np.ndarray]], "dict[str, np.ndarray] | None"]
"""Gives the results of a node whose inputs are known; None where they follow from more than its inputs."""


def is_control_flow(node: OnnxNode) -> bool:
    """Say whether a node chooses or repeats what it holds."""
    return node.op_type in _WRITERS and node.domain in ("", "ai.onnx")


def deciding_inputs(model: OnnxModel, node: OnnxNode) -> tuple[str, ...]:
    """Return the model's inputs of one element that a node's condition or count is computed of."""
    producers = {name: each for each in model.graph.node for name in each.output}
    waiting = list(node.input[: _DECIDED_BY.get(node.op_type, 0)])
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(producers[name].input if name in producers else ())
    return tuple(
        value.name
        for value in model.graph.input
        if value.name in seen
        and math.prod(extent.dim_value for extent in value.type.tensor_type.shape.dim) == 1
    )


def write_out_control_flow(model: OnnxModel, inferred: OnnxModel, shapes: Shapes, evaluate: Evaluate) -> bool:
    """Put branches and steps in the place of the nodes that choose and repeat them.

    Args:
        model: is changed.
        inferred: the same graph with the shapes of its tensors, those of its branches included.
        shapes: by name of tensor.
        evaluate: of a node whose inputs are known.

    Returns:
        Whether there was one; what stood inside is then to be looked at in its turn.
    """
    graph = model.graph
    course = _Course(
        constants={tensor.name: tensor for tensor in graph.initializer},
        opset=opset_of(model),
        evaluate=evaluate,
    )
    nodes: list[OnnxNode] = []
    changed = False
    for number, (node, known) in enumerate(zip(graph.node, inferred.graph.node, strict=True)):
        write = _WRITERS[node.op_type] if is_control_flow(node) else None
        # Two nodes of one name, or of none, keep their results apart by their place in the graph.
        writer = _Writer(node, f"{node.name or node.op_type}/{number}", course)
        if write is not None and write(node, known, writer, shapes):
            nodes.extend(writer.nodes)
            graph.initializer.extend(writer.constants.values())
            changed = True
        else:
            nodes.append(node)
            course.add([node])
    if changed:
        del graph.node[:]
        graph.node.extend(nodes)
    return changed


@dataclass
class _Course:
    """What is known of values while the graph is written out."""

    constants: dict[str, Any]
    opset: int
    evaluate: Evaluate
    producers: dict[str, OnnxNode] = field(default_factory=dict)
    values: dict[str, np.ndarray | None] = field(default_factory=dict)

    def add(self, nodes: Iterable[OnnxNode]) -> None:
        for node in nodes:
            self.producers |= dict.fromkeys(filter(None, node.output), node)

    def known(self, name: str) -> np.ndarray | None:
        """Return the value of a tensor that follows from constants alone; None for any other."""
        waiting = [name]
        while waiting:  # no recursion: the counter of a loop is made of that of the step before
            each = waiting[-1]
            if each in self.values:
                waiting.pop()
            elif each in self.constants:
                self.values[each] = numpy_helper.to_array(self.constants[each])
            elif each not in self.producers:
                self.values[each] = None
            else:
                unknown = self._found(self.producers[each])
                waiting.extend(unknown)
        return self.values[name]

    def _found(self, node: OnnxNode) -> list[str]:
        """Note what a node gives; return those of its inputs that are to be looked at first."""
        results = dict.fromkeys(filter(None, node.output))
        inputs = [name for name in node.input if name]
        if node.op_type == "Identity":
            if inputs[0] not in self.values:
                return inputs
            self.values[node.output[0]] = self.values[inputs[0]]
            return []
        first = [name for name in inputs if name not in self.values]
        values = {name: self.values.get(name) for name in inputs}
        if any(name in self.values and self.values[name] is None for name in inputs):
            self.values |= results
        elif first:
            return first
        else:
            told = {name: value for name, value in values.items() if value is not None}
            self.values |= self.evaluate(node, told) or results
        return []


@dataclass
class _Writer:
    """Collects what takes a node's place, under names of their own."""

    origin: OnnxNode
    prefix: str
    course: _Course
    nodes: list[OnnxNode] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)

    def emit(self, kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        result = to or f"{self.prefix}/{kind}{len(self.nodes)}"
        node = helper.make_node(kind, list(inputs), [result], name=result, **attributes)
        node.metadata_props.extend(self.origin.metadata_props)
        self._take([node])
        return result

    def constant(self, name: str, value: np.ndarray) -> str:
        """Return the name of a constant, made where there is none of that name yet."""
        return self._hold(name, numpy_helper.from_array(value))

    def inline(self, graph: Any, given: Mapping[str, str], step: str, *, owner: str = "body") -> list[str]:
        """Add a graph's nodes, and return the names of its results.

        Args:
            graph: of a branch or a step; reads tensors around it by their names.
            given: what stands for each of its inputs.
            step: after which its results are named.
            owner: after which its constants are named, one for all steps.
        """
        names = dict(given)
        for tensor in graph.initializer:
            names[tensor.name] = self._hold(f"{owner}/{tensor.name}", tensor)
        for original in graph.node:
            if original.op_type == "Constant" and original.attribute[0].name == "value":
                # One for all steps, which may be a weight.
                (result,) = original.output
                names[result] = self._hold(f"{owner}/{result}", original.attribute[0].t)
                continue
            node = type(original)()
            node.CopyFrom(original)
            _rename_reads(node, names)
            for place, name in enumerate(original.output):
                if name:
                    names[name] = f"{self.prefix}/{step}/{name}"
                    node.output[place] = names[name]
            node.name = f"{self.prefix}/{step}/{original.name or original.op_type}"
            self._take([node])
        return [names.get(value.name, value.name) for value in graph.output]

    def give(self, results: Sequence[str]) -> None:
        """Let the results of the node be these; one that nobody reads has no name."""
        for name, result in zip(self.origin.output, results, strict=False):
            if name:
                self.emit("Identity", result, to=name)

    def joined(self, rows: Sequence[str], axis: int) -> str:
        """Return tensors side by side along a new axis."""
        if self.course.opset >= _AXES_AS_INPUT:
            axes = self.constant(f"axes/{axis}", np.array([axis], "int64"))
            wide = [self.emit("Unsqueeze", row, axes) for row in rows]
        else:
            wide = [self.emit("Unsqueeze", row, axes=[axis]) for row in rows]
        return self.emit("Concat", *wide, axis=axis)

    def _take(self, nodes: Sequence[OnnxNode]) -> None:
        self.nodes.extend(nodes)
        self.course.add(nodes)

    def _hold(self, name: str, tensor: Any) -> str:
        """Keep a constant of an inner graph, once for all steps; return its name in the outer one."""
        full = f"{self.prefix}/{name}"
        if full not in self.constants:
            made = type(tensor)()
            made.CopyFrom(tensor)
            made.name = full
            self.constants[full] = self.course.constants[full] = made
        return full


def _write_if(node: OnnxNode, known: OnnxNode, writer: _Writer, shapes: Shapes) -> bool:
    branches = {attribute.name: attribute.g for attribute in node.attribute}
    condition = writer.course.known(node.input[0])
    if condition is not None:
        taken = "then_branch" if bool(condition.item()) else "else_branch"
        writer.give(writer.inline(branches[taken], {}, taken, owner=taken))
        return True
    kinds = [[_kind(value) for value in graph.output] for graph in _graphs_of(known)]
    if kinds[0] != kinds[1] or None in kinds[0] or any(map(_reads_at_places, branches.values())):
        return False
    one, other = (
        writer.inline(branches[name], {}, name, owner=name) for name in ("then_branch", "else_branch")
    )
    asked = writer.emit("Squeeze", node.input[0])
    chosen = [writer.emit("Where", asked, *pair) for pair in zip(one, other, strict=True)]
    writer.give(chosen)
    return True


def _write_loop(node: OnnxNode, known: OnnxNode, writer: _Writer, shapes: Shapes) -> bool:
    (body,) = _graphs_of(node)
    course = writer.course
    count, first, *carried = [*node.input, ""][: max(2, len(node.input))]
    limit = course.known(count) if count else None
    going = course.known(first) if first else np.array(True)
    if going is None or (count and limit is None):
        return False
    scanned: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
    step = 0
    while going.item() and (limit is None or step < limit.item()):
        if len(writer.nodes) + len(body.node) > MAX_NODES:
            return False
        values = [
            writer.constant(f"step/{step}", np.array(step, "int64")),
            writer.constant("true", np.array(True)),
            *carried,
        ]
        given = {value.name: name for value, name in zip(body.input, values, strict=True)}
        condition, *results = writer.inline(body, given, f"{step}")
        known_condition = course.known(condition)
        if known_condition is None:
            return False
        # Without a condition at the start, what the body says of another step counts for nothing.
        going = known_condition if first else going
        carried = results[: len(carried)]
        for rows, result in zip(scanned, results[len(carried) :], strict=True):
            rows.append(result)
        step += 1
    if not step and scanned:
        return False
    writer.give([*carried, *(writer.joined(rows, 0) for rows in scanned)])
    return True


def _write_scan(node: OnnxNode, known: OnnxNode, writer: _Writer, shapes: Shapes) -> bool:
    said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    body, num_scanned = said["body"], said["num_scan_inputs"]
    if writer.course.opset < _SCAN_BY_STEPS:
        return False
    num_states = len(node.input) - num_scanned
    states, read = list(node.input[:num_states]), node.input[num_states:]
    num_written = len(body.output) - num_states
    axes = said.get("scan_input_axes") or [0] * num_scanned
    shape = shapes.get(read[0])
    if shape is None or not shape[axes[0]] or shape[axes[0]] * len(body.node) > MAX_NODES:
        return False
    steps = shape[axes[0]]
    from_the_end = said.get("scan_input_directions") or [0] * num_scanned
    scanned: list[list[str]] = [[] for _ in range(num_written)]
    for step in range(steps):
        rows = []
        for name, axis, is_reversed in zip(read, axes, from_the_end, strict=True):
            place = steps - 1 - step if is_reversed else step
            rows.append(
                writer.emit(
                    "Gather", name, writer.constant(f"step/{place}", np.array(place, "int64")), axis=axis
                )
            )
        given = {value.name: name for value, name in zip(body.input, [*states, *rows], strict=True)}
        results = writer.inline(body, given, f"{step}")
        states = results[:num_states]
        for written, result in zip(scanned, results[num_states:], strict=True):
            written.append(result)
    to_axes = said.get("scan_output_axes") or [0] * num_written
    to_the_front = said.get("scan_output_directions") or [0] * num_written
    joined = [
        writer.joined(rows[::-1] if is_reversed else rows, axis)
        for rows, axis, is_reversed in zip(scanned, to_axes, to_the_front, strict=True)
    ]
    writer.give([*states, *joined])
    return True


_Write = Callable[[OnnxNode, OnnxNode, _Writer, Shapes], bool]
"""Writes a node out, of which the second is the same with shapes; returns whether it could."""

_WRITERS: Mapping[str, _Write] = {"If": _write_if, "Loop": _write_loop, "Scan": _write_scan}


def _kind(value: Any) -> tuple[int, tuple[int, ...]] | None:
    """Return type and shape of a branch's result; None where they are not known, or where it is no tensor."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape") or not kind.elem_type:
        return None
    if not all(extent.HasField("dim_value") for extent in kind.shape.dim):
        return None
    return kind.elem_type, tuple(extent.dim_value for extent in kind.shape.dim)


def _reads_at_places(graph: Any) -> bool:
    """Say whether a branch reads or writes at places that are no constants of its own."""
    constants = {tensor.name for tensor in graph.initializer} | {
        node.output[0] for node in graph.node if node.op_type == "Constant"
    }
    return any(
        (node.op_type in _READ_AT_PLACES and node.input[1] not in constants)
        or any(map(_reads_at_places, _graphs_of(node)))
        for node in graph.node
    )


def _graphs_of(node: OnnxNode) -> list[Any]:
    return [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def _rename_reads(node: OnnxNode, names: Mapping[str, str]) -> None:
    """Let a node, and the graphs that it holds, read tensors by their new names."""
    for place, name in enumerate(node.input):
        node.input[place] = names.get(name, name)
    for graph in _graphs_of(node):
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own |= {name for inner in graph.node for name in inner.output}
        outer = {name: new for name, new in names.items() if name not in own}
        for inner in graph.node:
            _rename_reads(inner, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)
