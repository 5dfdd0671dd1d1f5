"""Complete schedules as data, and Tessel's own names for building them (`schedplan`, `composer`)."""

from tessel.schedule.schedule import Repetend, Schedule, Start, decode_schedule, peak_memory

__all__ = ["Repetend", "Schedule", "Start", "decode_schedule", "peak_memory"]
