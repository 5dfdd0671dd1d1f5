"""Build a whole schedule one task at a time, in time linear in its tasks, and never run into a dead end."""

from tessel.search.makespan.list_scheduling.dispatching import list_schedule
from tessel.search.makespan.list_scheduling.listing import (
    NEVER,
    Dispatch,
    Listing,
    by_preference,
    by_priority,
)
from tessel.search.makespan.list_scheduling.task_placement import place_task, ready_time

__all__ = [
    "NEVER",
    "Dispatch",
    "Listing",
    "by_preference",
    "by_priority",
    "list_schedule",
    "place_task",
    "ready_time",
]
