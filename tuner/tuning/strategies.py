"""Strategies that propose whole programs of a function: each measures some, knowing what the others found.

The sum of parts leaves out what parts do to each other, so whole programs are compared, and every strategy is
one more way to find them. `partition_model` always runs the searched partition and the single backends, and
the others on request; a further strategy is one more function. Checked in tests/tuner/tuning/test_tune.py and
tests/tuner/tuning/test_end_to_end_variants.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from tuner.backends.protocol import ContiguousBackend
from tuner.errors import UnpriceableError
from tuner.graph.relax_types import IRModule
from tuner.graph.structure import Structure
from tuner.partition.candidate import CandidatePartition
from tuner.partition.coalesce import coalesce
from tuner.partition.evolution import EvolutionProgress, EvolutionSettings
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure
from tuner.pricing.measured import MeasuredPricer, price_of
from tuner.tuning.end_to_end_measurement import measure_partitioned
from tuner.tuning.end_to_end_variants import (
    EndToEndCache,
    Search,
    Variant,
    fastest,
    find_coarser,
    leave_backends_out,
)
from tuner.tuning.graph_level_search import chosen_parts, evolve_partition, find_groups
from tuner.tuning.partitioned_function import (
    PartitionedFunction,
    PricedFunction,
    binding,
    choose_partition,
    of_partition,
    of_parts,
)
from tuner.tuning.session import Session, TuningProgress

_MERGE_SLACK = 0.02
"""Share by which a merged part may be slower alone than its parts: measurements repeat to about so much, and
the whole is measured before it is used."""

_WORTH_COARSER = 1.5
"""Ratio to the fastest single backend up to which coarser partitions of another one are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A whole program that a strategy measured.

    Attributes:
        found_by: the strategy, as `PartitionedModel.chosen_by` names it, or the single backend.
        variant: the program with its latency.
        is_single: whether it is a single backend's answer.
    """

    found_by: str
    variant: Variant
    is_single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """What strategies found so far, and what they find more with.

    Attributes:
        session: what measures.
        wholes: whole programs measured so far, so that none is measured twice.
        first: the search's answer, by the sum of its parts.
        proposals: what was found, in order; only `propose` adds to it.
    """

    session: Session
    wholes: EndToEndCache
    first: PartitionedFunction
    proposals: list[Proposal] = field(default_factory=list)

    @property
    def mixes(self) -> dict[str, Variant]:
        """What others than single backends found, by strategy."""
        return {each.found_by: each.variant for each in self.proposals if not each.is_single}

    @property
    def alone(self) -> dict[str, tuple[Variant, ...]]:
        """By backend its program, and where one was found, another of fewer parts."""
        found: dict[str, tuple[Variant, ...]] = {}
        for each in self.proposals:
            if each.is_single:
                found[each.found_by] = (*found.get(each.found_by, ()), each.variant)
        return found


class Strategy(Protocol):
    """Proposes whole programs; a function that measures them is one."""

    def __call__(self, proposed: Proposed) -> Iterable[Proposal]:
        """Return what it adds to what was proposed before."""
        ...


def propose(session: Session, priced: PricedFunction, refinements: Sequence[Strategy] = ()) -> Proposed:
    """Measure the searched partition and each single backend, and what further strategies make of them.

    Args:
        session: what measures.
        priced: the candidates and their prices.
        refinements: strategies that start from what was found, in order.

    Raises:
        UnpriceableError: nobody can run an operator; names it.
        TunerError: neither the searched partition nor a single backend's can be measured; says why.
    """
    proposed = Proposed(
        session=session,
        wholes=EndToEndCache(partial(measure_partitioned, session)),
        first=choose_partition(priced),
    )
    for strategy in (searched, single_backends):
        proposed.proposals.extend(strategy(proposed))
    if not proposed.proposals:
        proposed.wholes.measure(proposed.first, label="mix")  # which says why nothing can be run
    for strategy in refinements:
        proposed.proposals.extend(strategy(proposed))
    return proposed


def refinements_of(*, second_level: int, coarser: bool) -> tuple[Strategy, ...]:
    """Return the strategies that options ask for; see `partition_model`."""
    fewer_parts: tuple[Strategy, ...] = (coarser_single_backends, coarser_mix, coalesced, left_out)
    evolution: tuple[Strategy, ...] = (partial(evolved, max_measurements=second_level),)
    return (*(fewer_parts if coarser else ()), *(evolution if second_level else ()))


def searched(proposed: Proposed) -> Iterable[Proposal]:
    """Propose the partition whose parts add up to the least."""
    return _proposals("searched", proposed.wholes.try_measure(proposed.first, label="mix"))


def single_backends(proposed: Proposed) -> Iterable[Proposal]:
    """Propose each backend that can run something, with the reference backend for the rest."""
    for name, search in _single_searches(proposed).items():
        try:
            function = search(proposed.first.priced)
        except UnpriceableError:
            # Active pricing leaves out what it need not know, a single backend's other kernels among it.
            continue
        variant = proposed.wholes.try_measure(function, label=f"{name}-alone")
        yield from _proposals(name, variant, is_single=True)


def coarser_single_backends(proposed: Proposed) -> Iterable[Proposal]:
    """Propose fewer parts of each single backend that is nearly as fast as the fastest."""
    singles = proposed.alone
    searches = _single_searches(proposed)
    fastest_us = min((figure.latency_us for ((_, figure),) in singles.values()), default=0.0)
    for name, ((function, figure),) in singles.items():
        if figure.latency_us <= _WORTH_COARSER * fastest_us:
            found = find_coarser(proposed.wholes, searches[name], function, label=f"{name}-alone")
            yield from _proposals(name, found, is_single=True)


def coarser_mix(proposed: Proposed) -> Iterable[Proposal]:
    """Propose what the search finds where launches are dearer."""
    found = find_coarser(proposed.wholes, choose_partition, proposed.first, label="mix")
    return _proposals("coarser", found)


def coalesced(proposed: Proposed) -> Iterable[Proposal]:
    """Propose the search's answer with neighbours of one backend merged, where anything can be."""
    session, priced = proposed.session, proposed.first.priced
    if session.pricing.mode != "measured":
        return ()
    session.on_progress(TuningProgress(text=f"{priced.name}: merging neighbours"))
    merged = coalesce(
        priced.graph,
        proposed.first.partition,
        _LongCallsPricer(
            MeasuredPricer(priced.graph, session.measurer),
            {each.name for each in session.backends if isinstance(each, ContiguousBackend)},
        ),
        launch_penalty_us=priced.launch_penalty_us,
        slack=_MERGE_SLACK,
    )
    if not merged.num_merged:
        return ()
    return _proposals(
        "coalesced", proposed.wholes.try_measure(of_partition(priced, merged.partition), label="mix")
    )


def left_out(proposed: Proposed) -> Iterable[Proposal]:
    """Propose answers without some of the backends that the search's answer uses."""
    best = fastest(*(each.variant for each in proposed.proposals))
    for name, variant in leave_backends_out(proposed.wholes, proposed.first, best).items():
        yield Proposal(found_by=name, variant=variant)


def evolved(proposed: Proposed, *, max_measurements: int) -> Iterable[Proposal]:
    """Propose what an evolutionary search on end-to-end latency finds from the search's answer on."""
    if "searched" not in proposed.mixes:
        return ()
    variant = _evolve(proposed.session, proposed.first, max_measurements)
    return _proposals("evolved", proposed.wholes.known(variant))


def _proposals(found_by: str, variant: Variant | None, *, is_single: bool = False) -> tuple[Proposal, ...]:
    return () if variant is None else (Proposal(found_by=found_by, variant=variant, is_single=is_single),)


def _single_searches(proposed: Proposed) -> dict[str, Search]:
    """Return the search of each backend alone that can run something."""
    priced = proposed.first.priced
    usable = zip(priced.candidates, priced.prices, strict=True)
    able = {candidate.backend for candidate, price in usable if isinstance(price, Figure)}
    return {
        backend.name: partial(choose_partition, only=backend.name)
        for backend in proposed.session.backends
        if backend.name in able
    }


@dataclass(frozen=True, slots=True)
class _LongCallsPricer:
    """Prices merged parts of backends whose parts are one call of any length, where borders cost most.

    Others join what they can by their own rules; to measure every pair of neighbours would take longer than
    the search's own candidates do.
    """

    pricer: MeasuredPricer
    backends: Set[str]

    def price(self, candidates: Sequence[CandidatePartition]) -> tuple[Price, ...]:
        long = [each for each in candidates if each.backend in self.backends]
        found = dict(zip(long, self.pricer.price(long), strict=True))
        return tuple(found.get(each, Invalid("its own rule joins its parts")) for each in candidates)


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
        text = f"second level: best {progress.best_us / 1000:.2f} ms"
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
