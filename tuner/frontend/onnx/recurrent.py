"""Write recurrent layers out step by step: TVM's ONNX importer has none.

LSTM, GRU and RNN of ONNX become products, sums and activations of every step, for the one length that the
file has or is given. The product with the inputs is one for all steps, and two biases become one. Where
each example has a length of its own, states stay as they are behind it, and results are 0.
Left as they are, and refused later by name: layers with clipped gates, coupled gates, other activations, or
weights that are no constants. Checked in
tests/tuner/frontend/onnx/test_recurrent.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tuner.frontend.onnx.rewrite import NodeWriter, OnnxModel, OnnxNode, Shapes

_ACTIVATIONS = {
    "LSTM": ["Sigmoid", "Tanh", "Tanh"],
    "GRU": ["Sigmoid", "Tanh"],
    "RNN": ["Tanh"],
}
"""What ONNX takes where nothing is said, of each direction."""

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_STATES = {"LSTM": ("initial_h", "initial_c"), "GRU": ("initial_h",), "RNN": ("initial_h",)}
_FIXED = frozenset({"W", "R", "B", "P"})
"""Inputs that are to be constants."""

_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


def unroll_recurrent(model: OnnxModel, shapes: Shapes) -> bool:
    """Replace recurrent layers whose weights and lengths are known; return whether there was one."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes: list[OnnxNode] = []
    made: dict[str, np.ndarray] = {}
    for node in model.graph.node:
        layer = _read(node, constants, shapes)
        if layer is None:
            nodes.append(node)
        else:
            writer = _Writer(node)
            _write(layer, writer)
            nodes.extend(writer.nodes)
            made |= writer.constants
    if not made:
        return False
    used = {name for node in nodes for name in node.input} | {each.name for each in model.graph.output}
    kept = [
        tensor for tensor in model.graph.initializer if tensor.name in used or _is_in_branch(tensor, nodes)
    ]
    new = [numpy_helper.from_array(np.array(value, order="C"), name) for name, value in made.items()]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *new])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return True


@dataclass(frozen=True)
class _Layer:
    """A recurrent layer: its node, the names of its inputs, its weights, and what its attributes say."""

    node: OnnxNode
    inputs: Mapping[str, str]
    weights: np.ndarray
    recurrences: np.ndarray
    biases: np.ndarray
    steps: int
    batch: int
    directions: tuple[bool, ...]
    resets_after: bool
    peepholes: np.ndarray | None
    is_by_example: bool
    lengths: np.ndarray | None

    @property
    def hidden(self) -> int:
        return int(self.recurrences.shape[2])


@dataclass
class _Writer(NodeWriter):
    """Collects constants as well."""

    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants[name] = value
        return name

    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        name = "/".join(["shape", *map(str, shape)])
        return self.emit("Reshape", x, self.constant(name, np.array(shape, "int64")))

    def at(self, x: str, place: int, axis: int) -> str:
        """Return a slice, without its axis."""
        return self.emit("Gather", x, self.constant(f"place/{place}", np.array(place, "int64")), axis=axis)


def _read(node: OnnxNode, constants: Mapping[str, np.ndarray], shapes: Shapes) -> _Layer | None:
    """Return the layer that a node is, or None where it is none that can be written out."""
    if node.op_type not in _GATES or node.domain not in ("", "ai.onnx"):
        return None
    said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    inputs = {key: name for key, name in zip(_INPUTS, node.input, strict=False) if name}
    shape = shapes.get(inputs["X"])
    direction = said.get("direction", b"forward").decode()
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    usual = [name.encode() for name in _ACTIVATIONS[node.op_type]] * len(directions)
    if (
        shape is None
        or not _FIXED & inputs.keys() <= {key for key, name in inputs.items() if name in constants}
        or said.get("activations", usual) != usual
        or any(said.get(name) for name in ("input_forget", "clip"))
    ):
        return None
    is_by_example = bool(said.get("layout", 0))
    steps, batch = (shape[1], shape[0]) if is_by_example else shape[:2]
    lengths = constants.get(inputs.get("sequence_lens", ""))
    if lengths is not None and (lengths == steps).all():
        del inputs["sequence_lens"]
    weights, recurrences = constants[inputs["W"]], constants[inputs["R"]]
    gates = _GATES[node.op_type] * recurrences.shape[2]
    nothing = np.zeros((len(directions), 2 * gates), weights.dtype)
    return _Layer(
        node=node,
        inputs=inputs,
        weights=weights,
        recurrences=recurrences,
        biases=constants[inputs["B"]] if "B" in inputs else nothing,
        steps=steps,
        batch=batch,
        directions=directions,
        resets_after=bool(said.get("linear_before_reset", 0)),
        peepholes=constants[inputs["P"]] if "P" in inputs else None,
        is_by_example=is_by_example,
        lengths=lengths,
    )


def _write(layer: _Layer, writer: _Writer) -> None:
    batch, hidden = layer.batch, layer.hidden
    sequences, ends = [], []
    for number, is_reversed in enumerate(layer.directions):
        outputs, states = _direction(layer, writer, number, is_reversed)
        rows = [writer.reshaped(each, (1, 1, batch, hidden)) for each in outputs]
        sequences.append(writer.emit("Concat", *rows, axis=0))
        ends.append([writer.reshaped(each, (1, batch, hidden)) for each in states])
    results = dict(zip(range(3), layer.node.output, strict=False))
    found = {0: (sequences, 1, [2, 0, 1, 3])}
    found |= {
        place: (list(each), 0, [1, 0, 2]) for place, each in enumerate(zip(*ends, strict=True), start=1)
    }
    for place, (parts, axis, by_example) in found.items():
        if not results.get(place):
            continue
        if layer.is_by_example:
            writer.emit(
                "Transpose", writer.emit("Concat", *parts, axis=axis), result=results[place], perm=by_example
            )
        else:
            writer.emit("Concat", *parts, result=results[place], axis=axis)


def _direction(
    layer: _Layer, writer: _Writer, number: int, is_reversed: bool
) -> tuple[list[str], tuple[str, ...]]:
    """Write one direction; return the hidden states in the order of the inputs, and the last states."""
    kind, hidden = layer.node.op_type, layer.hidden
    gates = _GATES[kind]
    of_inputs, of_state = np.split(layer.biases[number], 2)
    bias = of_inputs + of_state
    if kind == "GRU" and layer.resets_after:
        bias = np.concatenate([bias[: 2 * hidden], of_inputs[2 * hidden :]])
    weights = writer.constant(f"{layer.inputs['W']}.{number}", layer.weights[number].T)
    added = writer.constant(f"{layer.inputs.get('B', layer.inputs['W'] + '.bias')}.{number}", bias)
    inputs = layer.inputs["X"]
    if layer.is_by_example:
        inputs = writer.emit("Transpose", inputs, perm=[1, 0, 2])
    products = writer.emit("Add", writer.emit("MatMul", inputs, weights), added)
    states = tuple(_initial(layer, writer, name, number) for name in _STATES[kind])
    step = _STEPS[kind](layer, writer, number)
    outputs = []
    for place in reversed(range(layer.steps)) if is_reversed else range(layer.steps):
        found = writer.reshaped(writer.at(products, place, 0), (layer.batch, gates, hidden))
        new = step(found, states)
        if "sequence_lens" in layer.inputs:
            is_within = _is_within(layer, writer, place)
            outputs.append(writer.emit("Where", is_within, new[0], _zeros(layer, writer)))
            states = tuple(writer.emit("Where", is_within, *pair) for pair in zip(new, states, strict=True))
        else:
            states = new
            outputs.append(states[0])
    if "sequence_lens" in layer.inputs:  # An empty example ends in zeros, wherever it starts.
        is_any = _is_within(layer, writer, 0)
        states = tuple(writer.emit("Where", is_any, state, _zeros(layer, writer)) for state in states)
    return (outputs[::-1] if is_reversed else outputs), states


def _initial(layer: _Layer, writer: _Writer, name: str, number: int) -> str:
    if name in layer.inputs:
        return writer.at(layer.inputs[name], number, 1 if layer.is_by_example else 0)
    return _zeros(layer, writer)


def _zeros(layer: _Layer, writer: _Writer) -> str:
    zeros = np.zeros((layer.batch, layer.hidden), layer.weights.dtype)
    return writer.constant(f"zeros/{layer.batch}/{layer.hidden}/{zeros.dtype}", zeros)


def _is_within(layer: _Layer, writer: _Writer, place: int) -> str:
    """Return which examples are longer than a place, a column."""
    lengths = layer.inputs["sequence_lens"]
    if layer.lengths is not None:
        return writer.constant(f"{lengths}/beyond/{place}", place < layer.lengths[:, None])
    number = writer.constant(f"step/{place}", np.array(place, "int32"))
    return writer.reshaped(writer.emit("Less", number, lengths), (layer.batch, 1))


_States = tuple[str, ...]
_Step = Callable[[str, _States], _States]
"""Gives the states after a step, of its inputs' product with their weights and of the states before it."""


def _lstm(layer: _Layer, writer: _Writer, number: int) -> _Step:
    recurrences = writer.constant(f"{layer.inputs['R']}.{number}", layer.recurrences[number].T)

    peepholes: dict[int, str] = {}
    if layer.peepholes is not None:
        rows = np.split(layer.peepholes[number], 3)
        peepholes = {
            place: writer.constant(f"{layer.inputs['P']}.{number}.{place}", row)
            for place, row in enumerate(rows)
        }

    def gate(gates: str, place: int, cell: str) -> str:
        """Return how far a gate is open, which may see the cell."""
        asked = writer.at(gates, place, 1)
        if peepholes:
            asked = writer.emit("Add", asked, writer.emit("Mul", peepholes[place], cell))
        return writer.emit("Sigmoid", asked)

    def step(found: str, states: _States) -> _States:
        hidden, cell = states
        product = writer.emit("MatMul", hidden, recurrences)
        gates = writer.emit("Add", found, writer.reshaped(product, (layer.batch, 4, layer.hidden)))
        into, forget = gate(gates, 0, cell), gate(gates, 2, cell)
        new = writer.emit("Tanh", writer.at(gates, 3, 1))
        cell = writer.emit("Add", writer.emit("Mul", forget, cell), writer.emit("Mul", into, new))
        return writer.emit("Mul", gate(gates, 1, cell), writer.emit("Tanh", cell)), cell

    return step


def _gru(layer: _Layer, writer: _Writer, number: int) -> _Step:
    hidden, name = layer.hidden, f"{layer.inputs['R']}.{number}"
    matrix = layer.recurrences[number].T
    gating = writer.constant(f"{name}.gates", matrix[:, : 2 * hidden])
    proposing = writer.constant(f"{name}.new", matrix[:, 2 * hidden :])
    late = layer.biases[number][5 * hidden :]
    bias = writer.constant(f"{name}.bias", late) if layer.resets_after else ""

    def step(found: str, states: _States) -> _States:
        (state,) = states
        product = writer.reshaped(writer.emit("MatMul", state, gating), (layer.batch, 2, hidden))
        keep, reset = (
            writer.emit(
                "Sigmoid", writer.emit("Add", writer.at(found, place, 1), writer.at(product, place, 1))
            )
            for place in range(2)
        )
        if layer.resets_after:
            told = writer.emit("Add", writer.emit("MatMul", state, proposing), bias)
            told = writer.emit("Mul", reset, told)
        else:
            told = writer.emit("MatMul", writer.emit("Mul", reset, state), proposing)
        new = writer.emit("Tanh", writer.emit("Add", writer.at(found, 2, 1), told))
        gap = writer.emit("Mul", keep, writer.emit("Sub", state, new))
        return (writer.emit("Add", new, gap),)

    return step


def _rnn(layer: _Layer, writer: _Writer, number: int) -> _Step:
    recurrences = writer.constant(f"{layer.inputs['R']}.{number}", layer.recurrences[number].T)

    def step(found: str, states: _States) -> _States:
        (state,) = states
        product = writer.emit("MatMul", state, recurrences)
        return (writer.emit("Tanh", writer.emit("Add", writer.at(found, 0, 1), product)),)

    return step


_STEPS: Mapping[str, Callable[[_Layer, _Writer, int], _Step]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def _is_in_branch(tensor: Any, nodes: Sequence[OnnxNode]) -> bool:
    """Say whether a constant is read inside a branch of some node."""
    return any(
        tensor.name in inner.input or _is_in_branch(tensor, [inner])
        for node in nodes
        for attribute in node.attribute
        if attribute.HasField("g")
        for inner in attribute.g.node
    )
