"""`tessel language generate`: write schedules of a kernel with the tensor language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scripts.commands.language.machine import (
    DEFAULT_MODEL,
    ModelOption,
    TemperatureOption,
    ThreadsOption,
    check_extra,
    check_numbers,
    check_temperature,
    find_machine,
    find_measuring,
    find_space,
)
from scripts.options.dataclass_options import takes_options
from scripts.options.tuning_options import (
    DEFAULT_RECORDS,
    JsonOption,
    RecordsOption,
    SeedOption,
    TargetOption,
)
from scripts.terminal import console

if TYPE_CHECKING:
    from tuner.language.generation import Generated as Written
    from tuner.language.machine import Machine
    from tuner.language.sketches import KernelSpace

_KERNEL_HELP = (
    "`dense:ROWSxINNERxCOLUMNS` (then `,relu` or `,gelu` if wanted), `product:BATCHxROWSxINNERxCOLUMNS`, "
    "`convolution:CHANNELSxEXTENTxOUTPUTSxKERNELxSTRIDE`, `depthwise:CHANNELSxEXTENTxKERNELxSTRIDE`, or one "
    "of a model's, such as `gpt2:tiny#1`."
)


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """Which schedules are written, and whether they are measured."""

    model: ModelOption = DEFAULT_MODEL
    count: Annotated[int, typer.Option(help="Distinct schedules to write, at most.")] = 8
    temperature: TemperatureOption = 1.0
    target: TargetOption = "cpu"
    threads: ThreadsOption = 1
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure them, and keep the trials in --records.")
    ] = False
    records: RecordsOption = DEFAULT_RECORDS
    seed: SeedOption = 0
    json: JsonOption = False


@takes_options
def generate(
    kernel: Annotated[str, typer.Argument(help=_KERNEL_HELP, metavar="KERNEL")],
    options: GenerateOptions,
) -> None:
    """Generate schedules of a kernel, likeliest first, and report which of them TVM accepts unchanged.

    Examples:

    `tessel language generate dense:64x256x256,relu --count 16`

    `tessel language generate convolution:32x28x64x3x1 --measure --records sqlite:///out/records.db`
    """
    check_extra()
    check_numbers(("--count", options.count, 1), ("--threads", options.threads, 1))
    check_temperature(options.temperature)
    from tuner.language.generation import generate as generate_proposals
    from tuner.language.model_files import load_network

    machine = find_machine(options.target, options.threads)
    space = find_space(machine, kernel)
    network, _ = load_network(options.model, machine.target)
    with console.progress_bar("writing schedules") as update:
        written = generate_proposals(
            network,
            space,
            options.count,
            temperature=options.temperature,
            seed=options.seed,
            on_progress=lambda done, total: update("writing schedules", done, total),
        )
    if options.measure:
        latencies = _measured_us(written, space, machine, options)
    else:
        latencies = [None] * len(written.proposals)
    legal = [space.schedule(proposal) is not None for proposal in written.proposals]
    if options.json:
        _print_document(written, space, legal, latencies)
    else:
        _print_table(written, space, legal, latencies)


def _measured_us(
    written: Written, space: KernelSpace, machine: Machine, options: GenerateOptions
) -> list[float | None]:
    """Measure what was written; None where it failed."""
    from tuner.language.trials import measure_proposals

    measuring = find_measuring(machine, options.records, options.model)
    assert measuring.keeper is not None
    with console.progress_bar("measuring") as update:
        measured = measure_proposals(
            space,
            written.proposals,
            builder=measuring.builder,
            runner=measuring.runner,
            keep=measuring.keeper(space),
            on_progress=lambda done, total: update("measuring", done, total),
        )
    return [each.latency_us for each in measured]


def _print_document(
    written: Written, space: KernelSpace, legal: list[bool], latencies: list[float | None]
) -> None:
    from scripts.documents.language_models import Generated, PrintedProposal

    rows = tuple(
        PrintedProposal(
            sketch=proposal.sketch,
            decisions=proposal.decisions,
            legal=is_legal,
            latency_us=latency_us,
        )
        for proposal, is_legal, latency_us in zip(written.proposals, legal, latencies, strict=True)
    )
    console.print_json(
        Generated(
            kernel=space.name,
            proposals=rows,
            legal_ratio=_share(legal),
            distinct_ratio=written.distinct_ratio,
        )
    )


def _print_table(
    written: Written, space: KernelSpace, legal: list[bool], latencies: list[float | None]
) -> None:
    console.print_table(
        f"{space.name}: {_share(legal):.0%} legal, {written.distinct_ratio:.0%} of what was written distinct",
        ["decisions", "sketch", "latency"],
        [
            [
                " ".join(map(_decision_text, proposal.decisions)),
                str(proposal.sketch),
                "-" if latency is None else console.format_us(latency),
            ]
            for proposal, latency in zip(written.proposals, latencies, strict=True)
        ],
    )


def _share(legal: list[bool]) -> float:
    return sum(legal) / max(1, len(legal))


def _decision_text(decision: Any) -> str:
    return "×".join(map(str, decision)) if isinstance(decision, tuple) else str(decision)
