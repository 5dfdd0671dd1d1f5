"""Divide the programs of all shards into segments, at their collectives.

A binding belongs to the segment numbered by how many collectives it waits for, one after another, so that all
collectives that can start at once do. What nobody reads is left out, collectives included. Checked in
tests/tuner/shards/test_stage.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.graph.relax_types import num_inputs_of, with_num_inputs
from tuner.shards.interface import Collective, ShardedFunction
from tuner.shards.writer import Reduce, Sharded, Written
from tuner.stages.interface import StageFunction
from tuner.stages.program import Binding, Var, needed, tensor_info, write_module


def divide(
    function: StageFunction,
    written: Written,
    *,
    inputs: Sequence[tuple[str, Sharded]],
    outputs: Mapping[str, Sharded],
) -> ShardedFunction:
    """Cut what was written for a function into segments and rounds of collectives.

    Args:
        function: the whole function.
        written: all shards' bindings, and the collectives.
        inputs: of the function, over the shards, by name.
        outputs: the same; none is partial.

    Where the function says which of its inputs are weights (`tessel.num_inputs`), so do its segments.
    """
    reductions = _needed_reductions(written, outputs)
    programs = [
        _program(written, rank, reductions, inputs=inputs, outputs=outputs)
        for rank in range(len(written.bindings))
    ]
    num_segments = 1 + max((depth for depth in programs[0].depth_by_binding.values()), default=-1)
    functions = {variable.name_hint: body for variable, body in function.module.functions_items()}
    num_inputs = num_inputs_of(function.module["main"])
    weights = () if num_inputs is None else function.inputs[num_inputs:]
    constant = frozenset(info.name for info in weights)
    segments = tuple(
        tuple(_segment(program, index, functions, constant) for program in programs)
        for index in range(num_segments)
    )
    taken = {info.name for each in segments for shard in each for info in shard.inputs}
    return ShardedFunction(
        num_shards=len(programs),
        segments=segments,
        rounds=tuple(_round(programs[0], reductions, index) for index in range(num_segments)),
        inputs=function.inputs,
        outputs=function.outputs,
        layouts={name: value.layout for name, value in (*inputs, *outputs.items())},
        sources={name: programs[0].names[value.parts[0]] for name, value in outputs.items()},
        offsets=tuple(offset for offset, _ in written.offsets if offset.name in taken),
    )


@dataclass(frozen=True, slots=True)
class _Program:
    """One shard's program.

    Attributes:
        bindings: those that are needed, in order.
        names: of every variable that is given, bound or reduced.
        depth_by_binding: the segment of each bound variable.
        results: variables that leave the last segment that makes them, whoever reads them.
        givable: what a segment may be given, in the order in which it takes it.
    """

    bindings: tuple[Binding, ...]
    names: Mapping[Var, str]
    depth_by_binding: Mapping[Var, int]
    results: frozenset[Var]
    givable: tuple[Var, ...]


def _needed_reductions(written: Written, outputs: Mapping[str, Sharded]) -> tuple[Reduce, ...]:
    """Keep the collectives that some output depends on; all shards agree, so the first shard is asked."""
    roots = {value.parts[0] for value in outputs.values()}
    while True:
        kept = needed(written.bindings[0], roots)
        read = roots.union(*(binding.reads for binding in kept))
        wanted = tuple(each for each in written.reductions if each.results[0] in read)
        terms = {each.terms[0] for each in wanted}
        if terms <= roots:
            return wanted
        roots |= terms


def _program(
    written: Written,
    rank: int,
    reductions: Sequence[Reduce],
    *,
    inputs: Sequence[tuple[str, Sharded]],
    outputs: Mapping[str, Sharded],
) -> _Program:
    terms = [each.terms[rank] for each in reductions]
    results = frozenset((*terms, *(value.parts[rank] for value in outputs.values())))
    bindings = needed(written.bindings[rank], results)
    given = {value.parts[rank]: name for name, value in inputs}
    given |= {variables[rank]: offset.name for offset, variables in written.offsets}
    reduced = [each.results[rank] for each in reductions]
    return _Program(
        bindings=bindings,
        names=_names(bindings, given, reductions, outputs, rank),
        depth_by_binding=_depths(bindings, reductions, rank),
        results=results,
        givable=(*given, *(binding.var for binding in bindings), *reduced),
    )


def _depths(bindings: Sequence[Binding], reductions: Sequence[Reduce], rank: int) -> dict[Var, int]:
    """Count the collectives that each binding waits for, one after another."""
    depth: dict[Var, int] = {}
    term_of = {each.results[rank]: each.terms[rank] for each in reductions}
    for binding in bindings:
        waits = (
            depth[term_of[read]] + 1 if read in term_of else depth.get(read, 0) for read in binding.reads
        )
        depth[binding.var] = max(waits, default=0)
    return depth


def _names(
    bindings: Sequence[Binding],
    given: Mapping[Var, str],
    reductions: Sequence[Reduce],
    outputs: Mapping[str, Sharded],
    rank: int,
) -> dict[Var, str]:
    """Name all variables: what is given and returned as the function does, the rest by number."""
    names: dict[Var, str] = {}
    for name, value in outputs.items():
        names.setdefault(value.parts[rank], name)
    names.update(given)
    for index, each in enumerate(reductions):
        names.setdefault(each.terms[rank], f"term.{index}")
        names.setdefault(each.results[rank], f"reduced.{index}")
    for index, binding in enumerate(bindings):
        names.setdefault(binding.var, f"value.{index}")
    return names


def _segment(
    program: _Program, index: int, functions: Mapping[str, Any], constant: frozenset[str]
) -> StageFunction:
    """Write a shard's segment, which takes inputs of these constant names last."""
    bindings = [binding for binding in program.bindings if program.depth_by_binding[binding.var] == index]
    own = {binding.var for binding in bindings}
    later = _read_by(binding for binding in program.bindings if program.depth_by_binding[binding.var] > index)
    read = _read_by(bindings) - own
    given = [value for value in program.givable if value in read]
    given.sort(key=lambda value: program.names[value] in constant)
    results = [binding.var for binding in bindings if binding.var in program.results or binding.var in later]
    module = write_module(bindings, inputs=given, outputs=results, names=program.names, functions=functions)
    num_inputs = sum(program.names[value] not in constant for value in given)
    if constant and num_inputs:
        module = with_num_inputs(module, num_inputs)
    return StageFunction(
        module,
        tuple(tensor_info(value, program.names[value]) for value in given),
        tuple(tensor_info(value, program.names[value]) for value in results),
    )


def _read_by(bindings: Iterable[Binding]) -> set[Var]:
    return {variable for binding in bindings for variable in binding.reads}


def _round(program: _Program, reductions: Sequence[Reduce], index: int) -> tuple[Collective, ...]:
    """List the collectives whose terms are ready after a segment."""
    return tuple(
        Collective(
            kind=each.kind,
            source=program.names[each.terms[0]],
            result=tensor_info(each.results[0], program.names[each.results[0]]),
        )
        for each in reductions
        if program.depth_by_binding[each.terms[0]] == index
    )
