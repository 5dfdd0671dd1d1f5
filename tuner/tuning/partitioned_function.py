"""Partition one function: data-flow graph, priced candidates, search, outlined module.

The same steps serve a whole model, a layer and each function of a stage. Prices come from the records where
they hold them, so a sub-graph that several functions share is measured once. Checked in
tests/tuner/tuning/test_tune.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from records import Tensor, Workload
from records.backend_names import kept_name
from tuner.graph import DataflowGraph, NodeSet
from tuner.graph.relax_types import IRModule, num_inputs_of
from tuner.graph.torch_call import LABEL as TORCH_CALL
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.batch_norm_folding import fold_batch_norms
from tuner.lowering.outline import extract_function, outline_partitions
from tuner.lowering.workload_of import describe_graph, workload_of
from tuner.partition.alternatives import CandidateIndex
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.find_partition import (
    Partition,
    RefusedCandidate,
    check_coverable,
    find_candidates,
    find_partition,
    usable_offers,
)
from tuner.partition.price import Invalid, Price
from tuner.partition.pruning import prune_candidates
from tuner.plan import Figure, PartitionPlan, TensorType
from tuner.pricing.active import price_candidates
from tuner.tuning.session import Session, TuningProgress

REFERENCE_BACKEND = "tvm"
"""Runs what a single other backend cannot, in the variant that uses that backend wherever it can."""

Offer = tuple[CandidatePartition, Price]
"""A candidate, and its price or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedFunction:
    """A function's candidates with their prices.

    Attributes:
        name: what the function is called in reports, such as `stage1.forward`.
        graph: its data-flow graph.
        workload: what records call the whole function.
        prices: one per candidate: a latency, or why there is none.
        num_candidates_by_rule: how many proposals of each backend's rules were kept.
        refused: proposals that their backend refused, and why.
        num_pruned: proposals dropped by pruning.
        launch_penalty_us: what one more partition costs.
    """

    name: str
    graph: DataflowGraph
    workload: Workload
    candidates: tuple[CandidatePartition, ...]
    prices: tuple[Price, ...]
    num_candidates_by_rule: dict[str, int]
    refused: tuple[RefusedCandidate, ...]
    num_pruned: int
    launch_penalty_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedFunction:
    """A function with its chosen partition.

    Attributes:
        priced: what was chosen from.
        partition: what the search chose.
        module: `main` calls one private function a partition, each marked with its backend.
        fingerprint: names the partition: equal for equal choices on equal functions.
    """

    priced: PricedFunction
    partition: Partition
    module: IRModule
    fingerprint: str

    @property
    def sum_of_parts(self) -> Figure:
        """What the search added up, latencies and launches; a prediction where one of the parts is."""
        figures = self.partition.figures
        penalty_us = self.partition.cost_us - sum(figure.latency_us for figure in figures)
        if all(figure.source != "predicted" for figure in figures):
            return Figure(latency_us=self.partition.cost_us, source="derived")
        low, high = (
            sum((figure.interval_us or (figure.latency_us,) * 2)[end] for figure in figures) for end in (0, 1)
        )
        return Figure(
            latency_us=self.partition.cost_us,
            source="predicted",
            interval_us=(low + penalty_us, high + penalty_us),
        )


def price_function(
    session: Session,
    module: IRModule,
    *,
    name: str,
    launch_penalty_us: float,
    layers: Mapping[str, str] = MappingProxyType({}),
) -> PricedFunction:
    """Find and price every candidate of a module's `main`.

    Args:
        session: what measures.
        module: its `main` is priced, with normalisations folded where it says which parameters are weights.
        name: what the function is called in reports.
        launch_penalty_us: what one more partition costs.
        layers: path of its layer by name of a variable that `main` binds.

    Raises:
        UnsupportedOperatorError: the function cannot be read as one data-flow graph.
        UnpriceableError: an operator is in no backend's candidates; said before anything is measured.
        TunerError: the measuring process cannot be started.
    """
    graph = DataflowGraph.from_function(fold_batch_norms(module), layers=layers)
    session.on_progress(TuningProgress(text=f"{name}: finding candidates"))
    found = find_candidates(graph, gather_specs(session.backends, session.target, session.assignments))
    check_coverable(graph, found.candidates, found.report.refused)
    if session.pricing.prune:
        found = prune_candidates(found)
    prices = price_candidates(
        graph,
        found.candidates,
        session.measurer,
        session.pricing,
        launch_penalty_us=launch_penalty_us,
        seed=session.seed,
    )
    return PricedFunction(
        name=name,
        graph=graph,
        workload=describe_graph(graph, "model"),
        candidates=found.candidates,
        prices=prices,
        num_candidates_by_rule={
            f"{backend}:{rule}": count for (backend, rule), count in found.report.num_by_rule.items()
        },
        refused=found.report.refused,
        num_pruned=found.report.num_pruned,
        launch_penalty_us=launch_penalty_us,
    )


def choose_partition(
    priced: PricedFunction, *, only: str | None = None, without: Set[str] = frozenset()
) -> PartitionedFunction:
    """Return the cheapest partition, of all backends, of all but some, or of a single one.

    Args:
        only: use this backend wherever it can run something, and `REFERENCE_BACKEND` for the rest.
        without: use none of these backends, except for torch calls, which one alone can run.

    Raises:
        UnpriceableError: nobody can run an operator; names it.
    """
    chosen_from = [
        (candidate, price)
        for candidate, price in zip(priced.candidates, priced.prices, strict=True)
        if candidate.backend not in without or candidate.sub_graph.label == TORCH_CALL
    ]
    if only is not None:
        return of_parts(priced, _preferring(priced, chosen_from, only).chosen)
    return of_partition(priced, _cheapest(priced, chosen_from))


def of_partition(priced: PricedFunction, partition: Partition) -> PartitionedFunction:
    """Return a function rewritten to call the parts of its partition."""
    return PartitionedFunction(
        priced=priced,
        partition=partition,
        module=outline_partitions(priced.graph, partition.chosen),
        fingerprint=_fingerprint(priced.graph, partition.chosen),
    )


def of_parts(priced: PricedFunction, parts: Sequence[CandidatePartition]) -> PartitionedFunction:
    """Return a partition of given parts, as the graph-level search finds it: cheapest end to end, not by sum.

    Its parts have no runner-ups: `with_runner_ups` finds them for the one that is chosen.

    Args:
        priced: the function; every part is one of its candidates, with a latency.
        parts: they hold every node exactly once.
    """
    figures, penalty_us = _figures_and_penalty(priced, parts)
    partition = Partition(
        chosen=tuple(parts),
        figures=figures,
        runner_ups=(None,) * len(figures),
        cost_us=penalty_us + sum(figure.latency_us for figure in figures),
        penalty_us=penalty_us,
        lower_bound_us=0.0,
        states=0,
        proven=False,
    )
    return of_partition(priced, partition)


def with_runner_ups(function: PartitionedFunction) -> PartitionedFunction:
    """Return the function with the next best backend of each part."""
    priced, partition = function.priced, function.partition
    index = CandidateIndex(usable_offers(priced.candidates, priced.prices))
    runner_ups = tuple(
        index.runner_up(part, launch_penalty_us=priced.launch_penalty_us) for part in partition.chosen
    )
    return replace(function, partition=replace(partition, runner_ups=runner_ups))


def binding(priced: PricedFunction) -> str:
    """Return what tells records of programs with bound weights from those with weights as arguments."""
    return "" if num_inputs_of(priced.graph.source.function) is None else ";bound"


PartKey = tuple[str, str]
"""What makes two sub-graphs one row of a plan: their workload's fingerprint, and who runs them."""


def part_keys(function: PartitionedFunction) -> tuple[PartKey | None, ...]:
    """Return the key of each chosen part, in the partition's order; None for those that cost nothing."""
    graph = function.priced.graph
    return tuple(
        None
        if part.backend == FREE
        else (workload_of(extract_function(graph, part.sub_graph, part.backend)).fingerprint, part.backend)
        for part in function.partition.chosen
    )


def partition_plans(functions: Iterable[PartitionedFunction]) -> tuple[PartitionPlan, ...]:
    """List the distinct sub-graphs that the functions run, most total time first."""
    plans: dict[tuple[str, str], PartitionPlan] = {}
    for function in functions:
        graph = function.priced.graph
        partition = function.partition
        for candidate, figure, runner_up in zip(
            partition.chosen, partition.figures, partition.runner_ups, strict=True
        ):
            if candidate.backend == FREE:
                continue
            workload = workload_of(extract_function(graph, candidate.sub_graph, candidate.backend))
            key = workload.fingerprint, candidate.backend
            known = plans.get(key)
            functions_of = () if known is None else known.functions
            layers_of = () if known is None else known.layers
            layers = graph.layers_of(candidate.sub_graph.inside)
            plans[key] = PartitionPlan(
                operators=graph.operators_of(candidate.sub_graph.inside),
                backend=candidate.backend,
                figure=figure,
                occurrences=1 if known is None else known.occurrences + 1,
                workload_fingerprint=workload.fingerprint,
                functions=tuple(dict.fromkeys((*functions_of, function.priced.name))),
                runner_up=None if runner_up is None else (runner_up.backend, runner_up.latency_us),
                layers=tuple(dict.fromkeys((*layers_of, layers) if layers else layers_of)),
                inputs=_tensor_types(workload.inputs),
                outputs=_tensor_types(workload.values[number] for number in workload.results),
            )
    return tuple(
        sorted(plans.values(), key=lambda plan: (-plan.figure.latency_us * plan.occurrences, plan.operators))
    )


def _tensor_types(tensors: Iterable[Tensor]) -> tuple[TensorType, ...]:
    return tuple(TensorType(tensor.shape, tensor.dtype) for tensor in tensors)


def refusals(functions: Iterable[PricedFunction]) -> dict[str, int]:
    """Count candidates without a price, and proposals that were refused before pricing, by reason."""
    counts: dict[str, int] = {}
    for function in functions:
        for refused in function.refused:
            counts[refused.reason] = counts.get(refused.reason, 0) + 1
        for price in function.prices:
            if isinstance(price, Invalid):
                counts[price.reason] = counts.get(price.reason, 0) + 1
    return counts


def _preferring(priced: PricedFunction, offers: Sequence[Offer], backend: str) -> Partition:
    """Return the cheapest partition in which a backend runs whatever it can, and the reference what is left.

    Where the backend reaches, the reference is its last resort: used only where the backend's candidates
    overlap and cannot all be taken. A partition with the fewest operators left to it is found first. Its
    whole cost is added then for each of them, so that one more is never worth it; much larger numbers would
    hide differences of microseconds from the search's linear program.
    """
    allowed = [
        (candidate, price)
        for candidate, price in offers
        if candidate.backend in (backend, REFERENCE_BACKEND, FREE) or candidate.sub_graph.label == TORCH_CALL
    ]
    reachable = NodeSet()
    for candidate, price in allowed:
        if candidate.backend == backend and isinstance(price, Figure):
            reachable = reachable | candidate.sub_graph.inside
    resorts = {
        candidate: len(candidate.sub_graph.inside & reachable)
        for candidate, _ in allowed
        if candidate.backend == REFERENCE_BACKEND != backend
    }
    counted = [(candidate, _costing(price, float(resorts.get(candidate, 0)))) for candidate, price in allowed]
    fewest = _cheapest(replace(priced, launch_penalty_us=0.0), counted).chosen
    if not any(resorts.get(part) for part in fewest):
        allowed = [(candidate, price) for candidate, price in allowed if not resorts.get(candidate)]
    figures, penalty_us = _figures_and_penalty(priced, fewest)
    resort_us = penalty_us + sum(figure.latency_us for figure in figures)
    return _cheapest(
        priced,
        [
            (candidate, _costing(price, resorts.get(candidate, 0) * resort_us, more=True))
            for candidate, price in allowed
        ],
    )


def _figures_and_penalty(
    priced: PricedFunction, parts: Sequence[CandidatePartition]
) -> tuple[tuple[Figure, ...], float]:
    price_by_candidate = dict(zip(priced.candidates, priced.prices, strict=True))
    figures = tuple(price for part in parts if isinstance(price := price_by_candidate[part], Figure))
    return figures, priced.launch_penalty_us * sum(part.backend != FREE for part in parts)


def _costing(price: Price, latency_us: float, *, more: bool = False) -> Price:
    """Return a price with another latency, or with so much more; what has none stays without."""
    if not isinstance(price, Figure):
        return price
    latency_us += price.latency_us if more else 0.0
    return msgspec.structs.replace(price, latency_us=latency_us, source="derived", interval_us=None)


def _cheapest(priced: PricedFunction, offers: Sequence[Offer]) -> Partition:
    return find_partition(
        priced.graph,
        [candidate for candidate, _ in offers],
        [price for _, price in offers],
        launch_penalty_us=priced.launch_penalty_us,
        refused=priced.refused,
    )


def _fingerprint(graph: DataflowGraph, chosen: Sequence[CandidatePartition]) -> str:
    parts = sorted(
        f"{candidate.sub_graph.inside.bits:x}:{kept_name(candidate.backend)}:{candidate.sub_graph.label}"
        for candidate in chosen
    )
    return hashlib.blake2b(f"{len(graph)};{';'.join(parts)}".encode(), digest_size=8).hexdigest()
