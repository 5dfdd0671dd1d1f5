"""Options that the commands of the language model share, the machine, and kernels by their names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import installation
from tessel.progress import messages

if TYPE_CHECKING:
    from tuner.graph.relax_types import IRModule
    from tuner.language.machine import Machine

DEFAULT_MODEL = Path("out/language")

ModelOption = Annotated[Path, "Folder of the model."]
ThreadsOption = Annotated[int, "Threads that a measured kernel may use."]


def find_machine(text: str, threads: int) -> Machine:
    """Return this machine's processor as a target.

    Raises:
        typer.BadParameter: the target is another device.
    """
    from tuner.backends.environment import environment_of
    from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target
    from tuner.language.machine import Machine
    from tuner.targets.resolution import check_measurable, resolve_target

    with messages.bar("starting"):
        target = resolve_target(text, num_threads=threads)
        if target.kind != "cpu":
            raise typer.BadParameter(
                f"--target {text} is not this machine's processor; the language model writes "
                "schedules for cpu"
            )
        check_measurable(target)
        return Machine(target, tuning_target(target), environment_of(target, MetaSchedule()))


def find_kernel(name: str) -> tuple[str, IRModule]:
    """Return the one kernel that a word names, with its name.

    Raises:
        typer.BadParameter: it names none, or several.
    """
    from tuner.language.kernels import named_kernels

    found = named_kernels(name)
    if len(found) != 1:
        known = ", ".join(each for each, _ in found)
        raise typer.BadParameter(
            f"{name!r} names {len(found)} kernels; give one"
            + (f" of {known}" if known else ", such as dense:64x256x256,relu")
        )
    return found[0]


def check_torch() -> None:
    """Refuse to go on without the extra `language`."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise typer.BadParameter(
            "torch is not installed, and training the language model needs it; "
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
