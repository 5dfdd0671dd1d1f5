"""Partition search: assign sub-graphs to backends at the minimal sum of prices.

The cost of a partition is the sum of its parts' latencies, a launch penalty for each part, and a transition
penalty for each value that a part reads from another backend. This leaves out what parts do to each other's
caches and memory; the additive error is reported beside measured end-to-end latency, and
`tuner.partition.evolution` searches on that. The answer is the cheapest by that sum, proven
(`Partition.proven`), to within a picosecond per part; such ties go to fewer parts. Checked in
tests/tuner/partition/test_find_partition.py.

Source: Jeon et al., "Collage" (PACT 2022), op-level search; TVM RFC 62 ("Partitioner").
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from records.measurement import NOT_BY_PROGRAM
from tuner.errors import UnpriceableError
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.subgraph import SubGraphLimits
from tuner.partition.alternatives import CandidateIndex, NextBest, PricedCandidate
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.cover_bound import node_prices
from tuner.partition.cover_search import Cover, CoverProblem, Option, StuckError, search_cover
from tuner.partition.partition_spec import PartitionSpec
from tuner.partition.price import Invalid, Price
from tuner.partition.several_targets import numbered_by_target
from tuner.plan import Figure

UNITS_PER_US = 1_000_000
"""Searched costs are whole picoseconds, so that sums do not depend on their order."""

_RUNNABLE = SubGraphLimits(max_exits=sys.maxsize, allow_taps=True)
"""Limits that leave only convexity: whatever the rule, what waits for itself cannot run."""

DEFAULT_MAX_STATES = 100_000
"""States before the proof of optimality is given up: some ten seconds. Real models need one per part."""


@dataclass(frozen=True, slots=True)
class RefusedCandidate:
    """A proposal that its backend refused, and why."""

    candidate: CandidatePartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateReport:
    """What became of the rules' proposals.

    Attributes:
        num_by_rule: proposals kept, by (backend, rule).
        refused: proposals that their backend refused.
        num_pruned: proposals dropped by pruning.
    """

    num_by_rule: Mapping[tuple[str, str], int]
    refused: tuple[RefusedCandidate, ...]
    num_pruned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """All candidates of a graph, each once, with the report."""

    candidates: tuple[CandidatePartition, ...]
    report: CandidateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """How far a search is: states expanded, and the most nodes covered in one of them."""

    states: int
    covered: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The cheapest partition found.

    Attributes:
        chosen: the parts, in an order of their smallest nodes.
        figures: their latencies.
        runner_ups: for each part the next best backend; None where no other can run it.
        cost_us: latencies and penalties.
        penalty_us: the penalties alone.
        lower_bound_us: no partition into the candidates costs less.
        states: states that the search expanded.
        proven: whether nothing cheaper exists.
    """

    chosen: tuple[CandidatePartition, ...]
    figures: tuple[Figure, ...]
    runner_ups: tuple[NextBest | None, ...]
    cost_us: float
    penalty_us: float
    lower_bound_us: float
    states: int
    proven: bool


def find_candidates(graph: DataflowGraph, specs: Sequence[PartitionSpec]) -> Candidates:
    """Return every candidate of every spec, each once, in order of specs and of their rules' proposals."""
    found: dict[CandidatePartition, None] = {}
    refused: list[RefusedCandidate] = []
    for spec in specs:
        for sub_graph in spec.rule.find_candidates(graph):
            candidate = CandidatePartition(sub_graph, spec.backend, sub_graph.label or spec.rule.name)
            reason = sub_graph.invalid_reason(graph, _RUNNABLE) or spec.refusal(graph, sub_graph)
            if reason is None:
                found[candidate] = None
            else:
                refused.append(RefusedCandidate(candidate, reason))
    counts = Counter((candidate.backend, candidate.rule) for candidate in found)
    report = CandidateReport(num_by_rule=dict(sorted(counts.items())), refused=tuple(refused))
    return Candidates(candidates=tuple(found), report=report)


def find_partition(
    graph: DataflowGraph,
    candidates: Sequence[CandidatePartition],
    prices: Sequence[Price],
    *,
    launch_penalty_us: float,
    transition_penalty_us: float = 0.0,
    refused: Sequence[RefusedCandidate] = (),
    max_states: int | None = DEFAULT_MAX_STATES,
    on_progress: Callable[[SearchProgress], None] = lambda progress: None,
) -> Partition:
    """Return the cheapest way to run every node exactly once.

    Args:
        candidates: what to choose among.
        prices: one per candidate; those that are `Invalid` or `Unknown` cannot be chosen.
        launch_penalty_us: microseconds for each part, the host's excepted.
        transition_penalty_us: microseconds for each value that a part reads from another backend, or from
            another target where the backends are those of several (`tuner.partition.several_targets`).
        refused: proposals that were refused before, to say why nobody can run an operator.
        max_states: states before the proof is given up; no limit if None.
        on_progress: told now and then how far the search is.

    Raises:
        UnpriceableError: no candidate that can run covers some operator; says why for each backend.
        ValueError: prices and candidates differ in number, or a penalty is negative.
    """
    if len(candidates) != len(prices):
        raise ValueError(
            f"there are {len(candidates)} candidates but {len(prices)} prices; give one price each"
        )
    if launch_penalty_us < 0 or transition_penalty_us < 0:
        raise ValueError(
            f"penalties are {launch_penalty_us} and {transition_penalty_us} us, but a penalty below 0 "
            "would reward needless parts; measure them again"
        )
    offers = usable_offers(candidates, prices)
    usable = [offer.candidate for offer in offers]
    _refuse_uncovered(graph, usable, candidates, prices, refused)
    problem = _Problem(graph, offers, launch_penalty_us, transition_penalty_us)
    try:
        cover = problem.solve(max_states, on_progress)
    except StuckError as error:
        raise UnpriceableError(_stuck_message(graph, problem.order[error.node])) from error
    return problem.partition(cover)


def check_coverable(
    graph: DataflowGraph, candidates: Sequence[CandidatePartition], refused: Sequence[RefusedCandidate]
) -> None:
    """Say, before anything is priced, whether each operator is in a candidate.

    Raises:
        UnpriceableError: one is not; says why for each backend.
    """
    _refuse_uncovered(graph, candidates, (), (), refused)


def usable_offers(candidates: Sequence[CandidatePartition], prices: Sequence[Price]) -> list[PricedCandidate]:
    """Return the candidates that can run; the host's cost nothing. Of those alike the cheapest stays."""
    best: dict[tuple[NodeSet, str], PricedCandidate] = {}
    for candidate, price in zip(candidates, prices, strict=True):
        figure = Figure(latency_us=0.0, source="derived") if candidate.backend == FREE else price
        if not isinstance(figure, Figure):
            continue
        key = (candidate.sub_graph.inside, candidate.backend)
        if key not in best or figure.latency_us < best[key].figure.latency_us:
            best[key] = PricedCandidate(candidate, figure)
    return list(best.values())


def _refuse_uncovered(
    graph: DataflowGraph,
    usable: Iterable[CandidatePartition],
    candidates: Sequence[CandidatePartition],
    prices: Sequence[Price],
    refused: Sequence[RefusedCandidate],
) -> None:
    covered = 0
    for candidate in usable:
        covered |= candidate.sub_graph.inside.bits
    missing = graph.all_indices - NodeSet(covered)
    if missing:
        reasons = _reasons(missing.first, candidates, prices, refused)
        raise UnpriceableError(_missing_message(graph, missing.first, reasons))


def _reasons(
    index: int,
    candidates: Sequence[CandidatePartition],
    prices: Sequence[Price],
    refused: Sequence[RefusedCandidate],
) -> dict[str, str]:
    """Return why each backend cannot run a node, by its smallest candidate that holds it."""
    answers = [
        (candidate, price.reason if isinstance(price, Invalid) else "it has not been measured")
        for candidate, price in zip(candidates, prices, strict=True)
        if not isinstance(price, Figure)
    ]
    answers += [(each.candidate, each.reason) for each in refused]
    answers.sort(key=lambda answer: len(answer[0].sub_graph.inside))
    reasons: dict[str, str] = {}
    for candidate, reason in answers:
        if index in candidate.sub_graph.inside:
            reasons.setdefault(candidate.backend, reason)
    return reasons


def _missing_message(graph: DataflowGraph, index: int, reasons: Mapping[str, str]) -> str:
    node = graph.nodes[index]
    named = f"operator {node.operator} ({node.name or f'node {index}'})"
    if not reasons:
        return f"{named} is run by no backend at hand: none proposes it; add a backend that does"
    told = "; ".join(f"{backend}: {reason}" for backend, reason in sorted(reasons.items()))
    if any(NOT_BY_PROGRAM in reason for reason in reasons.values()):
        advice = "see to that, and run the same command again: what was measured is in the records"
    else:
        advice = "add a backend that can, or change the model"
    return f"{named} can be run by no backend at hand ({told}); {advice}"


def _stuck_message(graph: DataflowGraph, index: int) -> str:
    node = graph.nodes[index]
    return (
        f"operator {node.operator} ({node.name or f'node {index}'}) is only in candidates that overlap "
        "others, so that no set of candidates covers every operator once; add a backend that runs it alone"
    )


class _Problem:
    """A graph's offers as options of whole-number cost, over the nodes in depth-first order."""

    def __init__(
        self,
        graph: DataflowGraph,
        offers: Sequence[PricedCandidate],
        launch_penalty_us: float,
        transition_penalty_us: float,
    ) -> None:
        self.order = graph.depth_first_order()
        self._graph = graph.renumbered(self.order)
        self._number = {old: new for new, old in enumerate(self.order)}
        self._offers = offers
        self._launch_penalty_us = launch_penalty_us
        self._transition_cost = round(transition_penalty_us * UNITS_PER_US)
        self._number_of_backend = numbered_by_target(offer.candidate.backend for offer in offers)
        self._options = [self._option(offer) for offer in offers]
        self._index = CandidateIndex(offers)

    def solve(self, max_states: int | None, on_progress: Callable[[SearchProgress], None]) -> Cover:
        """Return the cheapest cover of all nodes."""
        graph = self._graph
        insides = [tuple(NodeSet(option.inside)) for option in self._options]
        problem = CoverProblem(
            ancestors=[each.bits for each in graph.ancestors],
            descendants=[each.bits for each in graph.descendants],
            users=[NodeSet.of(users).bits for users in graph.users],
            options=self._options,
            prices=node_prices(len(graph), insides, [option.cost for option in self._options]),
            transition_cost=self._transition_cost,
        )
        return search_cover(
            problem,
            max_states=max_states,
            on_progress=lambda states, covered: on_progress(
                SearchProgress(states=states, covered=covered, total=len(graph))
            ),
        )

    def partition(self, cover: Cover) -> Partition:
        """Return what a cover stands for."""
        offers = sorted(
            (self._offers[position] for position in cover.chosen),
            key=lambda offer: offer.candidate.sub_graph.inside.first,
        )
        latency_us = sum(offer.figure.latency_us for offer in offers)
        cost_us = (cover.cost - len(offers)) / UNITS_PER_US
        return Partition(
            chosen=tuple(offer.candidate for offer in offers),
            figures=tuple(offer.figure for offer in offers),
            runner_ups=tuple(
                self._index.runner_up(offer.candidate, launch_penalty_us=self._launch_penalty_us)
                for offer in offers
            ),
            cost_us=cost_us,
            penalty_us=max(cost_us - latency_us, 0.0),
            lower_bound_us=min((cover.lower_bound - len(offers)) / UNITS_PER_US, cost_us),
            states=cover.states,
            proven=cover.cost == cover.lower_bound,
        )

    def _option(self, offer: PricedCandidate) -> Option:
        sub_graph, backend = offer.candidate.sub_graph, offer.candidate.backend
        penalty_us = 0.0 if backend == FREE else self._launch_penalty_us
        return Option(
            inside=NodeSet.of(self._number[index] for index in sub_graph.inside).bits,
            reads=NodeSet.of(self._number[index] for index in sub_graph.input).bits,
            cost=round((offer.figure.latency_us + penalty_us) * UNITS_PER_US) + 1,
            backend=self._number_of_backend[backend],
        )
