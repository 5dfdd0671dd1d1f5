"""One period of a schedule that can be repeated: found in a schedule, and repeated as Tessel's runtime does.

Tessel unrolls a schedule by repeating the blocks that start between two steps, its repetend, for micro-batch
after micro-batch, and shifts what comes after by as much. Dependencies are not in its files, so the distance
between two repetitions is the most steps that any device is busy in the window, from its first block to its
last. A window of a schedule is thus usable if some device is busy all along it:

    f0 f1 f2 |b0 f3| b1 b2 b3                 period 2, one micro-batch
              ^    ^ repetend (3, 5)

Checked in tests/tessel/schedule/test_schedplan_edits.py by unrolling and by independent validation.

Source: Lin et al., Tessel (HPCA 2024), and what its code does when a schedule is unrolled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tessel.errors import ScheduleError
from tessel.schedule.schedule import Repetend, Schedule
from tessel.validation import find_violations


class Placed(NamedTuple):
    """A block of a micro-batch as it stands in a schedule."""

    gid: int
    mid: int
    step: int
    span: int
    devices: tuple[int, ...]


def find_window(schedule: Schedule) -> tuple[int, int] | None:
    """Return the first step of one period to repeat and the first after it, None where nothing repeats.

    The first period that Tessel's runtime unrolls without a loss to valid schedules (`is_exact`), if there is
    one; else the first.
    """
    repetend = schedule.repetend
    if repetend is None:
        return None
    placed = _placed_of(schedule)
    last = min(repetend.start + repetend.period - 1, repetend.end - repetend.period)
    begins = sorted({each.step for each in placed if repetend.start <= each.step <= last})
    for begin in begins or [repetend.start]:
        window = (begin, begin + repetend.period)
        if _is_exact(schedule, placed, window, repetend):
            return window
    begin = begins[0] if begins else repetend.start
    return begin, begin + repetend.period


def is_exact(schedule: Schedule, window: tuple[int, int]) -> bool:
    """Return whether Tessel's runtime unrolls the window to schedules that are a period longer each time."""
    placed, repetend = _placed_of(schedule), schedule.repetend
    return repetend is not None and _is_exact(schedule, placed, window, repetend)


def busiest_span(placed: Iterable[Placed], window: tuple[int, int]) -> int:
    """Return the most steps on any device from the first block in the window to the end of the last."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for each in _in_window(placed, window):
        for device in each.devices:
            first[device] = min(first.get(device, each.step), each.step)
            last[device] = max(last.get(device, 0), each.step + each.span)
    return max((last[device] - first[device] for device in first), default=0)


def unroll_window(
    placed: Sequence[Placed],
    window: tuple[int, int],
    micro_batches: int,
    edges: Iterable[tuple[int, int]] = (),
) -> tuple[Placed, ...]:
    """Return the schedule of so many micro-batches, made by repeating the window.

    Args:
        placed: the schedule.
        window: its first step and the first after it.
        micro_batches: as many as the schedule has, or more.
        edges: `gid` of a block and of one that waits for it.

    Raises:
        ScheduleError: fewer micro-batches than there are, a window that does not hold every block equally
            often, or a number that is no whole number of windows away.
    """
    present = 1 + max((each.mid for each in placed), default=-1)
    inside = _in_window(placed, window)
    counts = Counter(each.gid for each in inside)
    copies = max(counts.values(), default=1)
    times, rest = divmod(micro_batches - present, copies)
    if times < 0 or rest:
        raise ScheduleError(
            f"{micro_batches} micro-batches were asked for, the plan has {present} and repeats {copies} at a "
            f"time; ask for {present} plus a multiple of {copies}"
        )
    if times and set(counts.items()) != {(each.gid, copies) for each in placed}:
        raise ScheduleError(
            f"the repetend {window} does not hold every block {copies} times, so that repeating it gives no "
            f"schedule; compose the placement again, or keep to {present} micro-batches"
        )
    period = max(busiest_span(placed, window), _least_distance(inside, edges, copies))
    before = [each for each in placed if each.step < window[0]]
    after = [each for each in placed if each.step >= window[1]]
    repeated = [_moved(each, copies * time, period * time) for time in range(times + 1) for each in inside]
    return (*before, *repeated, *(_moved(each, copies * times, period * times) for each in after))


def _in_window(placed: Iterable[Placed], window: tuple[int, int]) -> list[Placed]:
    return [each for each in placed if window[0] <= each.step < window[1]]


def _least_distance(inside: Sequence[Placed], edges: Iterable[tuple[int, int]], copies: int) -> int:
    """The least distance between two windows at which what waits across them still can."""
    by_gid: dict[int, list[Placed]] = {}
    for each in inside:
        by_gid.setdefault(each.gid, []).append(each)
    least = 0
    for source, target in edges:
        for early in by_gid.get(source, ()):
            for late in by_gid.get(target, ()):
                windows, rest = divmod(early.mid - late.mid, copies)
                if windows > 0 and rest == 0:
                    least = max(least, -(-(early.step + early.span - late.step) // windows))
    return least


def _moved(each: Placed, micro_batches: int, steps: int) -> Placed:
    return each._replace(mid=each.mid + micro_batches, step=each.step + steps)


def _placed_of(schedule: Schedule) -> tuple[Placed, ...]:
    blocks = schedule.placement.blocks
    starts: Mapping[tuple[int, int], int] = schedule.start_by_block()
    return tuple(
        Placed(gid, mid, step, blocks[gid].span, blocks[gid].devices) for (gid, mid), step in starts.items()
    )


def _is_exact(
    schedule: Schedule, placed: Sequence[Placed], window: tuple[int, int], repetend: Repetend
) -> bool:
    """Whether one repetition more, and two, are valid schedules that are as much longer as they should be."""
    if busiest_span(placed, window) != repetend.period:
        return False
    for times in (1, 2):
        number = schedule.micro_batches + times * repetend.micro_batches
        try:
            longer = unroll_window(placed, window, number)
        except ScheduleError:
            return False
        starts = {(each.gid, each.mid): each.step for each in longer}
        unrolled = Schedule.of(schedule.placement, starts, micro_batches=number, memory=schedule.memory)
        if len(starts) != len(longer) or find_violations(unrolled):
            return False
    return True
