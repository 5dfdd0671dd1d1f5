"""Tables that several commands print: partitions, end-to-end latencies, stages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scripts.terminal import console

if TYPE_CHECKING:
    from tuner.plan import Figure, ModelPlan, PartitionPlan, StagePlan, TensorType
    from tuner.tuning.partition_model import PartitionedModel

_MAX_ROWS = 12
_FUNCTIONS = ("forward", "backward", "backward_input", "backward_weight")
_LAYERS_WIDTH = 24

_NUMBERS = re.compile(r"(?<![^. ])\d+(?![^. ])")
"""Parts of a layer's path that are numbers."""


def print_partition(plan: ModelPlan) -> None:
    """Print each backend's share, and the sub-graphs that take most of the time."""
    print_partitions("Partition of the stages' functions", plan.partition)


def print_partitions(title: str, partition: Sequence[PartitionPlan]) -> None:
    """Print each backend's share of distinct sub-graphs, and the most expensive of them."""
    total = sum(_total_us(part) for part in partition) or 1.0
    occurrences = sum(part.occurrences for part in partition)
    console.print_line(
        f"{title}: {len(partition)} distinct sub-graphs, each priced once, run {occurrences} times"
    )
    rows = []
    for backend in sorted({part.backend for part in partition}):
        mine = [part for part in partition if part.backend == backend]
        share = sum(_total_us(part) for part in mine) / total
        rows.append([backend, str(len(mine)), str(sum(part.occurrences for part in mine)), f"{share:.1%}"])
    console.print_table("", ["backend", "distinct", "sub-graphs", "share of time"], rows)
    ordered = sorted(partition, key=_total_us, reverse=True)
    rows = [
        [
            _operators(part.operators),
            format_layers(part.layers),
            format_tensors(part),
            part.backend,
            format_figure(part.figure),
            str(part.occurrences),
            "-" if part.runner_up is None else f"{part.runner_up[0]} {console.format_us(part.runner_up[1])}",
        ]
        for part in ordered[:_MAX_ROWS]
    ]
    console.print_line()
    columns = ["operators", "layer", "tensors", "backend", "latency", "runs", "alternative"]
    kept = [
        index for index, column in enumerate(columns) if column != "layer" or any(row[index] for row in rows)
    ]
    console.print_table(
        "",
        [columns[index] for index in kept],
        [[row[index] for index in kept] for row in rows],
        text_columns=len(kept) - 3,
    )
    if len(ordered) > _MAX_ROWS:
        console.print_line(f"… and {len(ordered) - _MAX_ROWS} more")
    console.print_line()


def print_end_to_end(title: str, found: ModelPlan | PartitionedModel) -> None:
    """Print the mix of backends against each single one, and how far the sum of parts is off."""
    mix = found.end_to_end["mix"].latency_us
    columns = ["backends", "latency", "ratio to mix", "interval"]
    console.print_table(title, columns, end_to_end_rows(found))
    if found.is_tie:
        console.print_line(
            "a tie: no difference exceeds its interval, so the mix is the simplest of the tied programs"
        )
    error = found.sum_of_parts.latency_us / mix - 1
    console.print_line(
        f"sum of parts {console.format_us(found.sum_of_parts.latency_us)} ({error:+.1%}), launch penalty "
        f"{found.launch_penalty_us:.2f} us"
    )
    whole = "the model's own program" if found.reference else "the unpartitioned model"
    console.print_line(f"largest error against {whole} {format_error(found.max_relative_error)}")
    if found.import_error is not None:
        console.print_line(
            f"largest error of the import against the model's own program {found.import_error:.1e}"
        )


def end_to_end_rows(found: ModelPlan | PartitionedModel) -> list[list[str]]:
    """Return a row a variant, fastest first: its latency, its ratio to the mix, and that ratio's interval.

    Ratios are those within rounds of a race, where there was one; latencies apart would compare the load too.
    """
    mix = found.end_to_end["mix"].latency_us
    ratios = {name: ratio.ratio for name, ratio in found.ratio_to_mix.items()}
    intervals = {
        name: f"{ratio.low:.2f} … {'∞' if ratio.high is None else f'{ratio.high:.2f}'}"
        for name, ratio in found.ratio_to_mix.items()
    }
    rows = [
        (ratios.get(name, figure.latency_us / mix), name, format_figure(figure))
        for name, figure in found.end_to_end.items()
    ]
    rows.sort(key=lambda row: row[0])  # the mix is the first of its equals
    return [[name, latency, f"{ratio:.2f}", intervals.get(name, "")] for ratio, name, latency in rows]


def print_stages(stages: Sequence[StagePlan]) -> None:
    """Print each stage's latencies and memory."""
    prefix = _common_prefix([layer for stage in stages for layer in stage.layers])
    rows = [_stage_row(stage, prefix) for stage in stages]
    columns = ["stage", "F", "B+W joint", "B", "W", "weights", "saved", "sent"]
    console.print_table("Stages (per micro-batch)", columns, rows)
    for stage in stages:
        if stage.recomputes:
            kept, saved = (console.format_bytes(size) for size in (stage.kept_bytes, stage.saved_bytes))
            console.print_line(
                f"  {stage.name} runs its forward again in its backward, and keeps {kept} instead of {saved}"
            )
    bound = [(stage.name, stage.bound_bytes) for stage in stages if stage.bound_bytes]
    if bound:
        console.print_line(
            "kept beside the weights, which stay as they are: what is folded and packed of them, "
            + ", ".join(f"{console.format_bytes(size)} in {name}" for name, size in bound)
        )
    divided = [(stage.name, stage.shards) for stage in stages if stage.shards is not None]
    if divided:
        console.print_line("* on all devices: time and bytes of the largest shard, collectives included")
    for name, shards in divided:
        shares = ", ".join(
            f"{column} {console.format_us(shards.collective_us[function])}"
            for column, function in zip(columns[1:], _FUNCTIONS, strict=False)
            if function in shards.collective_us
        )
        console.print_line(f"  {name}: collectives, {shards.collective_source}: {shares}")


def format_figure(figure: Figure) -> str:
    """Return a latency, marked unless it was measured."""
    mark = "" if figure.source == "measured" else f" ({figure.source})"
    return console.format_us(figure.latency_us) + mark


def format_layers(layers: Sequence[str]) -> str:
    """Return the layers that a part occurs in, with those that differ by numbers alone as one.

    `h.0.mlp` to `h.11.mlp` are `h.{0…11}.mlp`; numbers that are no range are a list, and so are layers of
    other names.
    """
    groups: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    for layer in layers:
        names = tuple(_NUMBERS.split(layer))
        groups.setdefault(names, []).append(tuple(map(int, _NUMBERS.findall(layer))))
    return ", ".join(_joined(names, numbers) for names, numbers in groups.items())


def format_tensors(part: PartitionPlan) -> str:
    """Return what a part reads and makes, such as `1×128×768 · 768×3072 → 1×128×3072 float32`."""
    if not part.outputs:  # a plan of an older version
        return ""
    dtypes = {tensor.dtype for tensor in (*part.inputs, *part.outputs)}
    shared = f" {next(iter(dtypes))}" if len(dtypes) == 1 else ""

    def shown(tensors: Sequence[TensorType]) -> str:
        texts = ["×".join(map(str, tensor.shape)) or "scalar" for tensor in tensors]
        if not shared:
            texts = [f"{text} {tensor.dtype}" for text, tensor in zip(texts, tensors, strict=True)]
        return " · ".join(texts)

    return f"{shown(part.inputs)} → {shown(part.outputs)}{shared}"


def _joined(names: Sequence[str], numbers: Sequence[tuple[int, ...]]) -> str:
    """Put numbers between names: one that is the same in all, a range, or a list."""
    text = names[0]
    for index, name in enumerate(names[1:]):
        found = sorted({each[index] for each in numbers})
        if len(found) == 1:
            text += f"{found[0]}{name}"
        elif found == list(range(found[0], found[-1] + 1)):
            text += f"{{{found[0]}…{found[-1]}}}{name}"
        else:
            text += f"{{{','.join(map(str, found))}}}{name}"
    return text


def format_error(error: float | None) -> str:
    """Return a relative error, or that nothing was checked."""
    return "not checked, nothing was run" if error is None else f"{error:.1e}"


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
        return console.format_us(figure.latency_us) if is_sum else format_figure(figure)

    return [
        layers if len(layers) <= _LAYERS_WIDTH else f"{layers[: _LAYERS_WIDTH - 1]}…",
        *("-" if figure is None else shown_figure(figure) for figure in figures),
        console.format_bytes(stage.weight_bytes),
        console.format_bytes(stage.saved_bytes),
        console.format_bytes(stage.boundary_bytes),
    ]


def _operators(operators: Sequence[str]) -> str:
    text = ", ".join(operators[:4])
    return text if len(operators) <= 4 else f"{text}, … ({len(operators)})"


def _total_us(part: PartitionPlan) -> float:
    return part.figure.latency_us * part.occurrences
