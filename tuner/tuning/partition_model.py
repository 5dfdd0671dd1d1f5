"""Partition an entire model: the mix of backends measured end to end against each single backend.

    price      each candidate partition, measured alone or predicted           price_function
    propose    whole programs, each measured once (`tuner.tuning.strategies`)  propose
    race       the fastest of them, measured again in turn                     choose
    check      the winner's results; a wrong part is left out, and again       check_whole

What is measured is the model's `main`: the outputs, or for training the loss. The sum of parts stands beside
the measured latency, because launches and caches make the two differ; so the mix is the winner of a race
between whole programs. Results are checked against the program that the model was imported from, or else
against the unpartitioned model on random inputs. Checked in tests/tuner/tuning/test_tune.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.frontend.model import Model
from tuner.graph.relax_types import IRModule, with_num_inputs
from tuner.lowering.batch_norm_folding import fold_batch_norms
from tuner.lowering.workload_of import workload_of
from tuner.measuring.launch_penalty import measure_launch_penalty
from tuner.partition.candidate import FREE
from tuner.partition.explanation import Explanation, explain_partition
from tuner.plan import Figure, PairedRatio, PartitionPlan
from tuner.pricing.measured import workload_of_candidate
from tuner.tuning.end_to_end.check import WrongNumbersError, check_whole, drop_wrong_part
from tuner.tuning.end_to_end.race import choose
from tuner.tuning.import_check import verify_import
from tuner.tuning.partitioned_function import (
    PartitionedFunction,
    partition_plans,
    price_function,
    refusals,
    with_runner_ups,
)
from tuner.tuning.session import Session
from tuner.tuning.strategies.propose import propose, refinements_of
from tuner.tuning.wrong_parts import WrongPart, leave_out


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedModel:
    """What partitioning a whole model found.

    Attributes:
        model: the model's name.
        source: the model as it was partitioned: operators that were imported wrongly are calls of torch.
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
        reference: mode of the model's own program that the mix was compared with; empty where it was the
            unpartitioned model.
        num_candidates_by_rule: how many candidates each rule proposed.
        num_invalid: candidates that their backend cannot run.
        num_refused_by_reason: why, and how often.
        num_states: states that the search expanded.
    """

    model: str
    source: Model
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
    reference: str
    num_candidates_by_rule: dict[str, int]
    num_invalid: int
    num_refused_by_reason: dict[str, int]
    num_states: int
    new_measurements: int
    reused_measurements: int


def partition_model(
    model: Model, session: Session, *, graph_level_search: int = 0, coarser: bool = False
) -> PartitionedModel:
    """Choose who runs which part of a model's function, and measure the choice end to end.

    The sum of parts leaves out what parts do to each other, so several whole programs are measured: the
    search's partition, coarser ones, those without some of the backends, each single backend, and what the
    graph-level search finds. The fastest of them, every single backend among them, race in turn
    (`tuner.measuring.race`). The winner's results are compared with the unpartitioned model's; a part that
    makes them wrong is left out, with a warning and a record, and the choice is made again.

    Args:
        graph_level_search: whole programs that an evolutionary search may measure, from the first answer on.
        coarser: whether fewer and larger parts are measured too, which pay off where crossing a boundary
            costs more than isolated parts show: partitions found with higher launch penalties, the first
            answer with neighbouring parts of one backend merged (`tuner.partition.coalesce`), and partitions
            that leave out a backend which the first answer uses.

    Raises:
        UnpriceableError: nobody can run an operator, or nobody gives right numbers for it; names it.
        TunerError: the model was imported wrongly, or no partition of the whole can be measured.
    """
    model, import_error = verify_import(model, session)
    penalty = measure_launch_penalty(session.measurer)
    all_priced = price_function(
        session,
        prepared_module(model),
        name="model",
        launch_penalty_us=penalty.latency_us,
        layers=model.layers_by_variable(),
    )
    refinements = refinements_of(graph_level_search=graph_level_search, coarser=coarser)
    wrong: list[WrongPart] = []
    while True:
        priced = leave_out(all_priced, wrong)
        proposed = propose(session, priced, refinements)
        choice = choose(session, proposed)
        mix = with_runner_ups(choice.winner[0])
        try:
            error = check_whole(session, model, mix)
            break
        except WrongNumbersError as found:
            wrong.append(drop_wrong_part(session, model, mix, found.deviation))
    refused = refusals([priced])
    partition = partition_plans([mix])
    return PartitionedModel(
        model=model.name,
        source=model,
        fingerprint=workload_of(model.module["main"], "model", module=model.module).fingerprint,
        function=mix,
        chosen_by=choice.chosen_by,
        alone={name: variant[0] for name, variant in choice.alone.items()},
        partition=partition,
        end_to_end={"mix": choice.winner[1]} | {name: variant[1] for name, variant in choice.alone.items()},
        ratio_to_mix=choice.ratio_to_mix,
        is_tie=choice.is_tie,
        sum_of_parts=mix.sum_of_parts,
        explanations=explanations_of(mix, partition),
        launch_penalty_us=penalty.latency_us,
        max_relative_error=error,
        import_error=import_error,
        reference="" if model.reference is None else model.reference.mode,
        num_candidates_by_rule=priced.num_candidates_by_rule,
        num_invalid=sum(refused.values()),
        num_refused_by_reason=refused,
        num_states=proposed.first.partition.states,
        new_measurements=session.measurer.new_measurements,
        reused_measurements=session.measurer.reused_measurements,
    )


def prepared_module(model: Model) -> IRModule:
    """Return a model's module, told which of its parameters stay as they are, with normalisations folded.

    Training changes all parameters, so that its module stays as it is.
    """
    if model.training:
        return model.module
    return fold_batch_norms(with_num_inputs(model.module, len(model.inputs)))


def explanations_of(mix: PartitionedFunction, partition: Sequence[PartitionPlan]) -> tuple[Explanation, ...]:
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
    fingerprints = {
        part.sub_graph.inside: workload_of_candidate(priced.graph, part).fingerprint
        for part in mix.partition.chosen
        if part.backend != FREE
    }
    distinct = {(fingerprints[each.inside], each.backend): each for each in reversed(explained)}
    plans = {(plan.workload_fingerprint, plan.backend): plan for plan in partition}
    described = [replace(each, part=plans[key]) for key, each in distinct.items()]
    return tuple(sorted(described, key=lambda each: (-each.figure.latency_us, each.operators)))
