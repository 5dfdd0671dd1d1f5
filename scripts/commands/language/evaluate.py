"""`tessel language evaluate`: compare the model's proposals with evolution's and with random ones."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.language.machine import (
    DEFAULT_MODEL,
    ModelOption,
    TemperatureOption,
    ThreadsOption,
    check_extra,
    check_numbers,
    check_temperature,
    find_machine,
    find_measuring,
    find_spaces,
)
from scripts.options.dataclass_options import takes_options
from scripts.options.tuning_options import (
    DEFAULT_RECORDS,
    JsonOption,
    RecordsOption,
    SeedOption,
    TargetOption,
)
from scripts.terminal import console

if TYPE_CHECKING:
    from collections.abc import Callable

    from scripts.documents.language_models import PrintedTrials
    from scripts.terminal.progress import Reporter
    from tuner.language.evaluation import Run


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Which kernels are tuned, with how many trials, by which model."""

    kernels: Annotated[
        str, typer.Option(help="Kernels to tune, separated by spaces; none that the model was trained on.")
    ] = "dense:196x192x192,gelu convolution:32x28x64x3x2"
    model: ModelOption = DEFAULT_MODEL
    trials: Annotated[int, typer.Option(help="Trials of each kernel by each proposer.")] = 64
    seeds: Annotated[int, typer.Option(help="Repetitions, each with a seed of its own.")] = 1
    temperature: TemperatureOption = 1.0
    target: TargetOption = "cpu"
    threads: ThreadsOption = 1
    records: RecordsOption = DEFAULT_RECORDS
    seed: SeedOption = 0
    json: JsonOption = False


@takes_options
def evaluate(options: EvaluateOptions) -> None:
    """Compare the best latency after 1, 2, 4, … trials: proposed by the model, by evolution, and at random.

    All three are measured by the same builder and runner. Evolution is MetaSchedule's with its XGBoost model.
    A trial takes about a second; all are kept in the records.

    Example: `tessel language evaluate --kernels dense:196x192x192,gelu --trials 32`
    """
    check_extra()
    check_numbers(
        ("--trials", options.trials, 1), ("--seeds", options.seeds, 1), ("--threads", options.threads, 1)
    )
    check_temperature(options.temperature)
    from tuner.language.evaluation import PROPOSERS, mean_best_us, trial_counts

    runs, num_kernels = _run_all(options)
    counts = trial_counts(options.trials)
    curves = {proposer: mean_best_us(runs, proposer, counts) for proposer in PROPOSERS}
    written = [run for run in runs if run.proposer == "language"]
    legal_ratio = sum(run.num_legal for run in written) / sum(len(run.latencies_us) for run in written)
    distinct_ratio = sum(run.distinct_ratio for run in written) / len(written)
    if options.json:
        from scripts.documents.language_models import Evaluated

        finite = {proposer: tuple(map(_finite, curve)) for proposer, curve in curves.items()}
        document = Evaluated(
            trials=tuple(counts),
            language_us=finite["language"],
            evolutionary_us=finite["evolutionary"],
            random_us=finite["random"],
            legal_ratio=legal_ratio,
            distinct_ratio=distinct_ratio,
            runs=tuple(map(_run_document, runs)),
        )
        console.print_json(document)
        return
    console.print_table(
        f"Best latency by number of trials, {num_kernels} kernels, {options.seeds} seeds",
        ["trials", *PROPOSERS],
        [
            [str(count), *(console.format_us(curves[proposer][index]) for proposer in PROPOSERS)]
            for index, count in enumerate(counts)
        ],
    )
    console.print_line(f"{legal_ratio:.0%} of the model's schedules legal, {distinct_ratio:.0%} distinct")


def _run_all(options: EvaluateOptions) -> tuple[list[Run], int]:
    """Let every proposer tune every kernel with every seed; return the runs and the number of kernels."""
    from tuner.language.evaluation import PROPOSERS, run_proposer
    from tuner.language.model_files import load_network

    machine = find_machine(options.target, options.threads)
    spaces = find_spaces(machine, options.kernels)
    if not spaces:
        raise typer.BadParameter("--kernels names none; give at least one")
    network, _ = load_network(options.model, machine.target)
    measuring = find_measuring(machine, options.records, options.model)
    runs: list[Run] = []
    total = len(spaces) * options.seeds * len(PROPOSERS) * options.trials
    with console.progress_bar("measuring") as update:
        for number, space, proposer in itertools.product(range(options.seeds), spaces, PROPOSERS):
            label, before = f"{space.name}, {proposer}", len(runs) * options.trials
            update(label, before, total)
            runs.append(
                run_proposer(
                    proposer,
                    network,
                    space,
                    trials=options.trials,
                    seed=options.seed + number,
                    measuring=measuring,
                    temperature=options.temperature,
                    on_progress=_progress(update, label, before, total),
                )
            )
    return runs, len(spaces)


def _progress(update: Reporter, text: str, before: int, total: int) -> Callable[[int, int], None]:
    """Return a callback that reports a part's progress as progress of the total."""
    return lambda done, _: update(text, before + done, total)


def _finite(latency_us: float) -> float | None:
    return latency_us if math.isfinite(latency_us) else None


def _run_document(run: Run) -> PrintedTrials:
    from scripts.documents.language_models import PrintedTrials

    return PrintedTrials(
        kernel=run.kernel,
        proposer=run.proposer,
        seed=run.seed,
        latencies_us=tuple(map(_finite, run.latencies_us)),
    )
