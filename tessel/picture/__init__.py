"""Pictures of schedules: bars first, then drawing, a page, a trace and text.

Names are imported when they are first asked for: text, a trace and a page do not need matplotlib, and only a
frontier needs the search.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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

_MODULE_BY_NAME = {
    "SCREEN_INCHES": "tessel.picture.sizes",
    "ArtistArgs": "tessel.picture.draw",
    "Bar": "tessel.picture.bars",
    "DescribedFigure": "tessel.picture.captions",
    "GraphNode": "tessel.picture.partition_graph",
    "GraphPart": "tessel.picture.page",
    "MeasuredSlice": "tessel.picture.trace",
    "MemoryCurve": "tessel.picture.bars",
    "PageModel": "tessel.picture.page",
    "PagePart": "tessel.picture.page",
    "PageTable": "tessel.picture.page",
    "PageVariant": "tessel.picture.page",
    "Phase": "tessel.picture.bars",
    "PictureStyle": "tessel.picture.style",
    "bars_of": "tessel.picture.bars",
    "comparison_figure": "tessel.picture.figures",
    "critical_bars": "tessel.picture.bars",
    "draw_frontier": "tessel.picture.charts.frontier",
    "draw_gains": "tessel.picture.charts.gains",
    "draw_memory": "tessel.picture.charts.memory",
    "draw_partition": "tessel.picture.partition_graph",
    "draw_schedule": "tessel.picture.draw",
    "frontier_figure": "tessel.picture.charts.frontier",
    "gains_figure": "tessel.picture.figures",
    "idle_steps": "tessel.picture.bars",
    "load_style": "tessel.picture.style",
    "memory_curves": "tessel.picture.bars",
    "page_document": "tessel.picture.page",
    "partition_figure": "tessel.picture.partition_graph",
    "save_figure": "tessel.picture.captions",
    "schedule_figure": "tessel.picture.figures",
    "text_grid": "tessel.picture.text",
    "trace_document": "tessel.picture.trace",
}

if not TYPE_CHECKING:  # or a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in _MODULE_BY_NAME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)
