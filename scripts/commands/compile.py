"""`tessel compile`: the best mix of backends as one file, which `tessel.load` runs without the tuner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from scripts.reports.parts import printed_parts
from scripts.reports.tables import print_end_to_end, print_partitions
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_folder, check_model
from tessel.jobs.sessions import shown_report
from tessel.jobs.shown.formatting import format_bytes, format_us
from tessel.progress import messages
from tuner.tuning.search.options import PartitionOptions as Defaults

if TYPE_CHECKING:
    from scripts.documents.tuning import CompiledProgram
    from tessel.compiling.partitioning import CompiledModel

SUFFIXES = (".tessel",)

_ROUNDS = 12
"""In which the program and torch eager take turns: about a second."""


@dataclass(frozen=True, kw_only=True)
class CompileOptions(TuningOptions):
    """Where the program goes, and how far its partition is searched."""

    out: Annotated[Path, typer.Option(help="The file to write, such as net.tessel.")]
    batch: BatchOption = Defaults.batch
    shape: ShapeOption = None
    value: ValueOption = None
    graph_level_search: GraphLevelSearchOption = Defaults.graph_level_search
    coalesce: CoalesceOption = Defaults.coalesce
    json: JsonOption = False


@common_options("out target backends trials threads shape value graph_level_search records json")
@takes_options
def compile(model: ModelArgument, options: CompileOptions) -> None:
    """Compile a model for inference on this machine's CPU into one file.

    `tessel.load("net.tessel")` gives it back as a function, in a process that has no tuner. What is searched
    and measured is what `tessel partition` does, and records are shared with it.

    Examples:

    `tessel compile net.onnx --out net.tessel`

    `tessel compile bert:tiny --threads 1 --backends tvm,blas --out bert.tessel`
    """
    check_folder("--out", options.out, suffixes=SUFFIXES)
    check_model(model)

    from tessel.compiling.partitioning import compile_model, load_source

    settings = tuning_options.job_options(Defaults, options)
    with messages.bar(f"loading {model}") as update:
        report = shown_report(update)
        compiled = compile_model(load_source(model, None, settings, report), settings, report)
        update(f"writing {options.out}")
        num_bytes = compiled.program.save(options.out)
        update("the program and torch eager take turns")
        document = _document(compiled, options.out, num_bytes)
    if options.json:
        console.print_json(document)
        return
    _print(compiled, document)


def _document(compiled: CompiledModel, path: Path, num_bytes: int) -> CompiledProgram:
    from scripts.documents.tuning import CompiledProgram
    from tessel.compiling.racing import EAGER, PROGRAM

    raced = compiled.program.benchmark(against=(EAGER,), rounds=_ROUNDS)
    latency_us = {each.name: each.latency_us for each in raced.contenders}
    manifest = compiled.program.manifest
    return CompiledProgram(
        file=str(path),
        bytes=num_bytes,
        partitions=printed_parts(compiled.partition.partition),
        max_relative_error=compiled.partition.max_relative_error,
        latency_us={"program": latency_us[PROGRAM], "eager": latency_us.get(EAGER)},
        libraries=manifest.libraries,
        features=manifest.features,
        versions=manifest.versions,
    )


def _print(compiled: CompiledModel, document: CompiledProgram) -> None:
    partition = compiled.partition
    print_partitions(f"Program of {partition.model}", partition.partition)
    print_end_to_end("Whole model", partition)
    called = ", ".join(
        f"{name} {format_us(latency)}" for name, latency in document.latency_us.items() if latency
    )
    console.print_line(f"one call in this process: {called}")
    needs = ", ".join(f"{name} {version}" for name, version in document.versions.items())
    console.print_line(f"written: {document.file}, {format_bytes(document.bytes)}; it needs {needs}")
