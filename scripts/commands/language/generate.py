"""`tessel language generate`: write schedules of a kernel with the language model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scripts.commands.language.machine import (
    DEFAULT_MODEL,
    ModelOption,
    ThreadsOption,
    check_numbers,
    find_kernel,
    find_machine,
)
from scripts.options.dataclass_options import takes_options
from scripts.options.tuning_options import JsonOption, RecordsOption, SeedOption, TargetOption
from scripts.terminal import console
from tessel.jobs.shown.formatting import format_us
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS

if TYPE_CHECKING:
    from tuner.graph.relax_types import IRModule
    from tuner.language.generation import Generated
    from tuner.language.machine import Machine

_KERNEL_HELP = (
    "`dense:ROWSxINNERxCOLUMNS` (then `,relu` or `,gelu` if wanted), `product:BATCHxROWSxINNERxCOLUMNS`, "
    "`convolution:CHANNELSxEXTENTxOUTPUTSxKERNELxSTRIDE`, `depthwise:CHANNELSxEXTENTxKERNELxSTRIDE`, or one "
    "of a model's, such as `gpt2:tiny#1`."
)


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """Which schedules are written, and whether they are measured."""

    model: ModelOption = DEFAULT_MODEL
    count: Annotated[int, "Distinct schedules to show, at most."] = 8
    temperature: Annotated[
        float, "Sampling temperature, above 0; lower values favour likelier decisions."
    ] = 1.0
    target: TargetOption = "cpu"
    threads: ThreadsOption = 1
    measure: Annotated[bool, "Measure them, and keep the trials in --records."] = False
    records: RecordsOption = DEFAULT_RECORDS
    seed: SeedOption = 0
    json: JsonOption = False


@takes_options
def generate(
    kernel: Annotated[str, typer.Argument(help=_KERNEL_HELP, metavar="KERNEL")],
    options: GenerateOptions,
) -> None:
    """Write schedules of a kernel, and rank them by the draft model of the records' trials.

    Similar kernels' trials in the records, and the kernel's own, are in the prompt.

    Examples:

    `tessel language generate dense:64x256x256,relu --count 16`

    `tessel language generate convolution:32x28x64x3x1 --measure --records sqlite:///out/records.db`
    """
    check_numbers(("--count", options.count, 1), ("--threads", options.threads, 1))
    if not 0 < options.temperature < math.inf:
        raise typer.BadParameter(f"--temperature is {options.temperature}; it is above 0")
    from cost_model.language.model_files import load_network
    from tuner.language.generation import generate_for
    from tuner.language.knowledge import knowledge_of

    machine = find_machine(options.target, options.threads)
    name, module = find_kernel(kernel)
    network, _ = load_network(options.model, machine.target.text, machine.target.num_threads)
    with messages.bar("writing schedules"):
        knowledge = knowledge_of(options.records, machine, network=network)
        written = generate_for(
            module,
            machine,
            knowledge,
            options.count,
            temperature=options.temperature,
            seed=options.seed,
        )
    latencies: list[float | None] = [None] * len(written.schedules)
    if options.measure:
        latencies = _measured_us(module, written, machine, options.records)
    if options.json:
        _print_document(name, written, latencies)
    else:
        _print_table(name, written, latencies)


def _measured_us(module: IRModule, written: Generated, machine: Machine, records: str) -> list[float | None]:
    """Measure what was written; None where it failed."""
    from tuner.backends.metaschedule.trial_worker import builder_and_runner
    from tuner.backends.metaschedule.trials import KeepTrials
    from tuner.language.trials import measure_schedules

    builder, runner = builder_and_runner(machine.target.num_threads)
    with messages.bar("measuring"):
        return measure_schedules(
            module,
            machine.tuned_for,
            [each.candidate.schedule for each in written.schedules],
            builder=builder,
            runner=runner,
            keep=KeepTrials(records, module, machine.tuned_for, machine.target, machine.environment),
        )


def _print_document(name: str, written: Generated, latencies: list[float | None]) -> None:
    from scripts.documents.language_models import PrintedSchedule, SchedulesWritten

    console.print_json(
        SchedulesWritten(
            kernel=name,
            schedules=tuple(
                PrintedSchedule(
                    sketch=each.sketch,
                    decisions=each.decisions,
                    repaired=each.is_repaired,
                    relative_speed=None if each.log_speed is None else math.exp(each.log_speed),
                    latency_us=latency_us,
                )
                for each, latency_us in zip(written.schedules, latencies, strict=True)
            ),
            written=written.num_written,
            distinct=written.num_distinct,
            legal_ratio=written.legal_ratio,
        )
    )


def _print_table(name: str, written: Generated, latencies: list[float | None]) -> None:
    console.print_table(
        f"{name}: {written.num_distinct} of {written.num_written} schedules distinct, "
        f"{written.legal_ratio:.0%} taken as written",
        ["decisions", "sketch", "predicted speed", "latency"],
        [
            [
                " ".join(map(_decision_text, each.decisions)),
                str(each.sketch),
                "-" if each.log_speed is None else f"{math.exp(each.log_speed):.2f}",
                "-" if latency is None else format_us(latency),
            ]
            for each, latency in zip(written.schedules, latencies, strict=True)
        ],
    )


def _decision_text(decision: Any) -> str:
    return "×".join(map(str, decision)) if isinstance(decision, tuple) else str(decision)
