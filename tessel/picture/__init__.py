"""Pictures of schedules: bars first, then drawing, a page, a trace and text.

Names are imported when they are first asked for: text, a trace and a page do not need matplotlib, and only a
frontier needs the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from records.lazy_names import names_on_demand

if TYPE_CHECKING:
    from tessel.picture.bars import Bar, MemoryCurve, Phase, bars_of, critical_bars, idle_steps, memory_curves
    from tessel.picture.captions import DescribedFigure, save_figure
    from tessel.picture.charts.frontier import draw_frontier, frontier_figure
    from tessel.picture.charts.gains import draw_gains
    from tessel.picture.charts.memory import draw_memory
    from tessel.picture.draw import ArtistArgs, draw_schedule
    from tessel.picture.figures import comparison_figure, gains_figure, schedule_figure
    from tessel.picture.page import GraphPart, PageModel, PagePart, PageTable, PageVariant, page_document
    from tessel.picture.partition_graph import GraphNode, draw_partition, partition_figure
    from tessel.picture.sizes import SCREEN_INCHES
    from tessel.picture.style import PictureStyle, load_style
    from tessel.picture.text import text_grid
    from tessel.picture.trace import MeasuredSlice, trace_document

__all__ = [
    "SCREEN_INCHES",
    "ArtistArgs",
    "Bar",
    "DescribedFigure",
    "GraphNode",
    "GraphPart",
    "MeasuredSlice",
    "MemoryCurve",
    "PageModel",
    "PagePart",
    "PageTable",
    "PageVariant",
    "Phase",
    "PictureStyle",
    "bars_of",
    "comparison_figure",
    "critical_bars",
    "draw_frontier",
    "draw_gains",
    "draw_memory",
    "draw_partition",
    "draw_schedule",
    "frontier_figure",
    "gains_figure",
    "idle_steps",
    "load_style",
    "memory_curves",
    "page_document",
    "partition_figure",
    "save_figure",
    "schedule_figure",
    "text_grid",
    "trace_document",
]

if not TYPE_CHECKING:  # or a type checker would take any misspelt name for one of these
    __getattr__ = names_on_demand(
        __name__,
        {
            "tessel.picture.bars": "Bar MemoryCurve Phase bars_of critical_bars idle_steps memory_curves",
            "tessel.picture.captions": "DescribedFigure save_figure",
            "tessel.picture.charts.frontier": "draw_frontier frontier_figure",
            "tessel.picture.charts.gains": "draw_gains",
            "tessel.picture.charts.memory": "draw_memory",
            "tessel.picture.draw": "ArtistArgs draw_schedule",
            "tessel.picture.figures": "comparison_figure gains_figure schedule_figure",
            "tessel.picture.page": "GraphPart PageModel PagePart PageTable PageVariant page_document",
            "tessel.picture.partition_graph": "GraphNode draw_partition partition_figure",
            "tessel.picture.sizes": "SCREEN_INCHES",
            "tessel.picture.style": "PictureStyle load_style",
            "tessel.picture.text": "text_grid",
            "tessel.picture.trace": "MeasuredSlice trace_document",
        },
    )
