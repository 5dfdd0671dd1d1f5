"""`tessel language train`: train the tensor language model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.language.machine import (
    DEFAULT_MODEL,
    ThreadsOption,
    check_extra,
    check_numbers,
    find_machine,
    find_measuring,
    find_spaces,
)
from scripts.options.arguments import parse_names
from scripts.options.dataclass_options import takes_options
from scripts.options.tuning_options import (
    DEFAULT_RECORDS,
    JsonOption,
    RecordsOption,
    SeedOption,
    TargetOption,
    check_writable_folder,
)
from scripts.terminal import console

if TYPE_CHECKING:
    from tuner.language.machine import Machine
    from tuner.language.model_files import Manifest
    from tuner.language.network import Network, NetworkShape


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What the model learns from, its network, and how long it learns."""

    records: RecordsOption = DEFAULT_RECORDS
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = DEFAULT_MODEL
    target: TargetOption = "cpu"
    threads: ThreadsOption = 1
    families: Annotated[
        str, typer.Option(help="Families of kernels to pre-train on, separated by commas.")
    ] = "dense,product,convolution,depthwise"
    random: Annotated[int, typer.Option(help="Random kernels of each family, to pre-train on.")] = 40
    samples: Annotated[int, typer.Option(help="Unmeasured schedules of each random kernel.")] = 16
    epochs: Annotated[int, typer.Option(help="Epochs of pre-training on unmeasured schedules.")] = 4
    fine_tuning_epochs: Annotated[
        int, typer.Option(help="Epochs of fine-tuning on the best trials; half as many on the best one.")
    ] = 20
    best: Annotated[float, typer.Option(help="Share of a kernel's trials that count as its best.")] = 0.05
    kernels: Annotated[
        str | None,
        typer.Option(
            help="Kernels, or models for all of theirs, to measure first, with --trials; separated by spaces."
        ),
    ] = None
    trials: Annotated[
        int, typer.Option(help="Random schedules of each of --kernels that the records shall hold.")
    ] = 0
    hold_out: Annotated[
        str | None, typer.Option(help="Kernels whose trials are held out of training, separated by spaces.")
    ] = None
    layers: Annotated[int, typer.Option(help="Layers of the network.")] = 3
    width: Annotated[int, typer.Option(help="Width of the network.")] = 128
    learning_rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 1e-3
    resume: Annotated[
        bool, typer.Option("--resume", help="Start from the model in --out, and fine-tune it alone.")
    ] = False
    seed: SeedOption = 0
    json: JsonOption = False


@takes_options
def train(options: TrainOptions) -> None:
    """Train on unmeasured schedules of random kernels, then on the best trials that the records hold.

    Checkpoints are complete models: Ctrl-C ends training and keeps the last one; `--resume` starts from it.

    Examples:

    `tessel language train --records sqlite:///out/records.db`

    `tessel language train --kernels "dense:64x256x256,relu product:8x64x64x64" --trials 16`
    """
    check_extra()
    families = _checked_families(options)
    from records import open_store
    from tuner.language.model_training import ModelTraining, measure_training_set

    machine = find_machine(options.target, options.threads)
    check_writable_folder(options.out)
    network, manifest = _initial_network(options, machine, families)
    held_out = find_spaces(machine, options.hold_out or "")
    with console.progress_bar("starting") as update, open_store(options.records) as store:
        if options.kernels is not None:
            measure_training_set(
                store,
                find_spaces(machine, options.kernels),
                options.trials,
                machine=machine,
                measuring=find_measuring(machine, options.records, options.out),
                seed=options.seed,
                on_progress=update,
            )
        training = ModelTraining(
            network,
            manifest,
            folder=options.out,
            machine=machine,
            seed=options.seed,
            learning_rate=options.learning_rate,
            on_progress=update,
        )
        if not options.resume:
            training.pre_train(options.random, options.samples, options.epochs)
        update("reading trials")
        manifest = training.fine_tune(store, held_out, options.best, options.fine_tuning_epochs)
    _show(network, manifest, options)


def _checked_families(options: TrainOptions) -> tuple[str, ...]:
    """Return the families of kernels to pre-train on.

    Raises:
        typer.BadParameter: one is not known, or a number is out of its range.
    """
    check_numbers(
        ("--random", options.random, 1),
        ("--samples", options.samples, 1),
        ("--epochs", options.epochs, 0),
        ("--trials", options.trials, 0 if options.kernels is None else 1),
        ("--fine-tuning-epochs", options.fine_tuning_epochs, 0),
        ("--threads", options.threads, 1),
    )
    if not 0 < options.best <= 1 or not 0 < options.learning_rate < 1:
        raise typer.BadParameter("--best is a share above 0 and at most 1, --learning-rate one below 1")
    from tuner.language.kernels import FAMILIES

    names = parse_names(options.families) or ()
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise typer.BadParameter(f"--families names {unknown[0]!r}; there are {', '.join(FAMILIES)}")
    return names


def _initial_network(
    options: TrainOptions, machine: Machine, families: tuple[str, ...]
) -> tuple[Network, Manifest]:
    """Return the model in `--out` with `--resume`, else a new one that has learnt nothing."""
    from tuner.language.model_files import load_network
    from tuner.language.network import Network, NetworkShape

    if options.resume:
        return load_network(options.out, machine.target)
    shape = NetworkShape(layers=options.layers, width=options.width)
    return Network(shape, seed=options.seed), _new_manifest(machine, shape, families, options.seed)


def _new_manifest(machine: Machine, shape: NetworkShape, families: tuple[str, ...], seed: int) -> Manifest:
    from tuner.language.model_files import Manifest

    return Manifest(
        shape=shape,
        target=machine.target.text,
        device_model=machine.environment.device_model,
        num_threads=machine.target.num_threads,
        seed=seed,
        families=families,
        num_texts=0,
    )


def _show(network: Network, manifest: Manifest, options: TrainOptions) -> None:
    if options.json:
        from scripts.documents.language_models import Trained

        console.print_json(Trained(model=str(options.out), manifest=manifest))
        return
    console.print_line(
        f"{network.num_parameters:,} parameters, pre-trained on {manifest.num_texts} schedules, "
        f"fine-tuned on the best {manifest.num_best} of {manifest.num_trials} trials of "
        f"{manifest.num_kernels} kernels; written to {options.out}"
    )
    if not manifest.num_trials:
        console.print_note(
            f"{options.records} holds no trials to learn from; give --kernels and --trials to make some"
        )
