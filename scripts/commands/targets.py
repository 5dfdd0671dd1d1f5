"""`tessel targets`: what programs can be built for, and what can be measured here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options import completion
from scripts.options.tuning_options import JsonOption
from scripts.terminal import console

if TYPE_CHECKING:
    from cost_model.gpu.devices import GpuDevice


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
    from tuner.targets.gpu_targets import sheet_of
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
    sheets = {name: sheet for name in names if (sheet := sheet_of(name)) is not None}
    if json:
        console.print_json(TargetsListed(here=here, targets=tuple(names), gpus=sheets))
        return
    for name in names:
        device = here.get(name)
        if device is None:
            console.print_line(f"{'builds':10}{name:28}{_line(sheets.get(name))}".rstrip())
        else:
            status = "measures" if device.measurable else "missing"
            console.print_line(f"{status:10}{name:28}{device.detail}")


def _line(sheet: GpuDevice | None) -> str:
    """Return what a data sheet says, as one line."""
    if sheet is None:
        return ""
    tensor = f", {sheet.tensor_tflops:g} float16 on tensor cores" if sheet.tensor_tflops else ""
    return (
        f"compute capability {sheet.compute_capability}, {sheet.num_multiprocessors} multiprocessors, "
        f"{sheet.memory_gib:g} GiB at {sheet.bandwidth_gb_s:g} GB/s, L2 {sheet.l2_mib:g} MiB, "
        f"{sheet.peak_gflops / 1e3:.3g} TFLOPS{tensor}"
    )
