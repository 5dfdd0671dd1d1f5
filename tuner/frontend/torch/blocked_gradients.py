"""Find where a program's code blocks gradients, so that its import can block them too.

An exported program's values say nothing of `detach` and `torch.no_grad`. The first stays an operator of the
program; the second encloses a sub-graph, which is gone once the program is brought to simpler operators, so
what leaves it is detached before. Only what depends on a weight that trains is blocked: tables that a
decorated function computes of positions are none. Checked in
tests/tuner/stages/gradients/test_blocked_gradients.py.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils import checkpoint

_DETACH = torch.ops.aten.detach.default

_DETACHES = frozenset({_DETACH, torch.ops.aten.detach_.default, torch.ops.aten.detach_copy.default})

_UNGRADED: Any = torch.ops.higher_order.wrap_with_set_grad_enabled


def detach_ungraded(program: torch.export.ExportedProgram) -> None:
    """Detach, in a program as it was exported, whatever leaves a block of `torch.no_grad`."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            _detach_results(module.graph)


def blocked_nodes(program: torch.export.ExportedProgram) -> frozenset[torch.fx.Node]:
    """Return the nodes of a decomposed program at which the gradient of a trained weight ends."""
    trained = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.PARAMETER and program.state_dict[spec.target].requires_grad
    }
    dependent: set[torch.fx.Node] = set()
    blocked: set[torch.fx.Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node.name in trained:
                dependent.add(node)
        elif not dependent.isdisjoint(node.all_input_nodes):
            (blocked if node.target in _DETACHES else dependent).add(node)
    return frozenset(blocked)


@contextmanager
def checkpoints_inlined() -> Iterator[None]:
    """Let checkpoints of either kind be what they run, once: they run it again in the backward."""
    reentrant = checkpoint.CheckpointFunction
    other = checkpoint._checkpoint_without_reentrant_generator
    checkpoint.CheckpointFunction = _Inlined  # type: ignore[misc, assignment]  # what `checkpoint` applies
    checkpoint._checkpoint_without_reentrant_generator = _inlined
    try:
        yield
    finally:
        checkpoint.CheckpointFunction = reentrant  # type: ignore[misc]  # as above
        checkpoint._checkpoint_without_reentrant_generator = other


class _Inlined:
    """Stands for `CheckpointFunction` in an export."""

    @staticmethod
    def apply(function: Any, preserve_rng_state: bool, *arguments: Any) -> Any:
        """Run the function."""
        return function(*arguments)


def _inlined(*_: Any, **__: Any) -> Iterator[None]:
    """Stand for what `checkpoint` runs before and after the function."""
    yield


def _detach_results(graph: torch.fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is operator.getitem and _is_ungraded(node.args[0]):
            readers = [user for user in node.users if user.op != "output" and user.target not in _DETACHES]
            value = node.meta.get("val")
            if not readers or not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            with graph.inserting_after(node):
                detached = graph.call_function(_DETACH, (node,))
            detached.meta = dict(node.meta)
            for reader in readers:
                reader.replace_input_with(node, detached)


def _is_ungraded(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.target is _UNGRADED and node.args[0] is False
