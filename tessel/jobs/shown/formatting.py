"""Figures as text: sizes, latencies, layers and tensors, in tables, reports and pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.plan import Figure, ModelPlan, PartitionPlan, TensorType
    from tuner.tuning.partition_model import PartitionedModel

MAX_LIST_WIDTH = 24

_MAX_TEXT = 96
"""Letters of a list of layers or tensors, at the most: operators without layers are named one by one."""


def format_numbers(numbers: Sequence[int]) -> str:
    """Return a number per device: one where all are equal, only their range where they would fill a line."""
    if len(set(numbers)) == 1:
        return str(numbers[0])
    text = ",".join(map(str, numbers))
    return text if len(text) <= MAX_LIST_WIDTH else f"{min(numbers)} to {max(numbers)}"


def format_bytes(num_bytes: float) -> str:
    """Return a size in the unit that leaves one to four digits before the point."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"


def format_us(latency_us: float) -> str:
    """Return a latency in microseconds or milliseconds."""
    return f"{latency_us:.1f} us" if latency_us < 1000 else f"{latency_us / 1000:.2f} ms"


_NUMBERS = re.compile(r"(?<![^. ])\d+(?![^. ])")
"""Parts of a layer's path that are numbers."""


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


def format_figure(figure: Figure) -> str:
    """Return a latency, marked unless it was measured."""
    mark = "" if figure.source == "measured" else f" ({figure.source})"
    return format_us(figure.latency_us) + mark


def format_layers(layers: Sequence[str]) -> str:
    """Return the layers that a part occurs in, with those that differ by numbers alone as one.

    `h.0.mlp` to `h.11.mlp` are `h.{0…11}.mlp`; numbers that are no range are a list, and so are layers of
    other names. A long list ends in `…`.
    """
    groups: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    for layer in layers:
        names = tuple(_NUMBERS.split(layer))
        groups.setdefault(names, []).append(tuple(map(int, _NUMBERS.findall(layer))))
    return _shortened(", ".join(_joined(names, numbers) for names, numbers in groups.items()))


def format_operators(operators: Sequence[str]) -> str:
    """Return a part's operators: the first four, and how many there are."""
    text = ", ".join(operators[:4])
    return text if len(operators) <= 4 else f"{text}, … ({len(operators)})"


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

    inputs, outputs = _shortened(shown(part.inputs)), _shortened(shown(part.outputs))
    return f"{inputs} → {outputs}{shared}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


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
