"""Partition an entire model: the mix of backends measured end to end against each single backend.

What is measured is the model's `main`: the outputs, or for training the loss. The sum of parts stands beside
the measured latency, because launches and caches make the two differ; so the mix is the winner of a race
between whole programs: the search's first answer, coarser ones, answers that leave backends out, each single
backend, and what an evolutionary search finds from there. Results are checked against the program that the
model was imported from, or else against the unpartitioned model on random inputs. Checked in
tests/tuner/test_tune.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import partial

import numpy as np

from tuner.backends.protocol import NUM_INPUTS_ATTRIBUTE, IRModule, StretchBackend
from tuner.batch_norm_folding import fold_batch_norms
from tuner.candidate import CandidatePartition
from tuner.coalesce import coalesce
from tuner.describe import describe_function
from tuner.errors import TunerError, UnpriceableError
from tuner.evolution import EvolutionProgress, EvolutionSettings
from tuner.explanation import Explanation, explain_partition
from tuner.frontend.model import Model
from tuner.import_check import check_import
from tuner.launch_penalty import measure_launch_penalty
from tuner.partitioned_function import (
    PartitionedFunction,
    PricedFunction,
    binding,
    choose_partition,
    of_partition,
    of_parts,
    partition_plans,
    price_function,
    refusals,
    with_runner_ups,
)
from tuner.plan import Figure, PairedRatio, PartitionPlan
from tuner.price import Invalid, Price
from tuner.price_measured import MeasuredPricer, price_of
from tuner.second_level import chosen_parts, evolve_partition, find_groups
from tuner.session import Session, TuningProgress
from tuner.structure import Structure
from tuner.whole_check import WrongNumbersError, check_whole, drop_wrong_part
from tuner.whole_race import race_wholes, request_of
from tuner.whole_variants import (
    Variant,
    Wholes,
    fastest,
    find_coarser,
    find_without,
)
from tuner.wrong_parts import WrongPart, leave_out

_MERGE_SLACK = 0.02
"""Share by which a merged part may be slower alone than its parts: measurements repeat to about so much, and
the whole is measured before it is used."""


_WORTH_COARSER = 1.5
"""Ratio to the fastest single backend up to which coarser partitions of another one are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedModel:
    """What partitioning a whole model found.

    Attributes:
        model: the model's name.
        fingerprint: names its structure and shapes.
        function: the model's function with its chosen partition.
        chosen_by: whose answer it is: `searched`, `coarser`, `coalesced`, `without` and the backends left
            out by commas, `evolved`, or the single backend.
        alone: each single backend's partition, with the reference backend for what it cannot run.
        partition: the distinct sub-graphs and their backends.
        end_to_end: measured latency of the whole function: `mix`, and each single backend that can run any of
            it (with the reference backend for the rest); medians over the rounds of the race that it ran.
        ratio_to_mix: for each single backend that raced, its latency over the mix's, paired by rounds.
        is_tie: whether the race left several of which none is ahead; then the mix is the simplest of them.
        sum_of_parts: what the search added up for the mix.
        explanations: for each distinct part who else could have run it, and why others could not.
        launch_penalty_us: what one more partition costs, measured.
        max_relative_error: largest error of the mix against the model's own program, or else against the
            unpartitioned model; None where nothing ran.
        import_error: largest error of the imported program against the user's own; None for models that were
            not imported from one that can be run.
        num_candidates_by_rule: how many candidates each rule proposed.
        num_invalid: candidates that their backend cannot run.
        num_refused_by_reason: why, and how often.
        num_states: states that the search expanded.
        new_measurements: measurements made for it.
        reused_measurements: measurements found in the records.
    """

    model: str
    fingerprint: str
    function: PartitionedFunction
    chosen_by: str
    alone: dict[str, PartitionedFunction]
    partition: tuple[PartitionPlan, ...]
    end_to_end: dict[str, Figure]
    ratio_to_mix: dict[str, PairedRatio]
    is_tie: bool
    sum_of_parts: Figure
    explanations: tuple[Explanation, ...]
    launch_penalty_us: float
    max_relative_error: float | None
    import_error: float | None
    num_candidates_by_rule: dict[str, int]
    num_invalid: int
    num_refused_by_reason: dict[str, int]
    num_states: int
    new_measurements: int
    reused_measurements: int


def partition_model(
    model: Model, session: Session, *, second_level: int = 0, coarser: bool = False
) -> PartitionedModel:
    """Choose who runs which part of a model's function, and measure the choice end to end.

    The sum of parts leaves out what parts do to each other, so several whole programs are measured: the
    search's partition, coarser ones, those without some of the backends, each single backend, and what the
    second level finds. The fastest of them, every single backend among them, race in turn (`tuner.race`). The
    winner's results are compared with the unpartitioned model's; a part that makes them wrong is left out,
    with a warning and a record, and the choice is made again.

    Args:
        model: what is partitioned.
        session: what measures.
        second_level: whole programs that an evolutionary search may measure, from the first answer on.
        coarser: whether fewer and larger parts are measured too, which pay off where crossing a boundary
            costs more than isolated parts show: partitions found with higher launch penalties, the first
            answer with neighbouring parts of one backend merged (`tuner.coalesce`), and partitions that leave
            out a backend which the first answer uses.

    Raises:
        UnpriceableError: nobody can run an operator, or nobody gives right numbers for it; names it.
        TunerError: the model was imported wrongly, or no partition of the whole can be measured.
    """
    import_error = check_import(model, session)
    penalty = measure_launch_penalty(session.measurer)
    all_priced = price_function(
        session, prepared_module(model), name="model", launch_penalty_us=penalty.latency_us
    )
    wrong: list[WrongPart] = []
    while True:
        priced = leave_out(all_priced, wrong)
        choice = _choose(session, priced, second_level=second_level, coarser=coarser)
        mix = with_runner_ups(choice.winner[0])
        try:
            error = check_whole(session, model, mix)
            break
        except WrongNumbersError as found:
            wrong.append(drop_wrong_part(session, model, mix, found.deviation))
    refused = refusals([priced])
    return PartitionedModel(
        model=model.name,
        fingerprint=describe_function(model.module["main"], "model", module=model.module).fingerprint,
        function=mix,
        chosen_by=choice.chosen_by,
        alone={name: variant[0] for name, variant in choice.alone.items()},
        partition=partition_plans([mix]),
        end_to_end={"mix": choice.winner[1]} | {name: variant[1] for name, variant in choice.alone.items()},
        ratio_to_mix=choice.ratio_to_mix,
        is_tie=choice.is_tie,
        sum_of_parts=mix.sum_of_parts,
        explanations=_explanations(mix),
        launch_penalty_us=penalty.latency_us,
        max_relative_error=error,
        import_error=import_error,
        num_candidates_by_rule=priced.num_candidates_by_rule,
        num_invalid=sum(refused.values()),
        num_refused_by_reason=refused,
        num_states=choice.num_states,
        new_measurements=session.measurer.new_measurements,
        reused_measurements=session.measurer.reused_measurements,
    )


def prepared_module(model: Model) -> IRModule:
    """Return a model's module, told which of its parameters stay as they are, with normalisations folded.

    Training changes all parameters, so that its module stays as it is.
    """
    if model.training:
        return model.module
    marked = model.module.clone()
    marked.update_func(
        marked.get_global_var("main"),
        model.module["main"].with_attr(NUM_INPUTS_ATTRIBUTE, len(model.inputs)),
    )
    return fold_batch_norms(marked)


def measure_partitioned(session: Session, function: PartitionedFunction, *, label: str = "mix") -> Figure:
    """Measure a partitioned function end to end, through the records; where nothing is measured, add up.

    Args:
        session: what measures.
        function: what is built and run.
        label: what its record has for a backend.

    Raises:
        TunerError: it cannot be built or run; says why.
    """
    if session.pricing.mode == "model":
        return function.sum_of_parts
    session.on_progress(TuningProgress(text=f"{function.priced.name}: measuring {label}"))
    (record,) = session.measurer.measure_many([request_of(function, label)])
    price = price_of(record)
    if isinstance(price, Invalid):
        raise TunerError(
            f"{function.priced.name} of {label} could not be measured ({price.reason}), though its parts "
            "could; leave a backend out with --backends, or see `tessel records show "
            f"{record.record_id}`"
        )
    return price


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The program that was chosen, and what it was chosen from; see `PartitionedModel`."""

    winner: Variant
    chosen_by: str
    alone: dict[str, Variant]
    ratio_to_mix: dict[str, PairedRatio]
    is_tie: bool
    num_states: int


def _choose(session: Session, priced: PricedFunction, *, second_level: int, coarser: bool) -> _Choice:
    """Propose whole programs, measure each, and let the fastest of them race."""
    wholes = Wholes(partial(measure_partitioned, session))
    first = choose_partition(priced)
    searched = wholes.try_measure(first, label="mix")
    ours = {"searched": searched} if searched is not None else {}
    alone = _alone(wholes, session, priced, coarser=coarser)
    if not (ours or alone):
        wholes.measure(first, label="mix")  # which says why nothing can be run
    if coarser:
        known = [*ours.values(), *(each for versions in alone.values() for each in versions)]
        ours |= _coarser(wholes, session, first, known)
    if second_level and searched is not None:
        ours["evolved"] = wholes.known(_evolve(session, first, second_level))
    outcome = race_wholes(session, ours, [each for versions in alone.values() for each in versions])
    # Where programs are equal, the search has found it: its answer is the one that is explained.
    found_by = {
        function.fingerprint: (name, (function, figure))
        for name, versions in reversed([*((name, (each,)) for name, each in ours.items()), *alone.items()])
        for function, figure in versions
    }
    chosen_by, winner = found_by[outcome.winner]
    single = {name: outcome.better(versions) for name, versions in alone.items()}
    return _Choice(
        winner=outcome.of(winner),
        chosen_by=chosen_by,
        alone=single,
        ratio_to_mix={
            name: outcome.ratios[function.fingerprint]
            for name, (function, _) in single.items()
            if function.fingerprint in outcome.ratios
        },
        is_tie=outcome.is_tie,
        num_states=first.partition.states,
    )


def _alone(
    wholes: Wholes, session: Session, priced: PricedFunction, *, coarser: bool
) -> dict[str, tuple[Variant, ...]]:
    """Measure each backend that can run something, with the reference backend for the rest.

    Returns:
        By backend its program, and where it pays and is wanted, one of fewer parts.
    """
    variants: dict[str, tuple[Variant, ...]] = {}
    usable = zip(priced.candidates, priced.prices, strict=True)
    able = {candidate.backend for candidate, price in usable if isinstance(price, Figure)}
    searches = {
        backend.name: partial(choose_partition, only=backend.name)
        for backend in session.backends
        if backend.name in able
    }
    for name, search in searches.items():
        try:
            variant = wholes.try_measure(search(priced), label=f"{name}-alone")
        except UnpriceableError:
            # Active pricing leaves out what it need not know, a single backend's other kernels among it.
            continue
        if variant is not None:
            variants[name] = (variant,)
    if coarser:
        fastest_us = min((figure.latency_us for ((_, figure),) in variants.values()), default=0.0)
        for name, ((function, figure),) in variants.items():
            if figure.latency_us <= _WORTH_COARSER * fastest_us:
                found = find_coarser(wholes, searches[name], function, label=f"{name}-alone")
                if found is not None:
                    variants[name] = (function, figure), found
    return variants


def _coarser(
    wholes: Wholes, session: Session, first: PartitionedFunction, others: Iterable[Variant]
) -> dict[str, Variant]:
    """Measure what may be faster as a whole than the search's answer, though its parts cost more."""
    found = {"coarser": find_coarser(wholes, choose_partition, first, label="mix")}
    if session.pricing.mode == "measured":
        found["coalesced"] = _coalesced(wholes, session, first)
    best = fastest(*others, *found.values())
    return {name: each for name, each in found.items() if each is not None} | find_without(
        wholes, first, best
    )


def _coalesced(wholes: Wholes, session: Session, first: PartitionedFunction) -> Variant | None:
    """Merge neighbours of one backend, and measure the whole where anything was merged."""
    priced = first.priced
    session.on_progress(TuningProgress(text=f"{priced.name}: merging neighbours"))
    merged = coalesce(
        priced.graph,
        first.partition,
        _LongCallsPricer(
            MeasuredPricer(priced.graph, session.measurer),
            {each.name for each in session.backends if isinstance(each, StretchBackend)},
        ),
        launch_penalty_us=priced.launch_penalty_us,
        slack=_MERGE_SLACK,
    )
    if not merged.num_merged:
        return None
    return wholes.try_measure(of_partition(priced, merged.partition), label="mix")


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


def _explanations(mix: PartitionedFunction) -> tuple[Explanation, ...]:
    """Explain each distinct part once, those that take longest first."""
    priced = mix.priced
    explained = explain_partition(
        priced.graph,
        mix.partition,
        priced.candidates,
        priced.prices,
        launch_penalty_us=priced.launch_penalty_us,
        refused=priced.refused,
    )
    distinct = {(each.operators, each.backend, each.figure.record_ids): each for each in reversed(explained)}
    return tuple(sorted(distinct.values(), key=lambda each: (-each.figure.latency_us, each.operators)))
