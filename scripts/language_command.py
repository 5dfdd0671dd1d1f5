"""`tessel language`: train the tensor language model, generate schedules with it, and measure them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scripts import console, installation
from scripts.arguments import parse_names
from scripts.command_app import CommandApp
from scripts.tuning_options import (
    DEFAULT_RECORDS,
    JsonOption,
    RecordsOption,
    SeedOption,
    TargetOption,
    check_writable_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scripts.documents.language_models import PrintedTrials
    from scripts.progress import Reporter
    from tuner.language.evaluation import Measuring, Run
    from tuner.language.model_files import Manifest
    from tuner.language.model_training import Machine
    from tuner.language.network import NetworkShape
    from tuner.language.sketches import KernelSpace

app = CommandApp(
    no_args_is_help=True,
    help="Train the tensor language model, generate kernel schedules with it, and measure them.\n\n"
    "Example: `tessel language train`",
)

DEFAULT_MODEL = Path("out/language")

_KERNEL_HELP = (
    "`dense:ROWSxINNERxCOLUMNS` (then `,relu` or `,gelu` if wanted), `product:BATCHxROWSxINNERxCOLUMNS`, "
    "`convolution:CHANNELSxEXTENTxOUTPUTSxKERNELxSTRIDE`, `depthwise:CHANNELSxEXTENTxKERNELxSTRIDE`, or one "
    "of a model's, such as `gpt2:tiny#1`."
)

ModelOption = Annotated[Path, typer.Option(help="Folder of the model.")]
ThreadsOption = Annotated[int, typer.Option(help="Threads that a measured kernel may use.")]
TemperatureOption = Annotated[
    float, typer.Option(help="Sampling temperature, above 0; lower values favour likelier decisions.")
]


@app.command("train")
def train(
    records: RecordsOption = DEFAULT_RECORDS,
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = DEFAULT_MODEL,
    target: TargetOption = "cpu",
    threads: ThreadsOption = 1,
    families: Annotated[
        str, typer.Option(help="Kernels to pre-train on, by commas.")
    ] = "dense,product,convolution,depthwise",
    random: Annotated[int, typer.Option(help="Random kernels of each family, to pre-train on.")] = 40,
    samples: Annotated[int, typer.Option(help="Unmeasured schedules of each random kernel.")] = 16,
    epochs: Annotated[int, typer.Option(help="Times that each unmeasured schedule is seen.")] = 4,
    fine_tuning_epochs: Annotated[
        int, typer.Option(help="Times that each of the best trials is seen; half as often the best one.")
    ] = 20,
    best: Annotated[float, typer.Option(help="Share of a kernel's trials that count as its best.")] = 0.05,
    kernels: Annotated[
        str | None,
        typer.Option(
            help="Kernels, or models for all of theirs, to measure first, by spaces, with --trials."
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(help="Random schedules of each of --kernels that the records shall hold.")
    ] = 0,
    hold_out: Annotated[
        str | None, typer.Option(help="Kernels whose trials are held out of training, separated by spaces.")
    ] = None,
    layers: Annotated[int, typer.Option(help="Layers of the network.")] = 3,
    width: Annotated[int, typer.Option(help="Width of the network.")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 1e-3,
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Start from the model in --out, and fine-tune it alone.")
    ] = False,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Train on unmeasured schedules of random kernels, then on the best trials that the records hold.

    Checkpoints are complete models: Ctrl-C ends training and keeps the last one; `--go-on` resumes.

    Examples:

    `tessel language train --records sqlite:///out/records.db`

    `tessel language train --kernels "dense:64x256x256,relu product:8x64x64x64" --trials 16`
    """
    _check_extra()
    _check_numbers(
        ("--random", random, 1), ("--samples", samples, 1), ("--epochs", epochs, 0), ("--trials", trials, 0),
        ("--fine-tuning-epochs", fine_tuning_epochs, 0), ("--threads", threads, 1),
    )  # fmt: skip
    if not 0 < best <= 1 or not 0 < learning_rate < 1:
        raise typer.BadParameter("--best is a share above 0 and at most 1, --learning-rate one below 1")
    if kernels is not None:
        _check_numbers(("--trials", trials, 1))
    from records import open_store
    from tuner.language.kernels import FAMILIES
    from tuner.language.model_files import load_network
    from tuner.language.model_training import ModelTraining, measure_training_set
    from tuner.language.network import Network, NetworkShape

    names = parse_names(families) or ()
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise typer.BadParameter(f"--families names {unknown[0]!r}; there are {', '.join(FAMILIES)}")
    machine = _machine(target, threads)
    check_writable_folder(out)
    if go_on:
        network, manifest = load_network(out, machine.target)
    else:
        shape = NetworkShape(layers=layers, width=width)
        network, manifest = Network(shape, seed=seed), _new_manifest(machine, shape, names, seed)
    held_out = _spaces(machine, hold_out or "")
    with console.progress_bar("starting") as update, open_store(records) as store:
        if kernels is not None:
            measure_training_set(
                store,
                _spaces(machine, kernels),
                trials,
                machine=machine,
                measuring=_measuring(machine, records, out),
                seed=seed,
                on_progress=update,
            )
        training = ModelTraining(
            network,
            manifest,
            folder=out,
            machine=machine,
            seed=seed,
            learning_rate=learning_rate,
            on_progress=update,
        )
        if not go_on:
            training.pre_train(random, samples, epochs)
        update("reading trials")
        manifest = training.fine_tune(store, held_out, best, fine_tuning_epochs)
    if json:
        from scripts.documents.language_models import Trained

        console.print_json(Trained(model=str(out), manifest=manifest))
        return
    console.print_line(
        f"{network.num_parameters:,} parameters, pre-trained on {manifest.num_texts} schedules, "
        f"fine-tuned on the best {manifest.num_best} of {manifest.num_trials} trials of "
        f"{manifest.num_kernels} kernels; written to {out}"
    )
    if not manifest.num_trials:
        console.print_note(
            f"{records} holds no trials to learn from; give --kernels and --trials to make some"
        )


@app.command("generate")
def generate(
    kernel: Annotated[str, typer.Argument(help=_KERNEL_HELP, metavar="KERNEL")],
    model: ModelOption = DEFAULT_MODEL,
    count: Annotated[int, typer.Option(help="Distinct schedules to write, at most.")] = 8,
    temperature: TemperatureOption = 1.0,
    target: TargetOption = "cpu",
    threads: ThreadsOption = 1,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure them, and keep the trials in --records.")
    ] = False,
    records: RecordsOption = DEFAULT_RECORDS,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Generate schedules of a kernel, likeliest first, and report which of them TVM accepts unchanged.

    Examples:

    `tessel language generate dense:64x256x256,relu --count 16`

    `tessel language generate convolution:32x28x64x3x1 --measure --records sqlite:///out/records.db`
    """
    _check_extra()
    _check_numbers(("--count", count, 1), ("--threads", threads, 1))
    _check_temperature(temperature)
    from tuner.language.generation import generate as generate_proposals
    from tuner.language.model_files import load_network
    from tuner.language.trials import measure_proposals

    machine = _machine(target, threads)
    space = _space(machine, kernel)
    network, _ = load_network(model, machine.target)
    with console.progress_bar("writing schedules") as update:
        written = generate_proposals(
            network,
            space,
            count,
            temperature=temperature,
            seed=seed,
            on_progress=lambda done, total: update("writing schedules", done, total),
        )
    latencies: list[float | None] = [None] * len(written.proposals)
    if measure:
        measuring = _measuring(machine, records, model)
        assert measuring.keeper is not None
        with console.progress_bar("measuring") as update:
            measured = measure_proposals(
                space,
                written.proposals,
                builder=measuring.builder,
                runner=measuring.runner,
                keep=measuring.keeper(space),
                on_progress=lambda done, total: update("measuring", done, total),
            )
        latencies = [each.latency_us for each in measured]
    legal = [space.schedule(proposal) is not None for proposal in written.proposals]
    legal_ratio = sum(legal) / max(1, len(legal))
    if json:
        from scripts.documents.language_models import Generated, PrintedProposal

        rows = tuple(
            PrintedProposal(
                sketch=proposal.sketch,
                decisions=proposal.decisions,
                legal=is_legal,
                latency_us=latency_us,
            )
            for proposal, is_legal, latency_us in zip(written.proposals, legal, latencies, strict=True)
        )
        console.print_json(
            Generated(
                kernel=space.name,
                proposals=rows,
                legal_ratio=legal_ratio,
                distinct_ratio=written.distinct_ratio,
            )
        )
        return
    console.print_table(
        f"{space.name}: {legal_ratio:.0%} legal, {written.distinct_ratio:.0%} of what was written distinct",
        ["decisions", "sketch", "latency"],
        [
            [
                " ".join(_decision_text(each) for each in proposal.decisions),
                str(proposal.sketch),
                "-" if latency is None else console.format_us(latency),
            ]
            for proposal, latency in zip(written.proposals, latencies, strict=True)
        ],
    )


@app.command("evaluate")
def evaluate(
    kernels: Annotated[
        str, typer.Option(help="Kernels to tune, by spaces; not ones that the model learnt from.")
    ] = "dense:196x192x192,gelu convolution:32x28x64x3x2",
    model: ModelOption = DEFAULT_MODEL,
    trials: Annotated[int, typer.Option(help="Trials of each kernel by each proposer.")] = 64,
    seeds: Annotated[int, typer.Option(help="Repetitions, each with a seed of its own.")] = 1,
    temperature: TemperatureOption = 1.0,
    target: TargetOption = "cpu",
    threads: ThreadsOption = 1,
    records: RecordsOption = DEFAULT_RECORDS,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Compare the best latency after 1, 2, 4, … trials: proposed by the model, by evolution, and at random.

    All three are measured by the same builder and runner. Evolution is MetaSchedule's with its XGBoost model.
    A trial takes about a second; all are kept in the records.

    Example: `tessel language evaluate --kernels dense:196x192x192,gelu --trials 32`
    """
    _check_extra()
    _check_numbers(("--trials", trials, 1), ("--seeds", seeds, 1), ("--threads", threads, 1))
    _check_temperature(temperature)
    from tuner.language.evaluation import PROPOSERS, mean_best_us, run_proposer, trial_counts
    from tuner.language.model_files import load_network

    machine = _machine(target, threads)
    spaces = _spaces(machine, kernels)
    if not spaces:
        raise typer.BadParameter("--kernels names none; give at least one")
    network, _ = load_network(model, machine.target)
    measuring = _measuring(machine, records, model)
    runs: list[Run] = []
    total = len(spaces) * seeds * len(PROPOSERS) * trials
    with console.progress_bar("measuring") as update:
        for number in range(seeds):
            for space in spaces:
                for proposer in PROPOSERS:
                    label, before = f"{space.name}, {proposer}", len(runs) * trials
                    update(label, before, total)
                    runs.append(
                        run_proposer(
                            proposer,
                            network,
                            space,
                            trials=trials,
                            seed=seed + number,
                            measuring=measuring,
                            temperature=temperature,
                            on_progress=_progress(update, label, before, total),
                        )
                    )
    counts = trial_counts(trials)
    curves = {proposer: mean_best_us(runs, proposer, counts) for proposer in PROPOSERS}
    written = [run for run in runs if run.proposer == "language"]
    legal_ratio = sum(run.num_legal for run in written) / sum(len(run.latencies_us) for run in written)
    distinct_ratio = sum(run.distinct_ratio for run in written) / len(written)
    if json:
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
        f"Best latency after so many trials, {len(spaces)} kernels, {seeds} seeds",
        ["trials", *PROPOSERS],
        [
            [str(count), *(console.format_us(curves[proposer][index]) for proposer in PROPOSERS)]
            for index, count in enumerate(counts)
        ],
    )
    console.print_line(f"{legal_ratio:.0%} of the model's schedules legal, {distinct_ratio:.0%} distinct")


def _machine(text: str, threads: int) -> Machine:
    from tuner.backends.environment import environment_of
    from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target
    from tuner.language.model_training import Machine
    from tuner.targets.resolution import check_measurable, resolve_target

    with console.progress_bar("starting"):
        target = resolve_target(text, num_threads=threads)
        if target.kind != "cpu":
            raise typer.BadParameter(
                f"--target {text} is not this machine's processor; the language model writes "
                "schedules for cpu"
            )
        check_measurable(target)
        return Machine(target, tuning_target(target), environment_of(target, MetaSchedule()))


def _new_manifest(machine: Machine, shape: NetworkShape, families: Sequence[str], seed: int) -> Manifest:
    from tuner.language.model_files import Manifest

    return Manifest(
        shape=shape,
        target=machine.target.text,
        device_model=machine.environment.device_model,
        num_threads=machine.target.num_threads,
        seed=seed,
        families=tuple(families),
        num_texts=0,
    )


def _spaces(machine: Machine, names: str) -> list[KernelSpace]:
    """Return the kernels that words name, without those that have nothing to decide."""
    from tuner.language.kernels import named_kernels
    from tuner.language.sketches import KernelSpace

    spaces = [
        KernelSpace(name, module, machine.tuned_for)
        for word in names.split()
        for name, module in named_kernels(word)
    ]
    return [space for space in spaces if space.has_decisions]


def _space(machine: Machine, name: str) -> KernelSpace:
    spaces = _spaces(machine, name)
    if len(spaces) != 1:
        known = ", ".join(space.name for space in spaces)
        raise typer.BadParameter(
            f"{name!r} names {len(spaces)} kernels that have something to decide; give one"
            + (f" of {known}" if known else ", such as dense:64x256x256,relu")
        )
    return spaces[0]


def _measuring(machine: Machine, records: str, model: Path) -> Measuring:
    from tuner.backends.metaschedule.trials import KeepTrials
    from tuner.language.evaluation import Measuring
    from tuner.language.trials import new_builder, new_runner

    def keeper(space: KernelSpace) -> Any:
        return KeepTrials(records, space.module, space.tuned_for, machine.target, machine.environment)

    return Measuring(
        builder=new_builder(),
        runner=new_runner(),
        work_dir=model / "logs",
        keeper=keeper,
    )


def _progress(update: Reporter, text: str, before: int, total: int) -> Callable[[int, int], None]:
    """Return a callback that reports a part's progress as progress of the total."""
    return lambda done, _: update(text, before + done, total)


def _check_extra() -> None:
    """Refuse to go on without the extra `language`."""
    import importlib.util

    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise typer.BadParameter(
            f"{missing[0]} is not installed, and the language model needs it; "
            f"{installation.install_extra('language')}"
        )


def _check_numbers(*options: tuple[str, int, int]) -> None:
    for name, value, least in options:
        if value < least:
            raise typer.BadParameter(f"{name} is {value}; it is at least {least}")


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise typer.BadParameter(f"--temperature is {temperature}; it is above 0")


def _decision_text(decision: Any) -> str:
    return "×".join(map(str, decision)) if isinstance(decision, tuple) else str(decision)


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
