"""Alternatives for a part: the cheapest cover by each other backend, in as many parts as that takes.

A backend that cannot run all of a part does what it can, and the chosen one, in smaller parts, does the rest.
This answers "why this backend here" in reports, and gives the graph-level search its choices. Checked
in tests/tuner/partition/test_alternatives.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tuner.graph.node_set import NodeSet
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.plan import Figure

_BEAM = 512
"""States followed at once; parts of a few nodes have fewer, so that their answer is the cheapest."""


class NextBest(NamedTuple):
    """Who is next best for a chosen sub-graph (`Alternative.runners`), and the latency in microseconds."""

    backend: str
    latency_us: float


@dataclass(frozen=True, slots=True)
class PricedCandidate:
    """A candidate that can run, and its latency."""

    candidate: CandidatePartition
    figure: Figure


@dataclass(frozen=True, slots=True)
class Alternative:
    """One backend's cheapest way to run the nodes of a part.

    Attributes:
        backend: who runs all of it, or what it can with the chosen backend's help.
        parts: one candidate, or several that cover the nodes exactly.
        latency_us: their latencies, and a launch penalty between them.
    """

    backend: str
    parts: tuple[CandidatePartition, ...]
    latency_us: float

    @property
    def runners(self) -> str:
        """Everyone who runs some of it, such as `blas + tvm`; the backend itself comes first."""
        helpers = sorted({part.backend for part in self.parts} - {self.backend})
        return " + ".join((self.backend, *helpers))


class CandidateIndex:
    """Offers by their smallest node."""

    def __init__(self, offers: Iterable[PricedCandidate]) -> None:
        self._by_first: dict[int, list[PricedCandidate]] = defaultdict(list)
        for offer in offers:
            self._by_first[offer.candidate.sub_graph.inside.first].append(offer)

    def alternatives(
        self, inside: NodeSet, *, without: str, launch_penalty_us: float
    ) -> tuple[Alternative, ...]:
        """Return each other backend's cheapest way to run the nodes, the cheapest first.

        Args:
            inside: the nodes of a part.
            without: the backend that was chosen; neither it nor the host is an alternative.
            launch_penalty_us: microseconds for each part beyond the first.
        """
        by_backend: dict[str, list[PricedCandidate]] = defaultdict(list)
        for index in inside:
            for offer in self._by_first.get(index, ()):
                if offer.candidate.sub_graph.inside.is_subset(inside):
                    by_backend[offer.candidate.backend].append(offer)
        found = [
            _cheapest(backend, inside, offers, launch_penalty_us)
            or _cheapest(backend, inside, [*offers, *by_backend[without]], launch_penalty_us)
            for backend, offers in sorted(by_backend.items())
            if backend not in (FREE, without)
        ]
        return tuple(sorted((each for each in found if each is not None), key=lambda each: each.latency_us))

    def runner_up(self, part: CandidatePartition, *, launch_penalty_us: float) -> NextBest | None:
        """Return the best alternative for the nodes of a part; None if no other backend can run any of it."""
        found = self.alternatives(
            part.sub_graph.inside, without=part.backend, launch_penalty_us=launch_penalty_us
        )
        return NextBest(found[0].runners, found[0].latency_us) if found else None


def _cheapest(
    backend: str, inside: NodeSet, offers: Sequence[PricedCandidate], launch_penalty_us: float
) -> Alternative | None:
    """Return the cheapest exact cover that the backend has a share in; None where there is none.

    Dynamic programming over covered sets; a bit above all nodes says that the backend has its share. Of
    a part with many nodes only the `_BEAM` states with the least time a node are followed.
    """
    has_share = 1 << inside.bits.bit_length()
    holding: dict[int, list[PricedCandidate]] = defaultdict(list)
    for offer in offers:
        for index in offer.candidate.sub_graph.inside:
            holding[index].append(offer)
    best: dict[int, tuple[float, tuple[CandidatePartition, ...]]] = {0: (-launch_penalty_us, ())}
    for index in inside:
        reached = {covered: found for covered, found in best.items() if covered >> index & 1}
        for covered, (latency_us, parts) in best.items():
            if covered >> index & 1:
                continue
            for offer in holding[index]:
                bits = offer.candidate.sub_graph.inside.bits
                if bits & covered:
                    continue
                after = covered | bits | (has_share if offer.candidate.backend == backend else 0)
                total_us = latency_us + offer.figure.latency_us + launch_penalty_us
                if after not in reached or total_us < reached[after][0]:
                    reached[after] = total_us, (*parts, offer.candidate)
        best = reached
        if len(best) > _BEAM:
            kept = sorted(best, key=lambda covered: best[covered][0] / covered.bit_count())
            best = {covered: best[covered] for covered in kept[:_BEAM]}
    if inside.bits | has_share not in best:
        return None
    latency_us, parts = best[inside.bits | has_share]
    return Alternative(backend, parts, latency_us)
