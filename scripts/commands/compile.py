"""`tessel compile`: the best mix of backends as one file, which `tessel.load` runs without the tuner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from scripts.options import tuning_options
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import (
    BatchOption,
    CoalesceOption,
    GraphLevelSearchOption,
    JsonOption,
    ModelArgument,
    ShapeOption,
    TuningOptions,
    ValueOption,
)
from scripts.reports.tables import print_end_to_end, print_partitions, printed_parts
from scripts.terminal import console
from tessel.jobs.inputs.arguments import (
    check_folder,
    check_model,
    describe_shapes,
    parse_shape_choices,
    parse_values,
)
from tessel.jobs.sessions import shown_report
from tessel.jobs.shown.formatting import format_bytes, format_us
from tessel.progress import messages
from tuner.tuning.search.options import PartitionOptions as Defaults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scripts.documents.tuning import CompiledProgram
    from tessel.compiling.partitioning import CompiledModel
    from tessel.compiling.program import Program

SUFFIXES = (".tessel",)

PadOption = Annotated[
    list[str] | None,
    "Fill up an input that is smaller than one of several shapes: input_ids=0; may be repeated.",
]

_ROUNDS = 12
"""In which the program and torch eager take turns: about a second."""


@dataclass(frozen=True, kw_only=True)
class CompileOptions(TuningOptions):
    """Where the program goes, and how far its partition is searched."""

    out: Annotated[Path, "The file to write, such as net.tessel."]
    batch: BatchOption = Defaults.batch
    shape: ShapeOption = None
    pad: PadOption = None
    value: ValueOption = None
    graph_level_search: GraphLevelSearchOption = Defaults.graph_level_search
    coalesce: CoalesceOption = Defaults.coalesce
    json: JsonOption = False


@common_options("out target backends trials threads shape value graph_level_search records json")
@takes_options
def compile(model: ModelArgument, options: CompileOptions) -> None:
    """Compile a model for inference on this machine's CPU or GPU into one file.

    `tessel.load("net.tessel")` gives it back as a function, in a process that has no tuner. What is searched
    and measured is what `tessel partition` does, and records are shared with it.

    Examples:

    `tessel compile net.onnx --out net.tessel`

    `tessel compile bert:tiny --threads 1 --backends tvm,blas --out bert.tessel`

    `tessel compile lm.py:build --shape ids=1,16 --shape ids=1,128 --pad ids=0 --out lm.tessel`
    """
    check_folder("--out", options.out, suffixes=SUFFIXES)
    check_model(model)

    from tessel.compiling.partitioning import compile_shapes

    sets, pad = parse_shape_choices(options.shape or []), parse_values(options.pad or [])
    settings = tuning_options.job_options(Defaults, options)
    with messages.bar(f"loading {model}") as update:
        report = shown_report(update)
        program, compiled = compile_shapes(model, None, settings, report, sets=sets, pad=pad)
        update(f"writing {options.out}")
        num_bytes = program.save(options.out)
        update("the program and torch eager take turns")
        document = _document(program, compiled, options.out, num_bytes)
    if options.json:
        console.print_json(document)
        return
    for each in compiled:
        _print_partition(each)
    _print(document)


def _document(
    program: Program, compiled: Sequence[CompiledModel], path: Path, num_bytes: int
) -> CompiledProgram:
    from scripts.documents.tuning import CompiledProgram
    from tessel.compiling.racing import EAGER, PROGRAM

    raced = program.benchmark(against=(EAGER,), rounds=_ROUNDS)
    latency_us = {each.name: each.latency_us for each in raced.contenders}
    manifest = program.manifest
    errors = [each.partition.max_relative_error for each in compiled]
    return CompiledProgram(
        file=str(path),
        bytes=num_bytes,
        shapes=tuple(
            {spec.name: spec.shape for spec in each.manifest.inputs}
            for each in ([one.program for one in compiled] or [program])
        ),
        partitions=printed_parts(compiled[0].partition.partition if compiled else ()),
        max_relative_error=max((error for error in errors if error is not None), default=None),
        latency_us={"program": latency_us[PROGRAM], "eager": latency_us.get(EAGER)},
        libraries=manifest.libraries,
        features=manifest.features,
        versions=manifest.versions,
    )


def _print_partition(compiled: CompiledModel) -> None:
    shapes = describe_shapes({spec.name: spec.shape for spec in compiled.program.manifest.inputs})
    print_partitions(f"Program of {compiled.partition.model}, {shapes}", compiled.partition.partition)
    print_end_to_end("Whole model", compiled.partition)


def _print(document: CompiledProgram) -> None:
    called = ", ".join(
        f"{name} {format_us(latency)}" for name, latency in document.latency_us.items() if latency
    )
    console.print_line(f"one call in this process: {called}")
    needs = ", ".join(f"{name} {version}" for name, version in document.versions.items())
    console.print_line(f"written: {document.file}, {format_bytes(document.bytes)}; it needs {needs}")
