"""A page of schedules: one self-contained HTML file that opens from disk and needs no network.

The page shows one or two schedules of one placement on one time axis, with zoom, search, dependencies, memory
under its limit, sums over an area, and tables; schedules searched beforehand are chosen by memory limit and
number of micro-batches. Blocks travel as compressed 32-bit integers, about three bytes per block, so that a
schedule of 100 000 blocks stays well under a megabyte. What the page does is in the scripts beside this
module, which only gathers the data. Checked in tests/tessel/picture/page/test_page.py.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from html import escape

import msgspec
import numpy as np

from tessel.comparison import Comparison, ComparisonRow
from tessel.errors import ScheduleError
from tessel.picture.bars import names_of
from tessel.picture.colors import CHUNK_COLOR, block_styles, chunk_whites, color_by_backend
from tessel.picture.page.assembly import assembled
from tessel.schedule import Schedule

_MAX_LISTED = 8
"""Devices whose peaks are listed one by one in a table."""


_SCRIPTS = (
    "data.js",
    "state.js",
    "text.js",
    "colors.js",
    "schedules.js",
    "raster.js",
    "timeline.js",
    "memory.js",
    "facts.js",
    "search.js",
    "explore.js",
    "parts.js",
    "main.js",
)
"""The page's one script, in order."""

_MAX_STEPS = 2**31 - 1
"""Last step that a page can show: it counts in 32-bit integers."""


class PagePart(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-graph, who runs it, and what it cost.

    Attributes:
        operators: names in order.
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


class GraphPart(msgspec.Struct, frozen=True, kw_only=True):
    """One occurrence of a sub-graph in a function's graph.

    Attributes:
        part: position of the sub-graph among the page's parts.
        function: the function that it belongs to, such as `stage0.forward`.
        layers: of each of its operators; empty text where the model names none.
        inputs: positions of the occurrences that it reads, in the whole sequence; all before it.
    """

    part: int
    function: str
    layers: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()


class PageModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a page knows of the model behind the blocks.

    Attributes:
        parts: sub-graphs and their backends; the page shows those of a chosen block.
        graph: how they hang together, inputs first.
        block_of_function: name of the block that runs a function, for those that one block runs.
        layers: of each block by its name, where the model names them.
    """

    parts: tuple[PagePart, ...] = ()
    graph: tuple[GraphPart, ...] = ()
    block_of_function: Mapping[str, str] = {}
    layers: Mapping[str, tuple[str, ...]] = {}


class PageVariant(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that was searched beforehand, to be chosen by limit and number of micro-batches.

    Attributes:
        memory: limit of a device under which it was found, in units or bytes.
        schedule: on the placement of the page's other schedules.
        lower_bound: no schedule under this limit is shorter.
        optimal: whether it is proven optimal under this limit.
    """

    memory: int
    schedule: Schedule
    lower_bound: int
    optimal: bool


class PageField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a form, and what stands in it."""

    name: str
    label: str
    value: str


class PageForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a page that is served asks for, and what was said of the last answer."""

    fields: tuple[PageField, ...]
    said: str = ""


def page_document(
    comparison: Comparison,
    *,
    title: str,
    step_ms: float | None = None,
    static_bytes: Sequence[int] | None = None,
    model: PageModel | None = None,
    tables: Sequence[PageTable] = (),
    variants: Sequence[PageVariant] = (),
    device_names: Sequence[str] | None = None,
) -> bytes:
    """Return the page as HTML.

    Args:
        comparison: schedules of one placement; the searched one comes first.
        step_ms: milliseconds of a step, or None to count steps.
        static_bytes: bytes each device holds throughout, where memory counts bytes.
        model: sub-graphs, their backends and layers, where they are known.
        tables: further tables, below the comparison.
        variants: schedules of the same placement that were searched beforehand.
        device_names: of each row, what its device is called; the numbers from 0 on if None.
    """
    model = PageModel() if model is None else model
    schedules = dict(comparison.schedules)
    placement = schedules["searched"].placement
    styles = block_styles(placement)
    names = {block.name: index for index, block in enumerate(placement.blocks)}
    rows = sorted(comparison.rows, key=lambda row: row.schedule != "searched")
    document = {
        "title": title,
        "step_ms": step_ms,
        "devices": placement.devices,
        "device_names": names_of(schedules["searched"], device_names),
        "memory_in_bytes": static_bytes is not None,
        "static_memory": static_bytes,
        "shared": any(len(block.devices) > 1 for block in placement.blocks),
        "blocks": placement.blocks,
        "edges": [[names[edge.source], names[edge.target], edge.lag] for edge in placement.edges],
        "styles": [styles[block.name]._asdict() for block in placement.blocks],
        "chunks": chunk_whites(styles.values()),
        "chunk_color": CHUNK_COLOR,
        "layers": [model.layers.get(block.name, ()) for block in placement.blocks],
        "schedules": [
            *(_schedule_data(row, schedules[row.schedule], names) for row in rows),
            *(_variant_schedule(variant, names) for variant in variants),
        ],
        "variants": [_variant_data(variant, len(rows) + number) for number, variant in enumerate(variants)],
        "parts": [_part_data(part, names) for part in model.parts],
        "backend_colors": color_by_backend(part.backend for part in model.parts),
        **_graph_data(model, names),
        "tables": [_comparison_table(comparison.rows, step_ms), *tables],
    }
    return assembled("schedules.html", _SCRIPTS, document, title=title)


def with_form(page: bytes, form: PageForm) -> bytes:
    """Return a page of `page_document` with a form, whose values are sent to where the page came from."""
    fields = "".join(
        f'<label>{escape(each.label)} <input name="{escape(each.name)}" value="{escape(each.value)}" '
        'autocomplete="off" spellcheck="false"></label>'
        for each in form.fields
    )
    said = f'<p role="status">{escape(form.said)}</p>'
    html = f'<form id="live" aria-label="Search again">{fields}<button>Search</button>{said}</form>'
    return page.replace(b"<!--FORM-->", html.encode(), 1)


def _part_data(part: PagePart, names: dict[str, int]) -> dict[str, object]:
    return {**msgspec.structs.asdict(part), "blocks": [names[name] for name in part.blocks if name in names]}


def _graph_data(model: PageModel, names: dict[str, int]) -> dict[str, object]:
    """Return the occurrences, and the functions that they belong to in the order in which they come."""
    functions = list(dict.fromkeys(node.function for node in model.graph))
    return {
        "graph": [
            {
                "part": node.part,
                "function": functions.index(node.function),
                "layers": node.layers,
                "inputs": node.inputs,
            }
            for node in model.graph
        ],
        "functions": [
            {"name": name, "block": names.get(model.block_of_function.get(name, ""), -1)}
            for name in functions
        ],
    }


def _variant_schedule(variant: PageVariant, names: dict[str, int]) -> dict[str, object]:
    """Return the schedule as that of a row without a tab of its own."""
    schedule = variant.schedule
    return {
        **_drawn_data(schedule, names),
        "name": None,
        "title": f"limit {variant.memory}, {schedule.micro_batches} micro-batches",
        "lower_bound": variant.lower_bound,
        "optimal": variant.optimal,
        "limit": (variant.memory,) * schedule.placement.devices,
        "fits": max(schedule.peak_memory) <= variant.memory,
    }


def _variant_data(variant: PageVariant, number: int) -> dict[str, object]:
    return {
        "memory": variant.memory,
        "micro_batches": variant.schedule.micro_batches,
        "makespan": variant.schedule.makespan,
        "lower_bound": variant.lower_bound,
        "optimal": variant.optimal,
        "schedule": number,
    }


def _schedule_data(row: ComparisonRow, schedule: Schedule, names: dict[str, int]) -> dict[str, object]:
    return {
        **_drawn_data(schedule, names),
        "name": row.schedule,
        "title": row.title,
        "lower_bound": schedule.lower_bound,
        "optimal": schedule.optimal,
        "limit": schedule.memory,
        "fits": row.fits,
    }


def _drawn_data(schedule: Schedule, names: dict[str, int]) -> dict[str, object]:
    own = {block.name: index for index, block in enumerate(schedule.placement.blocks)}
    unknown = own.keys() - names.keys()
    assert not unknown, f"schedules of one page share their placement; {unknown} are not in it"
    return {
        "makespan": schedule.makespan,
        "bubble_ratio": schedule.bubble_ratio,
        "peak_memory": schedule.peak_memory,
        "micro_batches": schedule.micro_batches,
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
    least, most = held[order.index(min(order))], held[order.index(max(order))]
    return least if least == most else f"{least} to {most}"


def _sizes(sizes: Sequence[int]) -> list[str]:
    """Return sizes in the largest unit of which the least is at least one."""
    power = max(0, min(3, (max(min(sizes), 1).bit_length() - 1) // 10))
    unit = ("B", "KiB", "MiB", "GiB")[power]
    return [f"{size / 1024**power:.0f} {unit}" for size in sizes]
