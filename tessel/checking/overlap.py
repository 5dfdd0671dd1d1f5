"""Time of orders in which a forward and a backward of one device run together, as an OVERLAP_F_B cell says.

A pair takes a given share of what its blocks take one after the other, and at least as long as the longer of
both: it begins when both can, and hands on both results when it ends. A pair whose backward waits for its own
forward, by way of other devices perhaps, cannot run together and counts one after the other.

Left out: what a pair holds beside what both blocks hold in turn, and how the share depends on the blocks. In
DeepSeek's published trace of DualPipe it is 0.54. Checked in tests/tessel/checking/test_overlap.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from tessel.checking.case import Case, NamedTask, task_orders
from tessel.engine.actions import Action, ActionKind, RankCells
from tessel.orders import Task, waits_of
from tessel.planning.costs.training_step import estimate_ends

Pair = tuple[NamedTask, NamedTask]
"""A forward and a backward of one device, by the names of their blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlapped:
    """What orders take whose pairs run together.

    Attributes:
        factor: share of the sum of its blocks that a pair takes.
        length: microseconds of the training step; of the pipeline where nothing else is known; steps where a
            step has no length.
        num_pairs: pairs that run together.
        num_apart: pairs whose backward waits for their forward.
    """

    factor: float
    length: float
    num_pairs: int
    num_apart: int


def pairs_of_cells(cells: RankCells) -> tuple[Pair, ...]:
    """Return the pairs that share a cell."""
    return tuple((_name(cell[0]), _name(cell[1])) for rank in cells for cell in rank if len(cell) == 2)


def overlapped(case: Case, pairs: Sequence[Pair], factor: float) -> Overlapped:
    """Return what the case takes where pairs run together; O(tasks + edges) for each pair that cannot.

    Args:
        case: its orders end.
        pairs: neighbours in the order of a device.
        factor: within 0..1.
    """
    waits = waits_of(case.placement, task_orders(case.placement, case.orders))
    together = [
        tuple(tasks)
        for pair, tasks in zip(pairs, task_orders(case.placement, tuple(pairs)), strict=True)
        if pair[0][1] != pair[1][1]
    ]
    while True:
        units = _units(waits, together)
        graph = _graph_of(case, waits, units)
        try:
            order = list(nx.topological_sort(graph))
        except nx.NetworkXUnfeasible:
            cycle = [units[source] for source, _ in nx.find_cycle(graph)]
            together.remove(next(unit for unit in cycle if len(unit) > 1))
            continue
        break
    ends: dict[Task, int] = {}
    begins = [0] * len(units)
    for unit in order:
        end = begins[unit] + _duration(case, units[unit], factor)
        ends |= dict.fromkeys(units[unit], end)
        for following, edge in graph[unit].items():
            begins[following] = max(begins[following], end + edge["lag"])
    return Overlapped(
        factor=factor,
        length=_length(case, ends),
        num_pairs=len(together),
        num_apart=len(pairs) - len(together),
    )


def _name(action: Action) -> NamedTask:
    halves = {ActionKind.BACKWARD_INPUT: "_input", ActionKind.BACKWARD_WEIGHT: "_weight"}
    kind = "f" if action.kind is ActionKind.FORWARD else "b"
    return f"{kind}{action.stage}{halves.get(action.kind, '')}", action.micro_batch


def _units(waits: Iterable[Task], together: Sequence[tuple[Task, ...]]) -> list[tuple[Task, ...]]:
    """Return what runs as one: pairs, and every other task by itself."""
    paired = {task for unit in together for task in unit}
    return [*together, *((task,) for task in waits if task not in paired)]


def _graph_of(
    case: Case, waits: Mapping[Task, Sequence[tuple[Task, int]]], units: Sequence[tuple[Task, ...]]
) -> nx.DiGraph[int]:
    """Return which unit waits for which, and how long after its end."""
    unit_of = {task: number for number, unit in enumerate(units) for task in unit}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(units)))
    for task, earlier in waits.items():
        for source, delay in earlier:
            ends = unit_of[source], unit_of[task]
            lag = delay - case.placement.blocks[source.block_index].span
            if ends[0] != ends[1] and lag >= graph.edges.get(ends, {"lag": -1})["lag"]:
                graph.add_edge(*ends, lag=lag)
    return graph


def _duration(case: Case, unit: Sequence[Task], factor: float) -> int:
    spans = [case.placement.blocks[task.block_index].span for task in unit]
    return spans[0] if len(spans) == 1 else max(spans[0], sum(spans[1:]), math.ceil(factor * sum(spans)))


def _length(case: Case, ends: Mapping[Task, int]) -> float:
    """Return what the step takes, given when each task ends."""
    step_us = 1.0 if case.step_us is None else case.step_us
    if case.step is None:
        return max(ends.values(), default=0) * step_us
    last = [0] * len(case.step.figures.groups)
    for task, end in ends.items():
        stage = int(case.placement.blocks[task.block_index].name[1:].partition("_")[0])
        last[stage] = max(last[stage], end)
    return estimate_ends(
        case.step.figures,
        stage_ends_us=[end * step_us for end in last],
        activation_bytes=(0,) * case.placement.devices,
        micro_batches=case.micro_batches,
    ).step_us
