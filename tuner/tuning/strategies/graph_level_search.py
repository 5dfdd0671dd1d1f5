"""Programs that an evolutionary search on end-to-end latency finds from the search's answer on.

Its space: for each distinct part of the partition, the ways to run it.

A part that occurs many times, as in repeated layers, is one group and one gene. Its choices are the first
level's and each other backend's cheapest way to run the same nodes, so that whatever evolution picks is a
partition of the graph. Checked in tests/tuner/tuning/strategies/test_graph_level_search.py.

Source: Jeon et al., "Collage" (PACT 2022), graph-level search; there groups follow one graph-level backend.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.relax_types import IRModule
from tuner.graph.structure import Structure
from tuner.lowering.outline import extract_function, order_partitions, outline_partitions
from tuner.lowering.workload_of import workload_of
from tuner.partition.alternatives import Alternative, CandidateIndex
from tuner.partition.candidate import CandidatePartition
from tuner.partition.evolution import EvolutionProgress, EvolutionSettings, Evolved, Genes, evolve
from tuner.partition.find_partition import Partition, usable_offers
from tuner.partition.price import Invalid, Price
from tuner.pricing.measured import price_of
from tuner.tuning.end_to_end.cache import Variant
from tuner.tuning.partitioned_function import PartitionedFunction, binding, of_parts
from tuner.tuning.session import Session, TuningProgress
from tuner.tuning.strategies.proposed import Proposal, Proposed, as_proposals


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A distinct part, wherever it occurs.

    Attributes:
        choices: names of who runs it, the first level's choice first.
        parts: for each choice, the parts of all occurrences.
    """

    choices: tuple[str, ...]
    parts: tuple[tuple[CandidatePartition, ...], ...]


def evolved(proposed: Proposed, *, max_measurements: int) -> Iterable[Proposal]:
    """Propose what an evolutionary search on end-to-end latency finds from the search's answer on."""
    if "searched" not in proposed.mixes:
        return ()
    variant = _evolve(proposed.session, proposed.first, max_measurements)
    return as_proposals("evolved", proposed.wholes.known(variant))


def find_groups(
    graph: DataflowGraph,
    partition: Partition,
    candidates: Sequence[CandidatePartition],
    prices: Sequence[Price],
    *,
    launch_penalty_us: float,
) -> tuple[Group, ...]:
    """Return the distinct parts of a partition with every backend's way to run each, in order of occurrence.

    Args:
        partition: the first level's answer.
        candidates: what it was chosen from.
        prices: one per candidate.
        launch_penalty_us: what the first level counted for each part.
    """
    index = CandidateIndex(usable_offers(candidates, prices))
    occurrences: dict[tuple[str, str], list[CandidatePartition]] = defaultdict(list)
    for part in partition.chosen:
        function = extract_function(graph, part.sub_graph, part.backend)
        workload = workload_of(function, module=graph.source.module)
        occurrences[workload.fingerprint, part.backend].append(part)
    return tuple(_group(parts, index, launch_penalty_us) for parts in occurrences.values())


def chosen_parts(groups: Sequence[Group], genes: Genes) -> tuple[CandidatePartition, ...]:
    """Return the partition that genes stand for, in order of smallest nodes."""
    parts = [part for group, gene in zip(groups, genes, strict=True) for part in group.parts[gene]]
    return tuple(sorted(parts, key=lambda part: part.sub_graph.inside.first))


def evolve_partition(
    graph: DataflowGraph,
    groups: Sequence[Group],
    measure: Callable[[IRModule], Price],
    *,
    rng: np.random.Generator,
    settings: EvolutionSettings = EvolutionSettings(),  # noqa: B008 - frozen, so sharing it is safe
    on_progress: Callable[[EvolutionProgress], None] = lambda progress: None,
) -> Evolved:
    """Return the fastest partition measured end to end, as genes of the groups.

    Args:
        groups: the distinct parts and their choices.
        measure: builds an outlined module and returns its end-to-end latency, or why there is none.
        rng: draws populations.
        settings: how to evolve, and for how long.
        on_progress: told after each measurement.

    Raises:
        TunerError: the first level's partition could not be measured.
    """

    def measure_genes(genes: Genes) -> Price:
        parts = chosen_parts(groups, genes)
        try:
            order_partitions(graph, [part.sub_graph for part in parts])
        except ValueError as error:
            return Invalid(str(error))
        return measure(outline_partitions(graph, parts))

    num_choices = [len(group.choices) for group in groups]
    return evolve(num_choices, measure_genes, rng=rng, settings=settings, on_progress=on_progress)


def _group(parts: Sequence[CandidatePartition], index: CandidateIndex, launch_penalty_us: float) -> Group:
    """Return the choices that every occurrence has."""
    found = [
        index.alternatives(part.sub_graph.inside, without=part.backend, launch_penalty_us=launch_penalty_us)
        for part in parts
    ]
    shared = [
        alternative.backend
        for alternative in found[0]
        if all(any(alternative.backend == other.backend for other in each) for each in found)
    ]
    choices = (parts[0].backend, *shared)
    replaced = tuple(_parts_of(found, backend) for backend in shared)
    return Group(choices=choices, parts=(tuple(parts), *replaced))


def _parts_of(found: Sequence[Sequence[Alternative]], backend: str) -> tuple[CandidatePartition, ...]:
    return tuple(
        part
        for each in found
        for alternative in each
        if alternative.backend == backend
        for part in alternative.parts
    )


def _evolve(session: Session, first: PartitionedFunction, budget: int) -> Variant:
    """Search on measured end-to-end latency, from the first level's answer on."""
    priced = first.priced
    groups = find_groups(
        priced.graph,
        first.partition,
        priced.candidates,
        priced.prices,
        launch_penalty_us=priced.launch_penalty_us,
    )

    def report(progress: EvolutionProgress) -> None:
        text = f"graph-level search: best {progress.best_us / 1000:.2f} ms"
        session.on_progress(
            TuningProgress(text=text, completed=progress.num_measured, total=progress.max_measurements)
        )

    def measure(module: IRModule) -> Price:
        # The program itself names the variant: equal programs are one record, whoever proposed them.
        record = session.measurer.measure_function(
            priced.workload,
            module,
            "mix",
            settings=f"program={Structure(module).fingerprint}{binding(priced)}",
        )
        return price_of(record)

    evolved = evolve_partition(
        priced.graph,
        groups,
        measure,
        rng=np.random.default_rng(session.seed),
        settings=EvolutionSettings(max_measurements=budget),
        on_progress=report,
    )
    return of_parts(priced, chosen_parts(groups, evolved.genes)), evolved.figure
