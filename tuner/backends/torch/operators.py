"""Torch calls as the `torch` backend's own candidates, and what a program that holds some needs to run.

A torch call is an operator that the importer could not convert (`tuner.graph.torch_call`). No other backend
can run it, each is a part of its own, and whoever builds a program that holds one makes torch known to TVM
first. Checked in tests/tuner/backends/torch/test_operator_calls.py.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.errors import TunerError
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_types import IRModule, RelaxFunction
from tuner.graph.subgraph import SubGraph
from tuner.graph.torch_call import LABEL, read_torch_call, torch_calls_in

_CALLS_MODULE = "tuner.runtime.torch_operator_calls"

ONLY_TORCH = "it holds a torch call, which only the backend torch runs"
"""Why other backends refuse a function."""


@dataclass(frozen=True, slots=True)
class TorchCalls:
    """Proposes each torch call of a graph by itself."""

    name: str = LABEL

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield the torch calls in order."""
        for node in graph.nodes:
            if node.operator.startswith(f"{LABEL} "):
                yield SubGraph.of(graph, NodeSet.of([node.index]), label=LABEL)


def is_one_torch_call(function: RelaxFunction) -> bool:
    """Say whether a function is one torch call and nothing else."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    calls = [binding.value for binding in bindings if hasattr(binding.value, "op")]
    return len(calls) == 1 and read_torch_call(calls[0]) is not None


def holds_torch_call(function: RelaxFunction) -> bool:
    """Say whether a torch call is among a function's bindings."""
    return next(torch_calls_in(function), None) is not None


def provide_torch_calls(module: IRModule) -> None:
    """Make torch known to TVM where a module holds torch calls.

    Raises:
        TunerError: it does, and torch is not installed.
    """
    for _, function in module.functions_items():
        for call in torch_calls_in(function):
            if importlib.util.find_spec("torch") is None:
                raise TunerError(
                    f"the program holds a {call.name}, and torch is not installed here; install the extra "
                    "`torch`"
                )
            importlib.import_module(_CALLS_MODULE)
            return
