"""`tessel language evaluate`: compare who proposes schedules at equal trials."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.language.machine import (
    DEFAULT_MODEL,
    ModelOption,
    ThreadsOption,
    check_numbers,
    find_machine,
)
from scripts.options.dataclass_options import takes_options
from scripts.options.tuning_options import JsonOption, RecordsOption, SeedOption, TargetOption
from scripts.terminal import console
from tessel.jobs.inputs.arguments import parse_names
from tessel.jobs.shown.formatting import format_us
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS

if TYPE_CHECKING:
    from tuner.backends.metaschedule.proposers import Knowledge
    from tuner.language.evaluation import Run
    from tuner.language.machine import Machine


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Which kernels are tuned, with how many trials, by whom."""

    kernels: Annotated[str, "Kernels to tune, separated by spaces; none that the model was trained on."] = (
        "dense:196x192x192,gelu convolution:32x28x64x3x2"
    )
    proposers: Annotated[str, "Who proposes, separated by commas."] = (
        "language,draft,neighbour,evolutionary,random"
    )
    model: ModelOption = DEFAULT_MODEL
    trials: Annotated[int, "Trials of each kernel by each proposer."] = 16
    seeds: Annotated[int, "Repetitions, each with a seed of its own."] = 1
    target: TargetOption = "cpu"
    threads: ThreadsOption = 1
    records: RecordsOption = DEFAULT_RECORDS
    seed: SeedOption = 0
    json: JsonOption = False


@takes_options
def evaluate(options: EvaluateOptions) -> None:
    """Compare the best latency after 1, 2, 4, … trials, by who proposed them.

    All are measured by the same builder and runner, and know the trials that the records hold of other
    kernels. The trials of the comparison are not kept. A trial takes about half a second.

    Example: `tessel language evaluate --kernels dense:196x192x192,gelu --proposers draft,random --trials 8`
    """
    check_numbers(
        ("--trials", options.trials, 1), ("--seeds", options.seeds, 1), ("--threads", options.threads, 1)
    )
    from tuner.language.evaluation import mean_best_us, trial_counts

    proposers = _checked_proposers(options.proposers)
    machine = find_machine(options.target, options.threads)
    runs = _run_all(options, proposers, machine)
    counts = trial_counts(options.trials)
    curves = {proposer: mean_best_us(runs, proposer, counts) for proposer in proposers}
    if options.json:
        from scripts.documents.language_models import Evaluated, PrintedTrials

        console.print_json(
            Evaluated(
                trials=tuple(counts),
                best_us={name: tuple(map(_finite, curve)) for name, curve in curves.items()},
                runs=tuple(
                    PrintedTrials(
                        kernel=run.kernel, proposer=run.proposer, seed=run.seed, latencies_us=run.latencies_us
                    )
                    for run in runs
                ),
            )
        )
        return
    console.print_table(
        f"Best latency by number of trials, {len({run.kernel for run in runs})} kernels, "
        f"{options.seeds} seeds",
        ["trials", *proposers],
        [
            [str(count), *(format_us(curves[proposer][index]) for proposer in proposers)]
            for index, count in enumerate(counts)
        ],
    )


def _checked_proposers(text: str) -> tuple[str, ...]:
    """Return who proposes."""
    from tuner.backends.metaschedule.proposers import PROPOSERS

    names = tuple(parse_names(text) or ())
    unknown = [name for name in names if name not in PROPOSERS]
    if unknown or not names:
        raise typer.BadParameter(
            f"--proposers names {unknown[0] if unknown else 'nobody'!r}; there are {', '.join(PROPOSERS)}"
        )
    return names


def _run_all(options: EvaluateOptions, proposers: tuple[str, ...], machine: Machine) -> list[Run]:
    """Let every proposer tune every kernel with every seed."""
    from tuner.backends.metaschedule.trial_worker import builder_and_runner
    from tuner.language.evaluation import Measuring, Run, measure_trials
    from tuner.language.kernels import named_kernels

    kernels = dict(each for word in options.kernels.split() for each in named_kernels(word))
    if not kernels:
        raise typer.BadParameter("--kernels names none; give at least one")
    knowledge = _knowledge(options, proposers, machine)
    builder, runner = builder_and_runner(options.threads)
    measuring = Measuring(
        tuned_for=machine.tuned_for,
        builder=builder,
        runner=runner,
        work_dir=options.model / "logs",
    )
    runs: list[Run] = []
    cases = list(itertools.product(range(options.seeds), kernels.items(), proposers))
    with messages.bar("measuring") as update:
        for number, (seed, (name, module), proposer) in enumerate(cases):
            label, before = f"{name}, {proposer}", number * options.trials

            def report(done: int, label: str = label, before: int = before) -> None:
                update(label, before + done, len(cases) * options.trials)

            latencies, _ = measure_trials(
                module,
                proposer,
                knowledge,
                trials=options.trials,
                seed=options.seed + seed,
                measuring=measuring,
                on_trial=report,
            )
            runs.append(Run(kernel=name, proposer=proposer, seed=options.seed + seed, latencies_us=latencies))
    return runs


def _knowledge(options: EvaluateOptions, proposers: tuple[str, ...], machine: Machine) -> Knowledge:
    """Return the trials of other kernels, and the network where it proposes."""
    from cost_model.language.model_files import load_network
    from tuner.language.knowledge import knowledge_of
    from tuner.language.model_training import held_out_tasks

    network = None
    if "language" in proposers:
        network, _ = load_network(options.model, machine.target.text, machine.target.num_threads)
    return knowledge_of(
        options.records, machine, network=network, without=held_out_tasks(options.kernels.split())
    )


def _finite(latency_us: float) -> float | None:
    return latency_us if math.isfinite(latency_us) else None
