"""What the commands of the language model share: options, the machine, and kernels by their names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scripts import installation
from scripts.terminal import console

if TYPE_CHECKING:
    from tuner.language.evaluation import Measuring
    from tuner.language.machine import Machine
    from tuner.language.sketches import KernelSpace

DEFAULT_MODEL = Path("out/language")

ModelOption = Annotated[Path, typer.Option(help="Folder of the model.")]
ThreadsOption = Annotated[int, typer.Option(help="Threads that a measured kernel may use.")]
TemperatureOption = Annotated[
    float, typer.Option(help="Sampling temperature, above 0; lower values favour likelier decisions.")
]


def find_machine(text: str, threads: int) -> Machine:
    """Return this machine's processor as a target.

    Raises:
        typer.BadParameter: the target is another device.
    """
    from tuner.backends.environment import environment_of
    from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target
    from tuner.language.machine import Machine
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


def find_spaces(machine: Machine, names: str) -> list[KernelSpace]:
    """Return the kernels that words name, without those that have nothing to decide."""
    from tuner.language.kernels import named_kernels
    from tuner.language.sketches import KernelSpace

    spaces = [
        KernelSpace(name, module, machine.tuned_for)
        for word in names.split()
        for name, module in named_kernels(word)
    ]
    return [space for space in spaces if space.has_decisions]


def find_space(machine: Machine, name: str) -> KernelSpace:
    """Return the one kernel that a word names.

    Raises:
        typer.BadParameter: it names none, or several.
    """
    spaces = find_spaces(machine, name)
    if len(spaces) != 1:
        known = ", ".join(space.name for space in spaces)
        raise typer.BadParameter(
            f"{name!r} names {len(spaces)} kernels that have something to decide; give one"
            + (f" of {known}" if known else ", such as dense:64x256x256,relu")
        )
    return spaces[0]


def find_measuring(machine: Machine, records: str, model: Path) -> Measuring:
    """Return how kernels are built and run, and where their trials are kept."""
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


def check_extra() -> None:
    """Refuse to go on without the extra `language`."""
    import importlib.util

    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise typer.BadParameter(
            f"{missing[0]} is not installed, and the language model needs it; "
            f"{installation.install_extra('language')}"
        )


def check_numbers(*options: tuple[str, int, int]) -> None:
    """Refuse the first number that is less than it may be.

    Args:
        options: of each, its name, its value and the least one.

    Raises:
        typer.BadParameter: there is one.
    """
    for name, value, least in options:
        if value < least:
            raise typer.BadParameter(f"{name} is {value}; it is at least {least}")


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that is not above 0.

    Raises:
        typer.BadParameter: it is not.
    """
    if not 0 < temperature < math.inf:
        raise typer.BadParameter(f"--temperature is {temperature}; it is above 0")
