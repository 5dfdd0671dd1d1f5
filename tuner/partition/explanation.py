"""Explain the choice of backend for each part: the alternatives, and why other backends cannot run it.

This is data for reports, and decides nothing. Checked in tests/tuner/partition/test_explanation.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.graph import NodeSet
from tuner.graph.dataflow import DataflowGraph
from tuner.partition.alternatives import Alternative, CandidateIndex
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.find_partition import Partition, RefusedCandidate, usable_offers
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure, PartitionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One part, its price, and what spoke for and against the others.

    Attributes:
        inside: the part's nodes.
        operators: names of the part's operators, in order.
        rule: the rule that proposed it.
        figure: its latency.
        alternatives: other backends' cheapest ways to run the same nodes, the cheapest first; where one
            cannot run them all, with the chosen backend's smaller parts for the rest.
        reasons: for each other backend without a way, what it said to a candidate of these nodes or of some
            of them, by name.
        margin_us: how much slower the first alternative is; None where there is none.
        part: the part as reports list it, with its layers and tensors; None where nobody described it.
    """

    inside: NodeSet
    operators: tuple[str, ...]
    backend: str
    rule: str
    figure: Figure
    alternatives: tuple[Alternative, ...]
    reasons: tuple[tuple[str, str], ...]
    margin_us: float | None
    part: PartitionPlan | None = None


def explain_partition(
    graph: DataflowGraph,
    partition: Partition,
    candidates: Sequence[CandidatePartition],
    prices: Sequence[Price],
    *,
    launch_penalty_us: float,
    refused: Sequence[RefusedCandidate] = (),
) -> tuple[Explanation, ...]:
    """Return one explanation per part, in order; parts that cost nothing need none.

    Args:
        partition: the answer to explain.
        candidates: what it was chosen from.
        prices: one per candidate.
        launch_penalty_us: what the search counted for each part.
        refused: proposals that were refused before they were priced.
    """
    index = CandidateIndex(usable_offers(candidates, prices))
    objections = _objections(candidates, prices, refused)
    explanations = []
    for part, figure in zip(partition.chosen, partition.figures, strict=True):
        if part.backend == FREE:
            continue
        inside = part.sub_graph.inside
        alternatives = index.alternatives(inside, without=part.backend, launch_penalty_us=launch_penalty_us)
        able = {part.backend, FREE, *(each.backend for each in alternatives)}
        reasons = {
            objection.candidate.backend: objection.reason
            for objection in objections
            if objection.candidate.backend not in able
            and objection.candidate.sub_graph.inside.is_subset(inside)
        }
        explanations.append(
            Explanation(
                inside=inside,
                operators=graph.operators_of(inside),
                backend=part.backend,
                rule=part.rule,
                figure=figure,
                alternatives=alternatives,
                reasons=tuple(sorted(reasons.items())),
                margin_us=alternatives[0].latency_us - figure.latency_us if alternatives else None,
            )
        )
    return tuple(explanations)


def _objections(
    candidates: Sequence[CandidatePartition], prices: Sequence[Price], refused: Sequence[RefusedCandidate]
) -> Sequence[RefusedCandidate]:
    """Return every answer of why not, those about the most nodes last, so that they have the last word."""
    failed = [
        RefusedCandidate(candidate, price.reason)
        for candidate, price in zip(candidates, prices, strict=True)
        if isinstance(price, Invalid)
    ]
    return sorted([*failed, *refused], key=lambda each: len(each.candidate.sub_graph.inside))
