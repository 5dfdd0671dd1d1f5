"""`tessel targets`: what programs can be built for, and what can be measured here."""

from __future__ import annotations

from typing import Annotated

import typer

from scripts.options import completion
from scripts.options.tuning_options import JsonOption
from scripts.terminal import console


def targets(
    search: Annotated[
        str, typer.Argument(help="List only names that contain this.", autocompletion=completion.targets)
    ] = "",
    json: JsonOption = False,
) -> None:
    """List the targets by name: those measured here, and those that programs can only be built for.

    Examples:

    `tessel targets`

    `tessel targets nvidia-a100`
    """
    from scripts.documents.machines import Device, TargetsListed
    from tuner.backends.environment import environment_of
    from tuner.errors import TunerError
    from tuner.targets.resolution import known_targets, resolve_target

    names = [name for name in known_targets() if search in name]
    here = {}
    for name in ("cpu", "cuda"):
        try:
            environment = environment_of(resolve_target(name))
        except TunerError as error:
            here[name] = Device(measurable=False, detail=str(error))
        else:
            detail = f"{environment.device_model}, {environment.num_cores} cores, driver {environment.driver}"
            here[name] = Device(measurable=True, detail=detail)
    if json:
        console.print_json(TargetsListed(here=here, targets=tuple(names)))
        return
    for name in names:
        device = here.get(name)
        if device is None:
            console.print_line(f"{'builds':10}{name}")
        else:
            status = "measures" if device.measurable else "missing"
            console.print_line(f"{status:10}{name:28}{device.detail}")
