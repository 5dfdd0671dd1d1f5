"""Captions of a picture: the title and the description that a screen reader reads of it.

Sentences of figures only, in the order in which the picture is read. Checked in
tests/tessel/picture/test_captions.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessel.comparison import Comparison, ComparisonRow
from tessel.picture.bars import idle_steps
from tessel.schedule import Schedule

_MAX_LISTED = 8
"""Values that are listed one by one; of more, the range is given."""


def schedule_title(schedule: Schedule) -> str:
    """Return what a schedule is: its size and how long it takes."""
    proven = ", proven optimal" if schedule.optimal else ""
    return (
        f"{_count(schedule.micro_batches, 'micro-batch')} on "
        f"{_count(schedule.placement.devices, 'device')}: {schedule.makespan} steps{proven}"
    )


def describe_schedule(schedule: Schedule, *, step_ms: float | None = None) -> str:
    """Return what the picture of a schedule shows.

    Args:
        step_ms: milliseconds of a step, where it has a length; memory is then taken as bytes.
    """
    idle = [round(100 * steps / max(schedule.makespan, 1)) for steps in idle_steps(schedule)]
    sentences = [
        f"A timeline with a row for each of {_count(schedule.placement.devices, 'device')}; "
        f"{_count(schedule.micro_batches, 'micro-batch')} take {_time(schedule.makespan, step_ms)}",
        f"Share of time that each device idles: {_values(idle, '%')}",
    ]
    if schedule.repetend is not None:
        first, last = (_time(step, step_ms) for step in (schedule.repetend.start, schedule.repetend.end))
        sentences.append(f"The repeating part lasts from {first} to {last}")
    if any(schedule.peak_memory):
        unit, size = ("units", 1) if step_ms is None else ("MiB", 2**20)
        peaks = [round(peak / size) for peak in schedule.peak_memory]
        sentences.append(f"Below, the memory of each device; its peaks are {_values(peaks, f' {unit}')}")
    return ". ".join(sentences) + "."


def describe_comparison(comparison: Comparison) -> str:
    """Return what the picture of several schedules shows, a sentence a schedule, fastest first."""
    shown = f"{_count(len(comparison.rows), 'timeline')} on one time axis, fastest first"
    return ". ".join([shown, *map(headline, comparison.rows)]) + "."


def describe_gains(comparison: Comparison) -> str:
    """Return what the picture of the gains over 1F1B shows."""
    rows = [row for row in comparison.rows if row.ratio_to_1f1b is not None]
    values = [f"{row.title} {gain(row):+.1%}" for row in rows]
    return f"Bars of how much longer 1F1B takes than each schedule: {', '.join(values)}."


def headline(row: ComparisonRow) -> str:
    """Return a schedule's figures in one line."""
    parts = [f"{row.title}: {row.length} {row.unit}", f"{row.bubble_ratio:.1%} bubbles"]
    if row.ratio_to_1f1b is not None:
        parts.append(f"{row.ratio_to_1f1b:.3f} of 1F1B")
    if not row.fits:
        parts.append("breaks the memory limit")
    return ", ".join(parts)


def gain(row: ComparisonRow) -> float:
    """Return how much longer 1F1B takes than this schedule, as a share (0.1: 1.1 times as long).

    Raises:
        ValueError: 1F1B was not compared.
    """
    if row.ratio_to_1f1b is None:
        raise ValueError(f"{row.schedule} was not compared with 1F1B; compare it first")
    return 1 / row.ratio_to_1f1b - 1


def _values(values: Sequence[int], unit: str) -> str:
    if len(set(values)) == 1:
        return f"{values[0]}{unit}" + (" on each" if len(values) > 1 else "")
    if len(values) <= _MAX_LISTED:
        return f"{', '.join(map(str, values))}{unit}"
    return f"{min(values)} to {max(values)}{unit}"


def _time(steps: int, step_ms: float | None) -> str:
    return f"{steps} steps" if step_ms is None else f"{steps * step_ms:.5g} ms"


def _count(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"
