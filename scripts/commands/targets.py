"""`tessel targets`: what programs can be built for, and what can be measured here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options import completion, tuning_options
from scripts.options.tuning_options import JsonOption
from scripts.terminal import console
from tessel.progress import messages

if TYPE_CHECKING:
    from cost_model.gpu.devices import GpuDevice


def targets(
    search: Annotated[
        str, typer.Argument(help="List only names that contain this.", autocompletion=completion.targets)
    ] = "",
    compile_model: Annotated[
        str | None,
        typer.Option(
            "--compile",
            metavar="MODEL",
            help="Compile every kernel of this model for each listed GPU; needs no GPU, but the extra "
            "`cuda-compile`.",
            autocompletion=completion.models,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the targets by name: those measured here, and those that programs can only be built for.

    With `--compile`, every kernel of a model is lowered and compiled to machine code for the GPUs listed, and
    checked against the limits of its thread blocks. The exit status is 1 if one of them cannot run it.

    Examples:

    `tessel targets`

    `tessel targets nvidia-a100`

    `tessel targets nvidia-h200 --compile gpt2:tiny`
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
    if compile_model is not None:
        _compile(compile_model, [name for name in names if name.startswith("nvidia/")], json=json)
        return
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


def _compile(model: str, names: Sequence[str], *, json: bool) -> None:
    """Compile a model's kernels for each target, and say what they take or why there are none."""
    from scripts.documents.machines import CompiledFor, ModelCompiled
    from tuner.errors import TunerError
    from tuner.lowering.gpu_code import compile_for_gpu
    from tuner.targets.cuda_compiler import compiler_obstacle
    from tuner.targets.resolution import resolve_target

    if not names:
        raise typer.BadParameter("--compile is for GPUs, and none is listed; name some, such as nvidia-h100")
    obstacle = compiler_obstacle()
    if obstacle is not None:
        raise TunerError(f"--compile has no compiler: {obstacle}")
    module = tuning_options.load_model(model, shapes=None, batch=1, training=False).module
    found: dict[str, CompiledFor] = {}
    by_text: dict[str, CompiledFor] = {}
    for name in names:
        target = resolve_target(name)
        if target.text not in by_text:
            with messages.bar(f"compiling {model} for {name}"):
                try:
                    code = compile_for_gpu(module, target)
                except TunerError as error:
                    by_text[target.text] = CompiledFor(runs=False, why_not=str(error))
                else:
                    by_text[target.text] = CompiledFor.of(code)
        found[name] = by_text[target.text]
    if json:
        console.print_json(ModelCompiled(model=model, targets=found))
    else:
        for name, each in found.items():
            console.print_line(f"{'compiles' if each.runs else 'fails':10}{name:28}{each.line()}")
    if not all(each.runs for each in found.values()):
        raise typer.Exit(1)


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
