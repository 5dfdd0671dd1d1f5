"""Pictures of schedules: bars first, then drawing, a page, a trace and text."""

from tessel.picture.bars import Bar, MemoryCurve, Phase, bars_of, critical_bars, idle_steps, memory_curves
from tessel.picture.captions import DescribedFigure, save_figure
from tessel.picture.charts.frontier import draw_frontier, frontier_figure
from tessel.picture.charts.gains import draw_gains
from tessel.picture.charts.memory import draw_memory
from tessel.picture.draw import ArtistArgs, draw_schedule
from tessel.picture.figures import comparison_figure, gains_figure, schedule_figure
from tessel.picture.page import GraphPart, PageModel, PagePart, PageTable, PageVariant, page_document
from tessel.picture.partition_graph import GraphNode, draw_partition, partition_figure
from tessel.picture.style import PictureStyle, load_style
from tessel.picture.text import text_grid
from tessel.picture.trace import MeasuredSlice, trace_document

__all__ = [
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
