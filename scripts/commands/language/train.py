"""`tessel language train`: train the language model of schedules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.language.machine import (
    DEFAULT_MODEL,
    ThreadsOption,
    check_numbers,
    check_torch,
    find_machine,
)
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import (
    JsonOption,
    RecordsOption,
    SeedOption,
    TargetOption,
    check_writable_folder,
)
from scripts.terminal import console
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS

if TYPE_CHECKING:
    from cost_model.language.model_files import Manifest
    from cost_model.language.network import Network
    from tuner.language.expert_rounds import ExpertRounds
    from tuner.language.machine import Machine

_ROUND_KERNELS = 48
"""As `tessel language collect` draws them by default."""

_TRIALS_BEFORE_ROUNDS = 52


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What the model learns from, its network, and how long it learns."""

    records: RecordsOption = DEFAULT_RECORDS
    out: Annotated[Path, "Folder for the model."] = DEFAULT_MODEL
    target: TargetOption = "cpu"
    threads: ThreadsOption = 1
    distilled: Annotated[int, "Random kernels, not measured, whose schedules the draft model chooses."] = 300
    epochs: Annotated[int, "Epochs, each with other prompts."] = 30
    rounds: Annotated[int, "Rounds after that: write schedules, measure them, and train again."] = 0
    batch: Annotated[int, "Trials of each kernel in a round."] = 4
    hold_out: Annotated[
        str | None,
        "Kernels, models or kinds of kernels that are not learnt, separated by spaces, such as "
        "`dense:64x256x256,relu gpt2:tiny depthwise`.",
    ] = None
    layers: Annotated[int, "Layers of the network."] = 3
    width: Annotated[int, "Width of the network."] = 96
    learning_rate: Annotated[float, "Largest learning rate."] = 2e-3
    resume: Annotated[bool, "Go on from the model in --out."] = False
    seed: SeedOption = 0
    json: JsonOption = False


@common_options("records out target threads epochs batch hold_out resume json")
@takes_options
def train(options: TrainOptions) -> None:
    """Train on what the draft model chooses for random kernels, and on the best trials of the records.

    The records need trials; `tessel language collect` measures them. Every epoch that is the best so far is
    written as a complete model: Ctrl-C ends training and keeps it; `--resume` goes on from it.

    Example: `tessel language train --records out/records.db --hold-out "dense:64x256x256,relu depthwise"`
    """
    check_torch()
    check_numbers(
        ("--distilled", options.distilled, 0),
        ("--epochs", options.epochs, 1),
        ("--rounds", options.rounds, 0),
        ("--batch", options.batch, 1),
        ("--threads", options.threads, 1),
    )
    if not 0 < options.learning_rate < 1:
        raise typer.BadParameter(f"--learning-rate is {options.learning_rate}; it is above 0 and below 1")
    from tuner.language.collecting import FAMILIES
    from tuner.language.expert_rounds import train_with_rounds
    from tuner.language.knowledge import ignored_trials
    from tuner.language.model_training import TrainingPlace, TrainingPlan, held_out_tasks

    machine = find_machine(options.target, options.threads)
    check_writable_folder(options.out)
    network, manifest = _initial(options, machine)
    words = (options.hold_out or "").split()
    kernels = [word for word in words if word not in FAMILIES]
    families = tuple(family for family in FAMILIES if family not in words)
    if not families:
        raise typer.BadParameter("--hold-out names every kind of kernel; leave one to be learnt")
    ignored = ignored_trials(options.records, machine)
    if ignored:
        messages.note(f"{ignored} trials are ignored: earlier versions tuned packed kernels by them")
    with messages.bar("starting") as update:
        network, manifest = train_with_rounds(
            network,
            manifest,
            plan=TrainingPlan(
                distilled=options.distilled,
                epochs=options.epochs,
                learning_rate=options.learning_rate,
                seed=options.seed,
                families=families,
            ),
            rounds=_rounds(options),
            place=TrainingPlace(machine, options.out, held_out_tasks(kernels)),
            records_url=options.records,
            on_progress=update,
        )
    _show(network, manifest, options)


def _initial(options: TrainOptions, machine: Machine) -> tuple[Network, Manifest]:
    """Return the model in `--out` with `--resume`, else a new one that has learnt nothing."""
    from cost_model.language.model_files import Manifest, load_network
    from cost_model.language.network import Network, NetworkShape, initial_weights

    if options.resume:
        return load_network(options.out, machine.target.text, machine.target.num_threads)
    try:
        shape = NetworkShape(layers=options.layers, width=options.width)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    manifest = Manifest(
        shape=shape,
        target=machine.target.text,
        device_model=machine.environment.device_model,
        num_threads=machine.target.num_threads,
        seed=options.seed,
    )
    return Network(shape, initial_weights(shape, options.seed)), manifest


def _rounds(options: TrainOptions) -> ExpertRounds | None:
    if not options.rounds:
        return None
    from tuner.backends.metaschedule.trial_worker import builder_and_runner
    from tuner.language.collecting import collection_kernels
    from tuner.language.expert_rounds import ExpertRounds

    builder, runner = builder_and_runner(options.threads)
    return ExpertRounds(
        count=options.rounds,
        kernels=collection_kernels(_ROUND_KERNELS, options.seed),
        batch=options.batch,
        trials=_TRIALS_BEFORE_ROUNDS,
        builder=builder,
        runner=runner,
    )


def _show(network: Network, manifest: Manifest, options: TrainOptions) -> None:
    if options.json:
        from scripts.documents.language_models import Trained

        console.print_json(Trained(model=str(options.out), manifest=manifest))
        return
    console.print_line(
        f"{network.shape.num_parameters:,} parameters, trained on {manifest.num_distilled} distilled kernels "
        f"and the best {manifest.num_best} of {manifest.num_trials} trials of {manifest.num_kernels} "
        f"kernels; written to {options.out}"
    )
