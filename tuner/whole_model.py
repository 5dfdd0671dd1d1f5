"""A whole model partitioned: the mix of backends measured end to end, beside each backend alone.

What is measured is the model's `main`: the outputs, or for training the loss. The sum of parts stands beside
the measured latency, because launches and caches make the two differ; so the mix is the winner of a race
between whole programs: the search's first answer, coarser ones, answers that leave backends out, each single
backend, and what an evolutionary search finds from there. Results are checked against the unpartitioned model
on random inputs. Checked in tests/tuner/test_tune.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial

import numpy as np

from records.workload import describe
from tuner.backends.protocol import NUM_INPUTS_ATTRIBUTE, IRModule, StretchBackend, num_inputs_of
from tuner.batch_norm_folding import fold_batch_norms
from tuner.candidate import CandidatePartition
from tuner.coalesce import coalesce
from tuner.describe import describe_function
from tuner.errors import TunerError, UnpriceableError
from tuner.evolution import EvolutionProgress, EvolutionSettings
from tuner.explanation import Explanation, explain_partition
from tuner.frontend.model import Model
from tuner.launch_penalty import measure_launch_penalty
from tuner.measure import MeasureRequest
from tuner.partitioned_function import (
    PartitionedFunction,
    PricedFunction,
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
from tuner.session import Session, TuningProgress, checked_error
from tuner.structure import Structure
from tuner.whole_variants import (
    Variant,
    Wholes,
    fastest,
    find_coarser,
    find_finalists,
    find_without,
    simplest,
)
from tuner.wrong_parts import WrongPart, find_wrong_part, leave_out, record_wrong_part

logger = logging.getLogger(__name__)

MAX_RELATIVE_ERROR = 1e-3
"""Largest error of float32 results that reordered sums explain; beyond it a partition is refused."""

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
        max_relative_error: largest error of the mix against the unpartitioned model; None where nothing ran.
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
        coarser: whether fewer and larger parts are measured too, which pay where crossing a border costs more
            than parts alone show: partitions found with dearer launches, the first answer with neighbouring
            parts of one backend merged (`tuner.coalesce`), and partitions that leave out a backend which the
            first answer uses.

    Raises:
        UnpriceableError: nobody can run an operator, or nobody gives right numbers for it; names it.
        TunerError: no partition of the whole can be measured.
    """
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
            error = _check(session, model, mix)
            break
        except _WrongNumbersError as found:
            wrong.append(_find_wrong_part(session, model, mix, found.error))
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
    (record,) = session.measurer.measure_many([_request(function, label)])
    price = price_of(record)
    if isinstance(price, Invalid):
        raise TunerError(
            f"{function.priced.name} of {label} could not be measured ({price.reason}), though its parts "
            "could; leave a backend out with --backends, or see `tessel records show "
            f"{record.record_id}`"
        )
    return price


def _request(function: PartitionedFunction, label: str) -> MeasureRequest:
    return MeasureRequest(
        workload=function.priced.workload,
        module=function.module,
        backend=label,
        settings=f"partition={function.fingerprint}{_binding(function.priced)}",
        races=True,
    )


def _binding(priced: PricedFunction) -> str:
    """Return what tells records of programs with bound weights from those with weights as arguments."""
    return "" if num_inputs_of(priced.graph.source.function) is None else ";bound"


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
        ours |= _coarser(wholes, session, first, [*ours.values(), *alone.values()])
    if second_level and searched is not None:
        ours["evolved"] = wholes.known(_evolve(session, first, second_level))
    outcome = _race(session, ours, alone)
    # Ties go to the search: its answer is the one that is explained.
    figures = outcome.figures
    variants = {
        name: (function, figures.get(function.fingerprint, figure))
        for name, (function, figure) in (ours | alone).items()
    }
    chosen_by = next(name for name in variants if variants[name][0].fingerprint == outcome.winner)
    return _Choice(
        winner=variants[chosen_by],
        chosen_by=chosen_by,
        alone={name: variants[name] for name in alone},
        ratio_to_mix={
            name: outcome.ratios[variants[name][0].fingerprint]
            for name in alone
            if variants[name][0].fingerprint in outcome.ratios
        },
        is_tie=outcome.is_tie,
        num_states=first.partition.states,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Who won, by fingerprints: latencies of those that raced, and each one's ratio to the winner's."""

    winner: str
    figures: dict[str, Figure]
    ratios: dict[str, PairedRatio]
    is_tie: bool


def _race(session: Session, ours: Mapping[str, Variant], alone: Mapping[str, Variant]) -> _Outcome:
    """Let the finalists run in turn; where they cannot, those that were measured apart are compared."""
    finalists = find_finalists(ours, alone)
    if session.pricing.mode == "model" or len(finalists) == 1:
        return _fastest_apart(ours, alone)
    session.on_progress(TuningProgress(text=f"{len(finalists)} whole programs run in turn"))
    requests = [_request(each.function, "mix") for each in finalists]
    try:
        result, records = session.measurer.race(requests)
    except TunerError as error:
        logger.warning("%s; they are compared by measurements apart, which other load can turn around", error)
        return _fastest_apart(ours, alone)
    winner = simplest([finalists[position] for position in result.survivors])
    fingerprints = [each.function.fingerprint for each in finalists]
    first = fingerprints.index(winner.function.fingerprint)
    figures = {
        fingerprint: price
        for fingerprint, record in zip(fingerprints, records, strict=True)
        if isinstance(price := price_of(record), Figure)
    }
    return _Outcome(
        winner=winner.function.fingerprint,
        figures=figures,
        ratios={name: result.ratio(first, other) for other, name in enumerate(fingerprints)},
        is_tie=result.is_tie,
    )


def _fastest_apart(ours: Mapping[str, Variant], alone: Mapping[str, Variant]) -> _Outcome:
    winner = fastest(*ours.values(), *alone.values())[0].fingerprint
    return _Outcome(winner=winner, figures={}, ratios={}, is_tie=False)


def _alone(wholes: Wholes, session: Session, priced: PricedFunction, *, coarser: bool) -> dict[str, Variant]:
    """Measure each backend that can run something, with the reference backend for the rest."""
    variants: dict[str, Variant] = {}
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
            variants[name] = variant
    if coarser:
        limit_us = _WORTH_COARSER * min((figure.latency_us for _, figure in variants.values()), default=0.0)
        for name, variant in variants.items():
            if variant[1].latency_us <= limit_us:
                label = f"{name}-alone"
                found = find_coarser(wholes, searches[name], variant[0], label=label)
                variants[name] = fastest(variant, found)
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
            settings=f"program={Structure(module).fingerprint}{_binding(priced)}",
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


class _WrongNumbersError(Exception):
    """A mix whose results are not the model's, and by how much they differ."""

    def __init__(self, error: float) -> None:
        super().__init__(error)
        self.error = error


def _check(session: Session, model: Model, mix: PartitionedFunction) -> float | None:
    """Return the mix's error against the unpartitioned model; None where nothing runs.

    The unpartitioned model has this project's own schedules, which may be what is wrong: a difference counts
    if there is one to plain loops too.

    Raises:
        _WrongNumbersError: the mix differs by more than reordered sums explain.
    """
    if session.pricing.mode == "model":
        return None
    session.on_progress(TuningProgress(text="checking the mix against the unpartitioned model"))
    error = _error_of(session, model, mix, unscheduled=False)
    if error <= MAX_RELATIVE_ERROR:
        return error
    plain = _error_of(session, model, mix, unscheduled=True)
    if plain > MAX_RELATIVE_ERROR:
        raise _WrongNumbersError(plain)
    logger.warning(
        "the unpartitioned %s with this project's schedules differs from plain loops by %.1e; the "
        "partitioned one does not, so it is kept; please report the model",
        model.name,
        error,
    )
    return plain


def _error_of(session: Session, model: Model, mix: PartitionedFunction, *, unscheduled: bool) -> float:
    """Return a mix's error, from the records where it was compared before; infinite where shapes differ."""
    workload = mix.priced.workload
    checked = describe("model", workload.inputs, workload.operators, workload.results, [("check", "outputs")])
    measured: list[float] = []

    def check() -> float:
        measured.append(session.measurer.compare(mix.module, model.module, unscheduled=unscheduled))
        return measured[-1]

    try:
        return checked_error(
            session,
            checked,
            # Where weights are known as such, they are drawn as small as their layer asks.
            settings=f"partition={mix.fingerprint}{_binding(mix.priced)}"
            + ("" if model.training else ";scaled-weights")
            + (";unscheduled" if unscheduled else ""),
            check=check,
        )
    except TunerError:
        if measured and not math.isfinite(measured[-1]):
            return math.inf
        raise


def _find_wrong_part(session: Session, model: Model, mix: PartitionedFunction, error: float) -> WrongPart:
    """Find the part that makes a mix wrong, record and name it."""
    session.on_progress(TuningProgress(text="finding the part that gives wrong numbers"))

    def error_of(module: IRModule) -> float:
        found = session.measurer.compare(module, model.module, unscheduled=True)
        return found if math.isfinite(found) else math.inf

    wrong = find_wrong_part(mix, error_of, tolerance=MAX_RELATIVE_ERROR, error=error)
    record_wrong_part(session.measurer, mix.priced.graph, wrong)
    logger.warning(
        "%s gives wrong numbers for %s in %s: the results differ from the unpartitioned model's by %.1e of "
        "the largest, more than the %.0e that reordered sums explain; this is recorded, and the choice made "
        "again without it",
        wrong.candidate.backend,
        ", ".join(wrong.operators),
        model.name,
        wrong.error,
        MAX_RELATIVE_ERROR,
    )
    return wrong
