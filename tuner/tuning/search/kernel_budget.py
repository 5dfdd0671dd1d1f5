"""Trials of a model's kernels before anything is priced: built-in ones first, MetaSchedule's with the rest.

What the records hold of built-in kernels counts without any trial. Checked in
tests/scripts/options/test_tuning_options.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from cost_model.language.model_files import load_network
from cost_model.language.network import Network
from records import open_store
from tuner.backends.metaschedule.backend import DEFAULT_FOLDER, DEFAULT_LANGUAGE_MODEL, MetaSchedule
from tuner.backends.metaschedule.proposers import DRAFT, EVOLUTIONARY, LANGUAGE
from tuner.backends.metaschedule.trial_worker import builder_and_runner
from tuner.backends.registry import available_backends, backends_for
from tuner.frontend.model import Model
from tuner.graph.node_set import NodeSet
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target
from tuner.tuning.model_kernels import tune_model_kernels
from tuner.tuning.own_kernels import OwnTrials, tune_model
from tuner.tuning.search.opening import backend_references
from tuner.tuning.search.options import SearchOptions
from tuner.tuning.session import Report, TuningProgress

_Options = TypeVar("_Options", bound=SearchOptions)


def spend_trials(options: _Options, model: Model, budget: int | None, report: Report) -> _Options:
    """Tune a model's kernels before anything is priced; return options that build with what was found.

    Built-in kernels get `trials` each, or most of the budget; MetaSchedule's, which no built-in one runs,
    get the rest of the budget here, or `trials` each when they are priced.

    Args:
        options: of the search; returned as they are where nothing was found.
        model: whose kernels are tuned.
        budget: trials of all kernels together; None for `trials` each.
        report: told what is going on.

    Raises:
        ValueError: the budget is below 1.
    """
    if budget is not None and budget < 1:
        raise ValueError(f"trial_budget is {budget}; it is at least 1")
    is_here = options.target.startswith("cpu") and options.fleet is None and options.price != "model"
    if not is_here:
        return options if budget is None else _spend_on_metaschedule(options, model, budget, None, report)
    own = _tune_own_kernels(options, model, budget, report)
    if own.backends != options.backends:
        options = replace(options, backends=own.backends)
    if budget is None or not own.has_metaschedule:
        return options
    return _spend_on_metaschedule(options, model, budget - own.spent, own, report)


@dataclass(frozen=True, slots=True)
class _Own:
    """What came of tuning built-in kernels.

    Attributes:
        backends: what the option is from then on.
        spent: trials of the budget that these kernels have had.
        covered: nodes of the model's graph that they compute.
        has_metaschedule: whether that backend takes part, if it has trials or a database.
    """

    backends: tuple[str, ...] | None
    spent: int
    covered: NodeSet
    has_metaschedule: bool


def _packed_network(options: SearchOptions, target: Target) -> Network | None:
    """Return the language model if it has learnt built-in kernels."""
    folder = options.language_model or Path(DEFAULT_LANGUAGE_MODEL)
    network, manifest = load_network(folder, target.text, target.num_threads)
    return network if manifest.num_packed else None


def _tune_own_kernels(options: SearchOptions, model: Model, budget: int | None, report: Report) -> _Own:
    target = resolve_target(options.target, num_threads=options.threads)
    names = backend_references(options, report)
    known = None if names is None else [name for name in names if name.partition("?")[0] != "metaschedule"]
    backends = available_backends(target) if known is None else backends_for(known, target)
    proposer = DRAFT if options.proposer in (None, EVOLUTIONARY) else options.proposer
    trials = OwnTrials(
        budget=budget,
        each=options.trials or None,
        proposer=proposer,
        network=_packed_network(options, target) if proposer == LANGUAGE else None,
    )
    with open_store(options.records) as store:
        found = tune_model(
            model,
            backends,
            trials if budget or options.trials else None,
            store,
            target,
            on_batch=lambda spent: report.on_progress(
                TuningProgress(text="tuning built-in kernels", completed=spent, total=budget)
            ),
        )
    for each in found.kernels:
        if each.trials:
            report.on_note(
                f"{each.name} runs {each.count} times: {each.trials} trials, {each.rule_us:.1f} us by its "
                f"rule, {each.best_us:.1f} us now"
            )
    takes_part = names is None or any(name.partition("?")[0] == "metaschedule" for name in names)
    chosen = None if options.backends is None else tuple(options.backends)
    if found.chosen:
        chosen = tuple(each.reference for each in found.backends if each.name != "metaschedule")
        is_asked_for = names is not None or options.trials or options.tvm_database is not None or budget
        if takes_part and is_asked_for:
            chosen = (*chosen, "metaschedule")
    return _Own(chosen, found.spent, found.covered, takes_part)


def _spend_on_metaschedule(
    options: _Options, model: Model, budget: int, own: _Own | None, report: Report
) -> _Options:
    """Tune what no built-in kernel runs; return options that read it from its database."""

    backend = MetaSchedule(
        trials=max(1, budget),
        database=DEFAULT_FOLDER if options.tvm_database is None else str(options.tvm_database),
        records=options.records,
        proposer=options.proposer or DRAFT,
        language_model="" if options.language_model is None else str(options.language_model),
    )
    target = resolve_target(options.target, num_threads=options.threads)
    builder, runner = builder_and_runner(target.num_threads)
    found = tune_model_kernels(
        model,
        backend,
        target,
        budget=budget,
        builder=builder,
        runner=runner,
        on_batch=lambda spent: report.on_progress(
            TuningProgress(text="tuning kernels", completed=spent, total=budget)
        ),
        without=NodeSet() if own is None else own.covered,
    )
    for kernel in found.kernels:
        report.on_note(
            f"a kernel that runs {kernel.count} times got {kernel.trials} trials: "
            f"{kernel.first_us:.1f} us after the first batch, {kernel.best_us:.1f} us at best"
        )
    return replace(options, tvm_database=found.database, proposer=None, language_model=None)
