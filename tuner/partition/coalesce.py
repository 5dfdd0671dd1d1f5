"""Merge neighbouring parts of one backend if the merged part is no slower than the two.

The search prices what the rules proposed. A backend that takes any sub-graph may run two of its neighbouring
parts better as one: fewer launches, and data that stays in cache. Upstream merges whenever each pair is
convex and never looks again; both are wrong. Merges that are fine alone can wait for each other (a1 → b2
and b1 → a2: never merge {a1, a2} and {b1, b2} both), and a larger function can be slower. Here a merge is
checked against the order of *all* parts, priced again, and kept only where it pays. Checked in
tests/tuner/partition/test_coalesce.py.

Source: TVM RFC 62 ("MaxCoalesce"), made sound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.subgraph import SubGraph
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.find_partition import Partition
from tuner.partition.price import Pricer
from tuner.plan import Figure

RULE = "coalesce"
"""Name of the rule that merged candidates carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalesced:
    """A partition after merging.

    Attributes:
        partition: what is left; no more expensive than before. It is a better answer than the search's where
            anything was merged, so `lower_bound_us` is its own cost then, and `proven` no longer claimed.
        num_merged: merges that were kept.
    """

    partition: Partition
    num_merged: int
    num_priced: int


def coalesce(
    graph: DataflowGraph,
    partition: Partition,
    pricer: Pricer,
    *,
    launch_penalty_us: float,
    max_rounds: int = 8,
    slack: float = 0.0,
    through_tuples: bool = True,
) -> Coalesced:
    """Merge neighbours of one backend, the largest gain first, until nothing pays.

    Args:
        partition: the answer to improve.
        pricer: prices merged parts, by measuring them unless this is a test.
        launch_penalty_us: what each part saved is worth.
        max_rounds: each round can double the size of a part.
        slack: share by which a merged part may be slower than its parts and still be kept, for callers who
            measure the whole afterwards: parts alone do not show what crossing a border costs.
        through_tuples: whether what makes a field of a tuple may be merged with what reads the tuple. The
            published method leaves them apart, for the tuple between them is the host's there.
    """
    parts = list(zip(partition.chosen, partition.figures, strict=True))
    num_merged = num_priced = 0
    for _ in range(max_rounds):
        merges = _mergeable(graph, [part for part, _ in parts], through_tuples=through_tuples)
        prices = pricer.price([merge.merged for merge in merges])
        num_priced += len(merges)
        gains = [
            (_gain_us(parts, merge, price, launch_penalty_us, slack), number, price)
            for number, (merge, price) in enumerate(zip(merges, prices, strict=True))
            if isinstance(price, Figure)
        ]
        paying = sorted((gain for gain in gains if gain[0] >= 0), key=lambda gain: (-gain[0], gain[1]))
        kept = _apply(graph, parts, [(merges[number], price) for _, number, price in paying])
        if not kept:
            break
        num_merged += kept
    merged = _with_parts(partition, parts, num_merged * launch_penalty_us)
    return Coalesced(
        partition=merged if num_merged else partition, num_merged=num_merged, num_priced=num_priced
    )


@dataclass(frozen=True, slots=True)
class _Merge:
    """Two parts that touch, and what they would be together."""

    one: CandidatePartition
    other: CandidatePartition
    merged: CandidatePartition


_Parts = list[tuple[CandidatePartition, Figure]]


def _mergeable(
    graph: DataflowGraph, parts: Sequence[CandidatePartition], *, through_tuples: bool
) -> list[_Merge]:
    """Return every two parts of one backend of which one reads the other and that can still run as one."""
    owner = {index: position for position, part in enumerate(parts) for index in part.sub_graph.inside}
    readers = _readers(parts, owner)
    merges = []
    for position, part in enumerate(parts):
        for reader in readers[position]:
            if parts[reader].backend != part.backend or part.backend == FREE:
                continue
            if not through_tuples and parts[reader].sub_graph.reads_field_of(graph, part.sub_graph):
                continue
            if not _reaches_around(readers, position, reader):
                merges.append(_merge(graph, part, parts[reader]))
    return merges


def _merge(graph: DataflowGraph, one: CandidatePartition, other: CandidatePartition) -> _Merge:
    union = one.sub_graph.inside | other.sub_graph.inside
    nested = sorted(
        (*one.sub_graph.as_nested(), *other.sub_graph.as_nested()), key=lambda sub_graph: sub_graph.inside
    )
    merged = SubGraph.of(graph, union, nested=tuple(nested))
    return _Merge(one, other, CandidatePartition(merged, one.backend, RULE))


def _readers(parts: Sequence[CandidatePartition], owner: dict[int, int]) -> list[list[int]]:
    """Return for each part the parts that read it, ascending."""
    readers: list[set[int]] = [set() for _ in parts]
    for position, part in enumerate(parts):
        for index in part.sub_graph.input:
            readers[owner[index]].add(position)
    return [sorted(each) for each in readers]


def _reaches_around(readers: Sequence[Sequence[int]], start: int, goal: int) -> bool:
    """Say whether a path leads from a part to one of its readers through further parts."""
    waiting = [reader for reader in readers[start] if reader != goal]
    seen = set(waiting)
    while waiting:
        for reader in readers[waiting.pop()]:
            if reader == goal:
                return True
            if reader not in seen:
                seen.add(reader)
                waiting.append(reader)
    return False


def _gain_us(parts: _Parts, merge: _Merge, price: Figure, launch_penalty_us: float, slack: float) -> float:
    latency_us = {id(part): figure.latency_us for part, figure in parts}
    apart_us = latency_us[id(merge.one)] + latency_us[id(merge.other)]
    return apart_us * (1 + slack) + launch_penalty_us - price.latency_us


def _apply(graph: DataflowGraph, parts: _Parts, merges: Sequence[tuple[_Merge, Figure]]) -> int:
    """Put merges in place of their parts, leaving out those that earlier ones rule out; return how many."""
    kept = 0
    for merge, price in merges:
        present = {id(part) for part, _ in parts}
        if id(merge.one) not in present or id(merge.other) not in present:
            continue
        rest = [(part, figure) for part, figure in parts if part is not merge.one and part is not merge.other]
        trial = [*(part for part, _ in rest), merge.merged]
        if _runs_in_order(trial):
            parts[:] = sorted([*rest, (merge.merged, price)], key=lambda each: each[0].sub_graph.inside.first)
            kept += 1
    return kept


def _runs_in_order(parts: Sequence[CandidatePartition]) -> bool:
    """Say whether the parts have an order in which none waits for a later one."""
    owner = {index: position for position, part in enumerate(parts) for index in part.sub_graph.inside}
    readers = _readers(parts, owner)
    missing = [len({owner[index] for index in part.sub_graph.input}) for part in parts]
    ready = [position for position, count in enumerate(missing) if not count]
    num_run = 0
    while ready:
        num_run += 1
        for reader in readers[ready.pop()]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return num_run == len(parts)


def _with_parts(partition: Partition, parts: _Parts, saved_penalty_us: float) -> Partition:
    """Return the partition with other parts; merged ones have no runner-up."""
    runner_up = dict(zip(partition.chosen, partition.runner_ups, strict=True))
    penalty_us = max(partition.penalty_us - saved_penalty_us, 0.0)
    cost_us = sum(figure.latency_us for _, figure in parts) + penalty_us
    return replace(
        partition,
        chosen=tuple(part for part, _ in parts),
        figures=tuple(figure for _, figure in parts),
        runner_ups=tuple(runner_up.get(part) for part, _ in parts),
        cost_us=cost_us,
        penalty_us=penalty_us,
        lower_bound_us=min(partition.lower_bound_us, cost_us),
        proven=False,
    )
