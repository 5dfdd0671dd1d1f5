"""Pictures of schedules: bars first, then drawing."""

from tessel.picture.bars import Bar, MemoryCurve, Phase, bars_of, idle_steps, memory_curves
from tessel.picture.draw import draw_memory, draw_schedule, save_figure, schedule_figure

__all__ = [
    "Bar",
    "MemoryCurve",
    "Phase",
    "bars_of",
    "draw_memory",
    "draw_schedule",
    "idle_steps",
    "memory_curves",
    "save_figure",
    "schedule_figure",
]
