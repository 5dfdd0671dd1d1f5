"""Tables of what was tuned: partitions, end-to-end latencies, stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessel.jobs.shown.formatting import (
    end_to_end_rows,
    format_bytes,
    format_error,
    format_figure,
    format_layers,
    format_operators,
    format_tensors,
    format_us,
)

if TYPE_CHECKING:
    from tessel.jobs.shown.sections import Sections
    from tuner.plan import Figure, ModelPlan, PartitionPlan, StagePlan
    from tuner.tuning.partition_model import PartitionedModel

_MAX_ROWS = 12
_FUNCTIONS = ("forward", "backward", "backward_input", "backward_weight")
_LAYERS_WIDTH = 24


def add_partition(out: Sections, plan: ModelPlan) -> None:
    """Add each backend's share, and the sub-graphs that take most of the time."""
    add_partitions(out, "Partition of the stages' functions", plan.partition)


def add_partitions(out: Sections, title: str, partition: Sequence[PartitionPlan]) -> None:
    """Add each backend's share of distinct sub-graphs, and the most expensive of them."""
    total = sum(_total_us(part) for part in partition) or 1.0
    occurrences = sum(part.occurrences for part in partition)
    out.line(f"{title}: {len(partition)} distinct sub-graphs, each priced once, run {occurrences} times")
    rows = []
    for backend in sorted({part.backend for part in partition}):
        mine = [part for part in partition if part.backend == backend]
        share = sum(_total_us(part) for part in mine) / total
        rows.append([backend, str(len(mine)), str(sum(part.occurrences for part in mine)), f"{share:.1%}"])
    out.table("", ["backend", "distinct", "sub-graphs", "share of time"], rows)
    ordered = sorted(partition, key=_total_us, reverse=True)
    rows = [
        [
            format_operators(part.operators),
            format_layers(part.layers),
            format_tensors(part),
            part.backend,
            format_figure(part.figure),
            str(part.occurrences),
            "-" if part.runner_up is None else f"{part.runner_up[0]} {format_us(part.runner_up[1])}",
        ]
        for part in ordered[:_MAX_ROWS]
    ]
    out.line()
    columns = ["operators", "layer", "tensors", "backend", "latency", "runs", "alternative"]
    kept = [
        index for index, column in enumerate(columns) if column != "layer" or any(row[index] for row in rows)
    ]
    out.table(
        "",
        [columns[index] for index in kept],
        [[row[index] for index in kept] for row in rows],
        text_columns=len(kept) - 3,
    )
    if len(ordered) > _MAX_ROWS:
        out.line(f"… and {len(ordered) - _MAX_ROWS} more")
    out.line()


def add_end_to_end(out: Sections, title: str, found: ModelPlan | PartitionedModel) -> None:
    """Add the mix of backends against each single one, and how far the sum of parts is off."""
    mix = found.end_to_end["mix"].latency_us
    columns = ["backends", "latency", "ratio to mix", "interval"]
    out.table(title, columns, end_to_end_rows(found))
    if found.is_tie:
        out.line("a tie: no difference exceeds its interval, so the mix is the simplest of the tied programs")
    error = found.sum_of_parts.latency_us / mix - 1
    out.line(
        f"its parts, timed one by one: {format_us(found.sum_of_parts.latency_us)} in sum ({error:+.1%} from "
        f"the mix as a whole), {found.launch_penalty_us:.2f} us a launch included"
    )
    whole = "the model's own program" if found.reference else "the unpartitioned model"
    out.line(f"largest error against {whole} {format_error(found.max_relative_error)}")
    if found.import_error is not None:
        out.line(f"largest error of the import against the model's own program {found.import_error:.1e}")


def add_stages(out: Sections, stages: Sequence[StagePlan]) -> None:
    """Add each stage's latencies and memory."""
    prefix = _common_prefix([layer for stage in stages for layer in stage.layers])
    rows = [_stage_row(stage, prefix) for stage in stages]
    columns = ["stage", "F", "B+W joint", "B", "W", "weights", "saved", "sent"]
    out.table("Stages (per micro-batch)", columns, rows)
    for stage in stages:
        if stage.recomputes:
            kept, saved = (format_bytes(size) for size in (stage.kept_bytes, stage.saved_bytes))
            out.line(
                f"  {stage.name} runs its forward again in its backward, and keeps {kept} instead of {saved}"
            )
    bound = [(stage.name, stage.bound_bytes) for stage in stages if stage.bound_bytes]
    if bound:
        out.line(
            "kept beside the weights, which stay as they are: what is folded and packed of them, "
            + ", ".join(f"{format_bytes(size)} in {name}" for name, size in bound)
        )
    divided = [(stage.name, stage.shards) for stage in stages if stage.shards is not None]
    if divided:
        out.line("* on all devices: time and bytes of the largest shard, collectives included")
    for name, shards in divided:
        shares = ", ".join(
            f"{column} {format_us(shards.collective_us[function])}"
            for column, function in zip(columns[1:], _FUNCTIONS, strict=False)
            if function in shards.collective_us
        )
        out.line(f"  {name}: collectives, {shards.collective_source}: {shares}")


def _common_prefix(layers: Sequence[str]) -> str:
    """Return the path that every layer's name begins with, its dot included; empty if there is none."""
    head, dot, _ = layers[0].partition(".")
    shared = f"{head}{dot}"
    return shared if dot and all(layer.startswith(shared) for layer in layers) else ""


def _stage_row(stage: StagePlan, prefix: str) -> list[str]:
    figures = (stage.forward, stage.backward, stage.backward_input, stage.backward_weight)
    shown = [layer.replace(prefix, "") if prefix else layer for layer in stage.layers]
    layers = shown[0] if len(shown) == 1 else f"{shown[0]} … {shown[-1]}"
    if stage.shards is not None:
        layers = f"* {layers}"

    def shown_figure(figure: Figure) -> str:
        # Every figure of shards is a sum of segments and collectives, which the line below the table says.
        is_sum = stage.shards is not None and figure.source == "derived"
        return format_us(figure.latency_us) if is_sum else format_figure(figure)

    return [
        layers if len(layers) <= _LAYERS_WIDTH else f"{layers[: _LAYERS_WIDTH - 1]}…",
        *("-" if figure is None else shown_figure(figure) for figure in figures),
        format_bytes(stage.weight_bytes),
        format_bytes(stage.saved_bytes),
        format_bytes(stage.boundary_bytes),
    ]


def _total_us(part: PartitionPlan) -> float:
    return part.figure.latency_us * part.occurrences
