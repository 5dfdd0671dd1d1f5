"""Cut candidates out of a function, and turn a chosen partition into a module of one function per part.

A partition becomes a private function that carries the name of its backend (`PARTITION_ATTRIBUTE`); equal
ones share one function. What it reads becomes parameters, except constants, which stay constants, so that a
backend may pack weights ahead of time. What leaves it is its result, a tuple where several values do.

A rule labels what a library runs by one call, and labels nest (`tuner.rules.Composite`). An extracted
function is flat; its attributes say which of its operators belong to which call, so that a code generator
gets the calls that the search chose, not those that matching its patterns anew would find.

Checked in tests/tuner/lowering/test_outline.py and tests/tuner/partition/test_published_cases.py: the
outlined module computes what the original does. Source: TVM RFC 62 ("SubGraph extraction and rewriting";
there constants become parameters).
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from tvm import relax

from tuner.graph.bound_values import bound_values
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_source import replace_variables, variables_of
from tuner.graph.relax_types import (
    NUM_INPUTS_ATTRIBUTE,
    PARTITION_ATTRIBUTE,
    PREPARE_NAME,
    WEIGHTS_ATTRIBUTE,
    IRModule,
    RelaxFunction,
    num_inputs_of,
    weights_of,
)
from tuner.graph.subgraph import SubGraph
from tuner.partition.candidate import FREE, CandidatePartition


def extract_module(graph: DataflowGraph, sub_graph: SubGraph, backend: str) -> IRModule:
    """Return a module whose `main` does nothing but call the sub-graph as one partition of the backend.

    Parameters of `main` are the values that the sub-graph reads, in the order in which it first reads them;
    those that are weights come last.
    """
    builder = _builder(graph)
    part = _extract(graph, sub_graph, backend)
    variable = builder.add_func(part.function, _name(graph, sub_graph, backend))
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in part.function.params]
    weights = [parameters[position] for position in weights_of(part.function)]
    inputs = [parameter for parameter in parameters if parameter not in weights]
    attributes = {NUM_INPUTS_ATTRIBUTE: len(inputs)} if weights else {}
    with builder.function("main", [*inputs, *weights], attrs=attributes):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(variable, parameters))
        builder.emit_func_output(result)
    return relax.transform.DeadCodeElimination(["main"])(builder.get())


def extract_function(graph: DataflowGraph, sub_graph: SubGraph, backend: str) -> RelaxFunction:
    """Return the sub-graph as the private function that `extract_module` would call."""
    return _extract(graph, sub_graph, backend).function


def with_composites(function: RelaxFunction) -> RelaxFunction:
    """Return an extracted function whose labelled calls are functions inside of it.

    Each labelled sub-graph of the search becomes a local function with its label as `Composite`, composites
    inside of composites likewise, and a call of it; operators that have no label stay plain. That is the form
    that TVM's code generators for libraries read. What marked the function as a partition is left out.
    """
    graph = DataflowGraph.from_relax(function)
    return _composed(graph, _composites_of(graph))


def _composed(graph: DataflowGraph, composites: Sequence[SubGraph]) -> RelaxFunction:
    """Return a graph's function with a local function a composite."""
    source = graph.source
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in source.function.params]
    values: dict[Any, Any] = dict(zip(source.function.params, parameters, strict=True))
    covered = {index for composite in composites for index in composite.inside}
    plain = [SubGraph.of(graph, NodeSet.of([index])) for index in graph.all_indices if index not in covered]
    sub_graphs = [*composites, *plain]
    builder = relax.BlockBuilder()
    with builder.function("part", parameters, private=True):
        with builder.dataflow():
            for position in order_partitions(graph, sub_graphs):
                sub_graph = sub_graphs[position]
                if position >= len(composites):
                    _emit_nodes(builder, graph, sub_graph.inside, values)
                    continue
                part = _extract(graph, sub_graph, "")
                inner = _nested_in(part.function).with_attr("Composite", sub_graph.label)
                _emit_call(builder, part, builder.emit(inner), values)
            results = [builder.emit_output(values.get(result, result)) for result in source.results]
        builder.emit_func_output(relax.Tuple(results) if source.result_is_tuple else results[0])
    return builder.get()["part"]


def _nested_in(function: RelaxFunction) -> RelaxFunction:
    """Return a composite's function with its own composites inside, without what marks a partition."""
    graph = DataflowGraph.from_relax(function.without_attr(_LABEL_ATTRIBUTE))
    return _composed(graph, _composites_of(graph))


def outline_partitions(graph: DataflowGraph, chosen: Sequence[CandidatePartition]) -> IRModule:
    """Return the graph's module with its function rewritten to call one private function a partition.

    Partitions of the host stay where they are, as plain operators. Where the graph's module prepares weights
    (`PREPARE_NAME`), the function takes them as they were before, and prepares them itself.

    Raises:
        ValueError: the partitions overlap, leave a node out, or wait for each other.
    """
    ordered = order_partitions(graph, [candidate.sub_graph for candidate in chosen])
    builder = _builder(graph)
    values: dict[Any, Any] = {}
    source = graph.source
    prepare = _prepare_of(builder)
    own = source.function.params
    if prepare is not None:
        own = [*own[: num_inputs_of(source.function)], *builder.get()[prepare].params]
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in own]
    values.update(zip(source.function.params, parameters, strict=False))
    parts = {
        index: _extract(graph, chosen[index].sub_graph, chosen[index].backend)
        for index in ordered
        if chosen[index].backend != FREE
    }
    variables = {
        index: builder.add_func(part.function, _name(graph, chosen[index].sub_graph, chosen[index].backend))
        for index, part in parts.items()
    }
    with builder.function(_function_name(graph), parameters, attrs=_attributes(source.function)):
        with builder.dataflow():
            if prepare is not None:
                _emit_prepare(builder, prepare, source.function, parameters, values)
            for index in ordered:
                if index in parts:
                    _emit_call(builder, parts[index], variables[index], values)
                else:
                    _emit_nodes(builder, graph, chosen[index].sub_graph.inside, values)
            results = [builder.emit_output(values.get(result, result)) for result in source.results]
        builder.emit_func_output(relax.Tuple(results) if source.result_is_tuple else results[0])
    return builder.get()


def order_partitions(graph: DataflowGraph, sub_graphs: Sequence[SubGraph]) -> tuple[int, ...]:
    """Return positions of sub-graphs in an order in which each comes after those that it reads.

    Of those that could come next, the one with the smallest node does. O(edges × log partitions).

    Raises:
        ValueError: the sub-graphs overlap, leave a node out, or wait for each other.
    """
    owner = _owners(graph, sub_graphs)
    waits_for = [{owner[index] for index in sub_graph.input} for sub_graph in sub_graphs]
    readers: list[list[int]] = [[] for _ in sub_graphs]
    for position, needed in enumerate(waits_for):
        for other in sorted(needed):
            readers[other].append(position)
    missing = [len(needed) for needed in waits_for]
    ready = [
        (sub_graphs[position].inside.first, position) for position, count in enumerate(missing) if not count
    ]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, position = heapq.heappop(ready)
        ordered.append(position)
        for reader in readers[position]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (sub_graphs[reader].inside.first, reader))
    if len(ordered) < len(sub_graphs):
        stuck = next(position for position, count in enumerate(missing) if count)
        raise ValueError(
            f"partition {sub_graphs[stuck].inside} waits for itself through others; choose partitions "
            "whose order has no cycle, as find_partition does"
        )
    return tuple(ordered)


@dataclass(frozen=True, slots=True)
class _Part:
    """A partition's function, the graph's variables it is called with, and those it makes."""

    function: Any
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]


_PARTS: weakref.WeakKeyDictionary[DataflowGraph, dict[SubGraph, _Part]] = weakref.WeakKeyDictionary()
"""What has been extracted of each graph, without a backend: several propose the same sub-graph, and each
asks for it when it refuses, when it prices and when it is chosen."""


def _extract(graph: DataflowGraph, sub_graph: SubGraph, backend: str) -> _Part:
    known = _PARTS.setdefault(graph, {})
    part = known.get(sub_graph)
    if part is None:
        part = known[sub_graph] = _extract_anew(graph, sub_graph)
    return replace(part, function=part.function.with_attr(PARTITION_ATTRIBUTE, backend))


def _extract_anew(graph: DataflowGraph, sub_graph: SubGraph) -> _Part:
    arguments = _read_variables(graph, sub_graph)
    results = _leaving_values(graph, sub_graph)
    parameters = [relax.Var(_plain(argument.name), argument.ty) for argument in arguments]
    values: dict[Any, Any] = dict(zip(arguments, parameters, strict=True))
    attributes: dict[str, Any] = {}
    if weights := _weights_among(graph, arguments):
        attributes[WEIGHTS_ATTRIBUTE] = weights
    attributes |= _label_attributes(sub_graph)
    builder = relax.BlockBuilder()
    with builder.function("part", parameters, attrs=attributes, private=True):
        with builder.dataflow():
            _emit_nodes(builder, graph, sub_graph.inside, values)
            outputs = [builder.emit_output(values[result]) for result in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return _Part(builder.get()["part"], arguments, results)


def _read_variables(graph: DataflowGraph, sub_graph: SubGraph) -> tuple[Any, ...]:
    """Return the parameters and outside values that inside calls read, in order of first reading."""
    source = graph.source
    made = {value for index in sub_graph.inside for value in source.values[index]}
    read: dict[Any, None] = {}
    for index in sub_graph.inside:
        read.update(
            (variable, None) for variable in variables_of(source.calls[index]) if variable not in made
        )
    return tuple(read)


def _weights_among(graph: DataflowGraph, arguments: Sequence[Any]) -> list[int]:
    """Return positions of arguments that never change between calls: weights, and what is made of them."""
    weights = bound_values(graph)
    return [position for position, argument in enumerate(arguments) if argument in weights]


def _leaving_values(graph: DataflowGraph, sub_graph: SubGraph) -> tuple[Any, ...]:
    """Return the values made inside that leave, in order; all of the last node's where none does."""
    source = graph.source
    needed = {variable for index in sub_graph.output for variable in variables_of(source.calls[index])}
    needed.update(result for result in source.results if isinstance(result, relax.Var))
    leaving = tuple(value for index in sub_graph.inside for value in source.values[index] if value in needed)
    return leaving or source.values[sub_graph.inside.last]


def _prepare_of(builder: Any) -> Any:
    """Return the function that makes the weights of those that the model has, if there is one."""
    return next((each for each in builder.get().get_global_vars() if each.name_hint == PREPARE_NAME), None)


def _emit_prepare(
    builder: Any, prepare: Any, function: Any, parameters: Sequence[Any], values: dict[Any, Any]
) -> None:
    """Emit the call that makes the weights of a graph's function, and note what stands for each."""
    num_inputs = num_inputs_of(function)
    made = builder.emit(relax.Call(prepare, parameters[num_inputs:]))
    _note_values(builder, made, function.params[num_inputs:], values, in_tuple=True)


def _emit_nodes(builder: Any, graph: DataflowGraph, inside: NodeSet, values: dict[Any, Any]) -> None:
    """Emit the calls of nodes in order, and note what stands for each of their values."""
    source = graph.source
    for index in inside:
        made = builder.emit(replace_variables(source.calls[index], lambda variable: values[variable]))
        _note_values(builder, made, source.values[index], values, in_tuple=source.returns_tuple[index])


def _emit_call(builder: Any, part: _Part, variable: Any, values: dict[Any, Any]) -> None:
    made = builder.emit(relax.Call(variable, [values[argument] for argument in part.arguments]))
    _note_values(builder, made, part.results, values, in_tuple=len(part.results) > 1)


def _note_values(
    builder: Any, made: Any, results: Sequence[Any], values: dict[Any, Any], *, in_tuple: bool
) -> None:
    if not in_tuple:
        values[results[0]] = made
        return
    for position, result in enumerate(results):
        values[result] = builder.emit(relax.TupleGetItem(made, position))


def _owners(graph: DataflowGraph, sub_graphs: Sequence[SubGraph]) -> dict[int, int]:
    owner: dict[int, int] = {}
    for position, sub_graph in enumerate(sub_graphs):
        for index in sub_graph.inside:
            if index in owner:
                raise ValueError(f"node {index} is in two partitions; each node belongs to exactly one")
            owner[index] = position
    if len(owner) < len(graph):
        missing = next(index for index in range(len(graph)) if index not in owner)
        raise ValueError(
            f"node {missing} ({graph.nodes[missing].operator}) is in no partition; cover every node "
            "exactly once"
        )
    return owner


def _builder(graph: DataflowGraph) -> Any:
    """Return a builder whose module holds what the graph's calls may call, without the graph's function."""
    module = graph.source.module
    if module is None:
        return relax.BlockBuilder()
    rest = module.clone()
    for variable, function in module.functions_items():
        if function.same_as(graph.source.function):
            del rest[variable]
    return relax.BlockBuilder(rest)


def _function_name(graph: DataflowGraph) -> str:
    attributes = graph.source.function.attrs
    named = attributes is not None and "global_symbol" in attributes.keys()  # noqa: SIM118 - not a Mapping
    return str(attributes["global_symbol"]) if named else "main"


def _attributes(function: Any) -> dict[str, Any]:
    names = [] if function.attrs is None else [str(name) for name in function.attrs.keys()]  # noqa: SIM118
    return {name: function.attrs[name] for name in names if name != "global_symbol"}


def _name(graph: DataflowGraph, sub_graph: SubGraph, backend: str) -> str:
    """Return a readable name for a partition; the builder makes it unique."""
    operators = [operator.rpartition(".")[2] for operator in graph.operators_of(sub_graph.inside)]
    shown = operators if len(operators) <= 4 else [*operators[:3], f"{len(operators) - 3}_more"]
    return _plain("_".join([backend, *shown]))


def _plain(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name)


_LABEL_ATTRIBUTE = "tessel.label"
"""Relax function attribute with the label that a composite rule gave the partition."""

_COMPOSITES_ATTRIBUTE = "tessel.composites"
"""Relax function attribute with the labelled calls inside of the partition, as text."""


class _Composite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A labelled call of a function: its operators by their positions there, and what it nests itself."""

    label: str
    operators: tuple[int, ...]
    nested: tuple[_Composite, ...] = ()


def _label_attributes(sub_graph: SubGraph) -> dict[str, str]:
    """Return the attributes that name the labelled calls of a sub-graph's function; none without labels."""
    position = {index: number for number, index in enumerate(sub_graph.inside)}

    def described(nested: SubGraph) -> _Composite:
        operators = tuple(position[index] for index in nested.inside)
        return _Composite(nested.label, operators, tuple(map(described, nested.nested)))

    attributes = {_LABEL_ATTRIBUTE: sub_graph.label} if sub_graph.label else {}
    if sub_graph.nested:
        composites = tuple(map(described, sub_graph.nested))
        attributes[_COMPOSITES_ATTRIBUTE] = msgspec.json.encode(composites).decode()
    return attributes


def _composites_of(graph: DataflowGraph) -> tuple[SubGraph, ...]:
    """Return the labelled calls that the attributes of a graph's function name, outermost first."""

    def sub_graph(composite: _Composite) -> SubGraph:
        nested = tuple(map(sub_graph, composite.nested))
        return SubGraph.of(graph, NodeSet.of(composite.operators), label=composite.label, nested=nested)

    text = _attribute(graph, _COMPOSITES_ATTRIBUTE) or "[]"
    nested = tuple(map(sub_graph, msgspec.json.decode(text, type=tuple[_Composite, ...])))
    label = _attribute(graph, _LABEL_ATTRIBUTE)
    return (SubGraph.of(graph, graph.all_indices, label=label, nested=nested),) if label else nested


def _attribute(graph: DataflowGraph, name: str) -> str:
    attributes = graph.source.function.attrs
    return "" if attributes is None else str(attributes.get(name, ""))
