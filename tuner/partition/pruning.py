"""Drop candidates that are unlikely to be chosen, so that fewer need measuring.

This is a heuristic without proof: a dropped candidate could have been part of the cheapest partition. It
keeps, for each backend, every single operator, every *maximal* candidate (one that no other of its backend
contains), what is left of a maximal candidate where another backend's maximal one cuts into it, and every
candidate that another backend offers for exactly the same nodes. Where candidates are windows over long
chains, most overlap some maximal one and little is dropped; the report says how many. The published method
drops more where backends offer the same nodes, and more that could have been cheaper: of all candidates only
the largest that do not cut into each other. Checked in tests/tuner/partition/test_pruning.py.

Source: TVM RFC 62 ("PruneCandidates").
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tuner.graph.node_set import NodeSet
from tuner.partition.candidate import CandidatePartition
from tuner.partition.find_partition import Candidates

_Offer = tuple[NodeSet, str]
"""Nodes, and the backend that runs them."""


def prune_candidates(found: Candidates, *, published: bool = False) -> Candidates:
    """Return the candidates that are worth pricing, and the report with how many were dropped.

    O(candidates × candidates that share a node with them), once a round where `published`.

    Args:
        published: whether to keep what the RFC's method keeps, for comparison.
    """
    wanted = _published(found.candidates) if published else _worth_pricing(found.candidates)
    kept = tuple(each for each in found.candidates if (each.sub_graph.inside, each.backend) in wanted)
    counts = Counter((candidate.backend, candidate.rule) for candidate in kept)
    report = replace(
        found.report,
        num_by_rule=dict(sorted(counts.items())),
        num_pruned=found.report.num_pruned + len(found.candidates) - len(kept),
    )
    return Candidates(candidates=kept, report=report)


def _worth_pricing(candidates: Sequence[CandidatePartition]) -> set[_Offer]:
    """Return what this project keeps: see the module."""
    maximal = _maximal(candidates)
    wanted = {(inside, backend) for backend, insides in maximal.items() for inside in insides}
    wanted |= _remainders(maximal)
    offers = Counter(candidate.sub_graph.inside for candidate in candidates)
    for candidate in candidates:
        inside = candidate.sub_graph.inside
        if len(inside) == 1 or offers[inside] > 1:
            wanted.add((inside, candidate.backend))
    return wanted


def _published(candidates: Sequence[CandidatePartition]) -> set[_Offer]:
    """Return what the RFC's method keeps.

    The maximal ones; and, where kept ones cut into each other, in rounds, the maximal ones of the rest, which
    bridge the gaps between them.
    """
    left = list(candidates)
    kept: dict[_Offer, None] = {}
    while True:
        maximal = _maximal(left)
        new = [(inside, backend) for backend, insides in maximal.items() for inside in insides]
        if all(offer in kept for offer in new):
            return set(kept)
        kept.update(dict.fromkeys(new))
        holding = _by_node(dict.fromkeys(inside for inside, _ in kept))
        cutting = {
            offer
            for offer in kept
            if any(other != offer[0] for index in offer[0] for other in holding[index])
        }
        left = [each for each in left if (each.sub_graph.inside, each.backend) not in cutting]


def _maximal(candidates: Sequence[CandidatePartition]) -> dict[str, tuple[NodeSet, ...]]:
    """Return each backend's candidates that none of its others contains."""
    insides: dict[str, dict[NodeSet, None]] = defaultdict(dict)
    for candidate in candidates:
        insides[candidate.backend][candidate.sub_graph.inside] = None
    return {
        backend: tuple(inside for inside in own if not _is_contained(inside, holding))
        for backend, own in insides.items()
        for holding in [_by_node(own)]
    }


def _by_node(insides: dict[NodeSet, None]) -> dict[int, list[NodeSet]]:
    """Return the sets that hold each node."""
    holding: dict[int, list[NodeSet]] = defaultdict(list)
    for inside in insides:
        for index in inside:
            holding[index].append(inside)
    return holding


def _is_contained(inside: NodeSet, holding: dict[int, list[NodeSet]]) -> bool:
    return any(inside != other and inside.is_subset(other) for other in holding[inside.first])


def _remainders(maximal: dict[str, tuple[NodeSet, ...]]) -> set[_Offer]:
    """Return what is left of each maximal candidate without each that another backend has."""
    holding = {backend: _by_node(dict.fromkeys(insides)) for backend, insides in maximal.items()}
    left = set()
    for backend, insides in maximal.items():
        for inside in insides:
            for other, others in holding.items():
                if other != backend:
                    left |= {(inside - cut, backend) for index in inside for cut in others[index]}
    return {each for each in left if each[0]}
