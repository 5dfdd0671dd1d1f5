"""What several commands print: partitions, latencies end to end, stages, and comparisons of schedules.

Parts and comparisons are built for `--json`, too. Checked in
tests/scripts/documents/test_documents_printed.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options import completion
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_choice, parse_names
from tessel.jobs.shown import tables
from tessel.jobs.shown.explanation import add_comparison_rows
from tessel.jobs.shown.sections import Sections

if TYPE_CHECKING:
    from scripts.documents.tuning import PrintedPart
    from tessel.comparison import Comparison
    from tuner.plan import ModelPlan, PartitionPlan, StagePlan
    from tuner.tuning.partition_model import PartitionedModel


def print_partitions(title: str, partition: Sequence[PartitionPlan]) -> None:
    """Print each backend's share of distinct sub-graphs, and the most expensive of them."""
    out = Sections()
    tables.add_partitions(out, title, partition)
    console.print_sections(out)


def print_end_to_end(title: str, found: ModelPlan | PartitionedModel) -> None:
    """Print the mix of backends against each single one, and how far the sum of parts is off."""
    out = Sections()
    tables.add_end_to_end(out, title, found)
    console.print_sections(out)


def print_stages(stages: Sequence[StagePlan]) -> None:
    """Print each stage's latencies and memory."""
    out = Sections()
    tables.add_stages(out, stages)
    console.print_sections(out)


def printed_parts(parts: Sequence[PartitionPlan]) -> tuple[PrintedPart, ...]:
    """Return the parts, most time first."""
    from scripts.documents.tuning import NextBest, PrintedPart

    return tuple(
        PrintedPart(
            operators=part.operators,
            backend=part.backend,
            latency_us=part.figure.latency_us,
            measured=part.figure.source == "measured",
            source=part.figure.source,
            occurrences=part.occurrences,
            runner_up=None
            if part.runner_up is None
            else NextBest(backend=part.runner_up[0], latency_us=part.runner_up[1]),
            record_ids=part.figure.record_ids,
            layers=part.layers,
            inputs=part.inputs,
            outputs=part.outputs,
        )
        for part in parts
    )


def _check_names(text: str | None) -> str | None:
    """Refuse names of no schedule while the command line is read; the message names the nearest."""
    if text is not None:
        from tessel.handwritten import HANDWRITTEN

        for name in parse_names(text) or ():
            check_choice("--schedules", name, ("ours", "searched", *(rule.name for rule in HANDWRITTEN)))
    return text


SchedulesOption = Annotated[
    str | None,
    typer.Option(
        help="Hand-written schedules to compare with, such as 1f1b,zb-h1; default: all that apply.",
        autocompletion=completion.schedules,
        callback=_check_names,
    ),
]


def print_comparison(comparison: Comparison, *, in_bytes: bool) -> None:
    """Print the table of a comparison; milliseconds and bytes for a plan, steps and units else."""
    out = Sections()
    add_comparison_rows(out, comparison, in_bytes=in_bytes)
    console.print_sections(out)
