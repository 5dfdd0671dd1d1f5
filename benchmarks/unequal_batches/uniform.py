"""Processor milliseconds of equal micro-batches, of the `tessel` on the path, as JSON: fastest of many runs.

`overhead --against` runs it in two checkouts in turn. Parts are what builds, times, orders and validates a
schedule of 1024 tasks; searches are whole ones, each to the same work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from tessel.handwritten import HANDWRITTEN
from tessel.orders import device_orders, earliest_starts
from tessel.schedule import Schedule
from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.shapes import SHAPES, ShapeFunction, vshape
from tessel.validation import check_schedule

MICRO_BATCHES = 128
SEARCHED = 12

TIMED_S = 0.3
"""What each is run for."""


def uniform_parts() -> dict[str, Callable[[], object]]:
    placement = vshape(4, forward_span=100, backward_span=200)
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    orders = rule.orders(placement, micro_batches=MICRO_BATCHES)
    starts = earliest_starts(placement, orders)
    schedule = Schedule.of(placement, starts, micro_batches=MICRO_BATCHES)
    return {
        "earliest starts": lambda: earliest_starts(placement, orders),
        "Schedule.of": lambda: Schedule.of(placement, starts, micro_batches=MICRO_BATCHES),
        "device orders": lambda: device_orders(placement, starts),
        "validation": lambda: check_schedule(schedule),
    }


def uniform_searches() -> dict[str, Callable[[], object]]:
    def search(shape: ShapeFunction) -> Callable[[], object]:
        return lambda: find_schedule(shape(4), micro_batches=SEARCHED, budget=SearchBudget(0.05))

    return {f"search, {name}": search(shape) for name, shape in SHAPES.items()}


def fastest_ms(run: Callable[[], object]) -> float:
    run()  # compiled, and caches warm
    ends = time.process_time() + TIMED_S
    took: list[float] = []
    while time.process_time() < ends or len(took) < 3:
        began = time.process_time()
        run()
        took.append(time.process_time() - began)
    return min(took) * 1e3


if __name__ == "__main__":
    print(
        json.dumps({name: fastest_ms(run) for name, run in {**uniform_parts(), **uniform_searches()}.items()})
    )
