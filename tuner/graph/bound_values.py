"""Values made of weights alone, in a model that is not trained, and so made once.

They are computed where weights are bound, before the program first runs (`tuner.lowering.weight_binding`), so
a search must not pay for them by the run: a weight that a file stores transposed is transposed once. Checked
in tests/tuner/lowering/test_weight_binding.py.
"""

from __future__ import annotations

import functools
from typing import Any

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_source import variables_of
from tuner.graph.relax_types import num_inputs_of


@functools.lru_cache(maxsize=8)  # each candidate of a graph asks for its values
def bound_nodes(graph: DataflowGraph) -> NodeSet:
    """Return the nodes that read weights, and nothing that changes between calls.

    There are none in a model that trains, and in one that returns such a value: nothing is bound there.
    """
    if not graph.has_source:
        return NodeSet()
    source = graph.source
    num_inputs = num_inputs_of(source.function)
    if num_inputs is None:
        return NodeSet()
    made = set(source.function.params[num_inputs:])
    bound = []
    for index, call in enumerate(source.calls):
        read = variables_of(call)
        if read and made.issuperset(read):
            made.update(source.values[index])
            bound.append(index)
    return NodeSet() if made.intersection(source.results) else NodeSet.of(bound)


@functools.lru_cache(maxsize=8)
def bound_values(graph: DataflowGraph) -> frozenset[Any]:
    """Return the variables that never change between calls: weights, and what `bound_nodes` make of them."""
    source = graph.source
    num_inputs = num_inputs_of(source.function)
    if num_inputs is None:
        return frozenset()
    made = {value for index in bound_nodes(graph) for value in source.values[index]}
    return frozenset((*source.function.params[num_inputs:], *made))
