"""Read a torch module as a sequence of operators that can be cut, by exporting it.

`torch.export` traces into nested modules, tuples and dicts and notes the module behind every operator.
Changes in place are taken apart, so that every value is bound once; what changes a buffer becomes a value
that the buffer takes. Checked in tests/tuner/stages/torch_modules/test_torch_stages.py.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from tuner.errors import TunerError
from tuner.frontend.torch.export import quiet_export, with_own_memory
from tuner.frontend.torch.training import find_own_backwards

_STATE = frozenset({InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR})
"""Kinds of inputs of an exported program that are tensors of the module."""


@dataclass(frozen=True, slots=True)
class TorchStep:
    """A node of the graph, in the terms of `tuner.stages.liveness`."""

    var: fx.Node
    path: str

    @property
    def reads(self) -> tuple[fx.Node, ...]:
        """The nodes that it reads."""
        return tuple(self.var.all_input_nodes)

    @property
    def field_of(self) -> fx.Node | None:
        """The node whose field it takes, or None."""
        return self.var.all_input_nodes[0] if self.var.target is operator.getitem else None

    @property
    def is_alias(self) -> bool:
        """Every node computes something."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchProgram:
    """An exported module.

    Attributes:
        inputs: the user's inputs, in order.
        parameters: the module's weights, buffers and constants, in order.
        bindings: the operators, in order.
        results: the tensors that the user gets, flattened, in order; inputs among them.
        constants: place among all that the user gets, and value, of what is no tensor.
        updates: the buffer that takes each new value, by name.
        state_names: the name of each of `parameters` in the module; a tensor of several names is there once
            for each by which it is read.
        state: the module's own tensors, by name.
        output_spec: how torch's pytree puts the results together.
    """

    inputs: tuple[fx.Node, ...]
    parameters: tuple[fx.Node, ...]
    bindings: tuple[TorchStep, ...]
    results: tuple[fx.Node, ...]
    constants: tuple[tuple[int, Any], ...]
    updates: Mapping[fx.Node, str]
    state_names: Mapping[fx.Node, str]
    state: Mapping[str, torch.Tensor]
    output_spec: Any

    @property
    def outputs(self) -> tuple[fx.Node, ...]:
        """What must be computed: results and new values of buffers."""
        return (*self.results, *self.updates)


def read_module(module: torch.nn.Module, inputs: tuple[Any, ...]) -> TorchProgram:
    """Export a module for example inputs, in the mode (training or not) that it is in.

    Raises:
        TunerError: the module cannot be exported, changes an input, returns a weight or buffer of its own, or
            has a backward of its own.
    """
    exported = _export(module, inputs)
    own_backwards = find_own_backwards(module, inputs)
    if own_backwards:
        raise TunerError(
            f"the module has a backward of its own ({'; '.join(own_backwards)}), which an export loses, so "
            "that its stages' gradients would be wrong; write its forward in operators that autograd "
            "differentiates, or register it as a torch.library.custom_op with its gradient"
        )
    signature = exported.graph_signature
    state = _state(module, exported)
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    state_names, user_inputs = {}, []
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind in _STATE:
            state_names[node] = str(spec.target)
        else:
            user_inputs.append(node)
    _read_by_own_names(state_names, state)
    steps = [node for node in exported.graph.nodes if node.op == "call_function"]
    output = next(node for node in exported.graph.nodes if node.op == "output")
    returned, updates = [], {}
    for value, spec in zip(output.args[0], signature.output_specs, strict=True):
        if spec.kind is OutputKind.BUFFER_MUTATION:
            updates[value] = str(spec.target)
        elif spec.kind in {OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT}:
            returned.append(value)
        else:
            raise TunerError(
                f"the module changes its input {spec.target!r} in place; let it return a new tensor"
            )
    _check_returned(returned, state_names)
    return TorchProgram(
        inputs=tuple(user_inputs),
        parameters=tuple(state_names),
        bindings=tuple(TorchStep(node, _path(node)) for node in steps),
        results=tuple(value for value in returned if isinstance(value, fx.Node)),
        constants=tuple(
            (place, value) for place, value in enumerate(returned) if not isinstance(value, fx.Node)
        ),
        updates=updates,
        state_names=state_names,
        state=state,
        output_spec=exported.call_spec.out_spec,
    )


def _export(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Any:
    try:
        with quiet_export():
            # An empty table takes changes in place apart and leaves every other operator whole.
            return torch.export.export(module, with_own_memory(inputs), strict=False).run_decompositions({})
    except Exception as error:  # foreign code: torch traces the module by running it
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TunerError(
            f"torch.export cannot trace {type(module).__name__} ({reason}); see that its control flow does "
            "not depend on values of tensors"
        ) from error


def _state(module: torch.nn.Module, exported: Any) -> dict[str, torch.Tensor]:
    """Find the original's own tensors by name; constants of the trace are the program's."""
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(
        module.named_buffers(remove_duplicate=False)
    )
    return {**exported.constants, **exported.state_dict, **own}


def _read_by_own_names(names: Mapping[fx.Node, str], state: Mapping[str, torch.Tensor]) -> None:
    """Let each operator read a tensor of several names by that of the module which it is called in.

    An export reads such a tensor by one of its names everywhere.
    """
    nodes_by_tensor: dict[int, list[fx.Node]] = {}
    for node, name in names.items():
        nodes_by_tensor.setdefault(id(state[name]), []).append(node)
    for nodes in nodes_by_tensor.values():
        readers = dict.fromkeys(user for node in nodes for user in node.users)
        for reader in readers if len(nodes) > 1 else ():
            if reader.op == "call_function":
                path = _path(reader)
                nearest = max(nodes, key=lambda node: _num_shared(path, names[node]))  # The first of equals.
                for node in nodes:
                    reader.replace_input_with(node, nearest)


def _num_shared(path: str, name: str) -> int:
    """Count the modules, from the outermost, that hold both an operator and a tensor."""
    pairs = zip(path.split("."), name.split("."), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _check_returned(returned: Sequence[Any], state_names: Mapping[fx.Node, str]) -> None:
    for value in returned:
        if isinstance(value, fx.Node) and value in state_names:
            raise TunerError(
                f"the module returns its own tensor {state_names[value]!r} as it is, which no stage makes; "
                "return what it computes, and read the tensor from the module"
            )


def _path(node: fx.Node) -> str:
    """Give the path of the innermost module that a node was traced in."""
    stack = node.meta.get("nn_module_stack") or {}
    # A module that is called again is traced as `path@1`.
    return str(list(stack.values())[-1][0]).split("@")[0] if stack else ""
