"""Tensors that a program writes: buffers, inputs and weights that `forward` changes.

A compiled program changes nothing that it is given. What a program writes is therefore state that whoever
runs it carries: a written buffer becomes an input, and its new value a result, after the program's own; so
does the new value of a written input. Training keeps none of it. What leaves it out is refused where a result
depends on it from call to call. Checked in tests/tuner/tuning/test_import_check.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from tuner.errors import UnsupportedOperatorError

_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTensor:
    """A buffer or an input that a program writes.

    Attributes:
        name: of the model's input that holds it.
        target: the buffer's name in the module; empty for an input.
        placeholder: the node that holds it before.
    """

    name: str
    target: str
    placeholder: torch.fx.Node
    value: torch.fx.Node


def written_tensors(program: torch.export.ExportedProgram) -> tuple[WrittenTensor, ...]:
    """Return what a decomposed program writes: buffers in the order in which it takes them, then inputs."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    (output,) = program.graph.find_nodes(op="output")
    values: Iterable[Any] = output.args[0]
    new = {
        (spec.kind, spec.target): value
        for spec, value in zip(signature.output_specs, values, strict=True)
        if spec.kind in _WRITES
    }
    taken = {spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT}
    buffers, inputs = [], []
    for spec in signature.input_specs:
        placeholder = nodes[spec.arg.name]
        if spec.kind is InputKind.BUFFER and (OutputKind.BUFFER_MUTATION, spec.target) in new:
            target = str(spec.target)
            buffers.append(
                WrittenTensor(
                    name=spec.arg.name if target in taken else target,
                    target=target,
                    placeholder=placeholder,
                    value=new[OutputKind.BUFFER_MUTATION, spec.target],
                )
            )
        elif (OutputKind.USER_INPUT_MUTATION, spec.arg.name) in new:
            value = new[OutputKind.USER_INPUT_MUTATION, spec.arg.name]
            name = spec.arg.name
            inputs.append(WrittenTensor(name=name, target="", placeholder=placeholder, value=value))
    return (*buffers, *inputs)


def written_weights(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """Return the names of the weights that a program writes, as it does that keeps a norm by `max_norm`."""
    specs = program.graph_signature.output_specs
    return tuple(str(spec.target) for spec in specs if spec.kind is OutputKind.PARAMETER_MUTATION)


def require_same_shapes(written: Sequence[WrittenTensor], name: str) -> None:
    """Require that what is written keeps its shape and type.

    Raises:
        UnsupportedOperatorError: it does not; names the first.
    """
    for each in written:
        before, after = each.placeholder.meta["val"], each.value.meta["val"]
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise UnsupportedOperatorError(
                f"forward of {name} gives {each.name}, of shape {tuple(before.shape)} and type "
                f"{before.dtype}, a value of shape {tuple(after.shape)} and type {after.dtype}, so that the "
                "next call would be another program; give it its full length at first, and write into it"
            )


def require_unread(written: Sequence[WrittenTensor], needed: Iterable[torch.fx.Node], name: str) -> None:
    """Require that results depend on none of the buffers that training leaves as they are.

    Args:
        written: what the program writes.
        needed: the nodes that its results depend on.

    Raises:
        UnsupportedOperatorError: a result depends on one; names the first.
    """
    read = set(needed)
    for each in written:
        if each.target and each.placeholder in read:
            raise UnsupportedOperatorError(
                f"forward of {name} writes the buffer {each.name} and its results depend on it, but "
                "micro-batches that train at once carry no state from one to the next; tune it with --infer, "
                f"or let forward take {each.name} as an argument and return its new value beside a loss"
            )


def describe_state(names: Sequence[str]) -> str:
    """Return a sentence on what a program writes, by name of its inputs."""
    if len(names) == 1:
        return (
            f"forward writes {names[0]}: it is an input of the program, and its new value the last result, "
            "to be given back in the next call"
        )
    return (
        f"forward writes {', '.join(names)}: they are inputs of the program, and their new values the last "
        f"{len(names)} results, in this order, to be given back in the next call"
    )
