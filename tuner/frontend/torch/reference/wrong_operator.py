"""Search for an operator imported wrongly: the exported graph, run by torch node by node beside the import.

Checked in tests/tuner/frontend/torch/test_reference.py.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from tuner.frontend.model import IRModule, Run
from tuner.frontend.torch.arrays import as_array
from tuner.frontend.torch.importer import translate_nodes
from tuner.frontend.torch.reference.user_module import UserModule
from tuner.frontend.torch.source import place_of
from tuner.numerical_error import compare_tensor


def find_wrong_operator(
    user: UserModule, inputs: Mapping[str, np.ndarray], run: Run, *, called: Set[str], limit: float
) -> tuple[str, str] | None:
    """Return the first operator whose result differs, and what it is; None if each is right.

    Args:
        user: the module, in the mode that was imported.
        inputs: by name.
        run: runs what was imported.
        called: operators that were imported as calls of torch.
        limit: the relative error that is allowed.
    """
    nodes, module = translate_nodes(user.program, called=called, keeps_state=user.keeps_state)
    tensors = user.tensors
    parameters = [tensors[name] for name in _parameter_names(module, len(user.input_names))]
    found = run(module, [*(inputs[name] for name in user.input_names), *parameters])
    recorder = _Recorder(user.program, nodes)
    with user.call(), torch.no_grad():
        state = {**user.program.state_dict, **user.program.constants, **user.state(inputs)}
        recorder.run(*_program_arguments(user.program, user.arguments(inputs), state))
    for node, array in zip(nodes, found, strict=True):
        found_here = compare_tensor(place_of(node), array, recorder.values[node], infinity_agrees=True)
        if not found_here.is_within(limit):
            return _maker(node).name, f"{found_here.tensor}, which {found_here.describe(limit)},"
    return None


def _maker(node: torch.fx.Node) -> torch.fx.Node:
    """Return the call that makes a node's value: a tensor that is picked from several is made by another."""
    while node.target is operator.getitem:
        (node,) = node.all_input_nodes
    return node


class _Recorder(torch.fx.Interpreter):
    """Runs an exported graph and keeps the values of some nodes."""

    def __init__(self, program: torch.export.ExportedProgram, nodes: Sequence[torch.fx.Node]) -> None:
        super().__init__(program.graph_module)
        self.values: dict[torch.fx.Node, np.ndarray] = {}
        self._wanted = frozenset(nodes)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node, and keep what it gives."""
        result = super().run_node(n)
        if n in self._wanted:
            self.values[n] = as_array(result).copy()
        return result


def _program_arguments(
    program: torch.export.ExportedProgram, arguments: Sequence[Any], state: Mapping[str, Any]
) -> list[Any]:
    """Return what the placeholders of a program's graph stand for, in order."""
    user = iter(pytree.tree_leaves(tuple(arguments)))
    return [
        next(user) if spec.kind is InputKind.USER_INPUT else state[spec.target]
        for spec in program.graph_signature.input_specs
    ]


def _parameter_names(module: IRModule, num_inputs: int) -> list[str]:
    return [parameter.name for parameter in module["main"].params[num_inputs:]]
