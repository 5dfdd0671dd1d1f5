"""A page of schedules: one self-contained HTML file that opens from disk and needs no network.

The page shows several schedules of one placement on one time axis, with zoom, hover, dependencies, memory at
a cursor and tables. Blocks travel as compressed 32-bit integers, about three bytes per block, so that a
schedule of 100 000 blocks stays well under a megabyte. The drawing code is in `page.js`; this module only
gathers the data.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from importlib import resources

import msgspec
import numpy as np

from tessel.comparison import Comparison, ComparisonRow
from tessel.errors import ScheduleError
from tessel.picture.colors import CHUNK_COLOR, block_styles, chunk_whites, color_by_backend
from tessel.schedule import Schedule

_MAX_LISTED = 8
"""Devices whose peaks are listed one by one in a table."""


_MAX_STEPS = 2**31 - 1
"""Last step that a page can show: it counts in 32-bit integers."""


class PagePart(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-graph, who runs it, and what it cost.

    Attributes:
        operators: names in order.
        backend: who runs it.
        latency_us: of one run.
        source: where the latency comes from.
        occurrences: how often all blocks together run it in a micro-batch.
        runner_up: the next best backend and its latency in microseconds, where another could run it.
        blocks: names of the blocks that run it.
        layers: whose operators it holds, as text.
        tensors: what it reads and makes, as text.
    """

    operators: tuple[str, ...]
    backend: str
    latency_us: float
    source: str
    occurrences: int
    runner_up: tuple[str, float] | None = None
    blocks: tuple[str, ...] = ()
    layers: str = ""
    tensors: str = ""


class PageTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table under the timeline; cells are text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def page_document(
    comparison: Comparison,
    *,
    title: str,
    step_ms: float | None = None,
    static_bytes: Sequence[int] | None = None,
    parts: Sequence[PagePart] = (),
    tables: Sequence[PageTable] = (),
) -> bytes:
    """Return the page as HTML.

    Args:
        comparison: schedules of one placement; the searched one comes first.
        title: heading of the page.
        step_ms: milliseconds of a step, or None to count steps.
        static_bytes: bytes each device holds throughout, where memory counts bytes.
        parts: sub-graphs and their backends; the page shows those of a chosen block.
        tables: further tables, below the comparison.
    """
    schedules = dict(comparison.schedules)
    placement = schedules["searched"].placement
    styles = block_styles(placement)
    names = {block.name: index for index, block in enumerate(placement.blocks)}
    rows = sorted(comparison.rows, key=lambda row: row.schedule != "searched")
    document = {
        "title": title,
        "step_ms": step_ms,
        "devices": placement.devices,
        "memory_in_bytes": static_bytes is not None,
        "static_memory": static_bytes,
        "limit": schedules["searched"].memory,
        "blocks": placement.blocks,
        "edges": [[names[edge.source], names[edge.target], edge.lag] for edge in placement.edges],
        "styles": [styles[block.name]._asdict() for block in placement.blocks],
        "chunks": chunk_whites(styles.values()),
        "chunk_color": CHUNK_COLOR,
        "schedules": [_schedule_data(row, schedules[row.schedule], names) for row in rows],
        "parts": [_part_data(part, names) for part in parts],
        "backend_colors": color_by_backend(part.backend for part in parts),
        "tables": [_comparison_table(comparison.rows, step_ms), *tables],
    }
    # "</" would end the script element that holds the data, and "<!--<script>" hide its end. Within a text,
    # which is the only place for it, JSON may write "<" by its number.
    data = msgspec.json.encode(document).decode().replace("<", "\\u003c")
    page = _resource("page.html")
    for mark, text in (("STYLE", _resource("page.css")), ("SCRIPT", _resource("page.js")), ("DATA", data)):
        page = page.replace(f"/*{mark}*/", text)
    return page.encode()


def _resource(name: str) -> str:
    return (resources.files("tessel.picture") / name).read_text()


def _part_data(part: PagePart, names: dict[str, int]) -> dict[str, object]:
    return {**msgspec.structs.asdict(part), "blocks": [names[name] for name in part.blocks if name in names]}


def _schedule_data(row: ComparisonRow, schedule: Schedule, names: dict[str, int]) -> dict[str, object]:
    own = {block.name: index for index, block in enumerate(schedule.placement.blocks)}
    unknown = own.keys() - names.keys()
    assert not unknown, f"schedules of one comparison share their placement; {unknown} are not in it"
    return {
        "name": row.schedule,
        "title": row.title,
        "makespan": schedule.makespan,
        "lower_bound": schedule.lower_bound,
        "optimal": schedule.optimal,
        "bubble_ratio": schedule.bubble_ratio,
        "peak_memory": schedule.peak_memory,
        "micro_batches": schedule.micro_batches,
        "fits": row.fits,
        "repetend": schedule.repetend,
        "packed": _packed(schedule, names),
    }


def _packed(schedule: Schedule, names: dict[str, int]) -> str:
    """Return blocks, micro-batches and differences of starts: base64 of deflated little-endian int32."""
    if schedule.makespan > _MAX_STEPS:
        raise ScheduleError(
            f"the schedule has {schedule.makespan} steps, and a page shows at most {_MAX_STEPS}; draw a "
            "picture, or count in longer steps"
        )
    starts = np.array([start.start for start in schedule.starts], dtype=np.int64)
    columns = [
        np.array([names[start.block] for start in schedule.starts], dtype="<i4"),
        np.array([start.micro_batch for start in schedule.starts], dtype="<i4"),
        np.diff(starts, prepend=0).astype("<i4"),
    ]
    return base64.b64encode(zlib.compress(np.concatenate(columns).tobytes(), 9)).decode()


def _comparison_table(rows: Sequence[ComparisonRow], step_ms: float | None) -> PageTable:
    return PageTable(
        title="Schedules",
        columns=(
            "schedule",
            "makespan (steps)" if step_ms is None else "makespan (ms)",
            "bubble ratio",
            "peak memory",
            "fits",
            "ratio to 1F1B",
        ),
        rows=tuple(
            (
                row.title,
                row.length,
                f"{row.bubble_ratio:.1%}",
                _memory(row),
                "yes" if row.fits else "no",
                "-" if row.ratio_to_1f1b is None else f"{row.ratio_to_1f1b:.3f}",
            )
            for row in rows
        ),
    )


def _memory(row: ComparisonRow) -> str:
    """Return what each device holds at most, or the range where that would be too wide to read."""
    if row.peak_memory_bytes is None:
        held = [f"{units}" for units in row.peak_memory]
        order = list(row.peak_memory)
    else:
        held = _sizes(row.peak_memory_bytes)
        order = list(row.peak_memory_bytes)
    if len(held) <= _MAX_LISTED:
        return ", ".join(held)
    return f"{held[order.index(min(order))]} to {held[order.index(max(order))]}"


def _sizes(sizes: Sequence[int]) -> list[str]:
    """Return sizes in the largest unit of which the least is at least one."""
    power = max(0, min(3, (max(min(sizes), 1).bit_length() - 1) // 10))
    unit = ("B", "KiB", "MiB", "GiB")[power]
    return [f"{size / 1024**power:.0f} {unit}" for size in sizes]
