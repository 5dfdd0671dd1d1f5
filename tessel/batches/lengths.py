"""Classes of lengths that were not measured, between lengths that were.

A block's time is taken as a·L + b·L²: attention grows with the square of the length, all else with the
length. The two measured lengths next to the one asked for fix a and b, so that measured lengths keep what was
measured; where one of the two would be negative, or both lengths are the same, times grow evenly in between.
Memory and lags grow evenly. Nothing is said beyond the measured lengths: there memory and kernels may change.
Checked in tests/tessel/batches/test_lengths.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tessel.batches.batch import MicroBatchClass
from tessel.errors import ScheduleError


def class_of_length(measured: Mapping[int, MicroBatchClass], length: int) -> MicroBatchClass:
    """Return what micro-batches of a length take, named after it.

    Args:
        measured: classes by length, which is at least 1.
        length: tokens, within the measured ones.

    Raises:
        ScheduleError: it is shorter or longer than all measured ones, or fewer than two were measured.
    """
    if length in measured:
        return _named(measured[length], length)
    known = sorted(measured)
    around = next(((low, high) for low, high in pairwise(known) if low < length < high), None)
    if around is None:
        found = ", ".join(map(str, known)) or "none"
        raise ScheduleError(
            f"length {length} lies beyond the measured ones ({found}), where nothing can be said; measure a "
            "shorter and a longer one"
        )
    low, high = around
    short, long = measured[low], measured[high]
    share = (length - low) / (high - low)
    return MicroBatchClass(
        name=str(length),
        spans=tuple(
            round(_time(low, before, high, after, length))
            for before, after in zip(short.spans, long.spans, strict=True)
        ),
        memory=_evenly(short.memory, long.memory, share),
        lags=_evenly(short.lags, long.lags, share),
    )


def _named(own: MicroBatchClass, length: int) -> MicroBatchClass:
    return MicroBatchClass(name=str(length), spans=own.spans, memory=own.memory, lags=own.lags)


def _time(low: int, before: int, high: int, after: int, length: int) -> float:
    """Return a·L + b·L² through both, or an even growth where a or b would be negative."""
    square = (after / high - before / low) / (high - low)
    linear = before / low - square * low
    if square < 0 or linear < 0:
        return before + (after - before) * (length - low) / (high - low)
    return linear * length + square * length**2


def _evenly(low: tuple[int, ...], high: tuple[int, ...], share: float) -> tuple[int, ...]:
    return tuple(round(before + (after - before) * share) for before, after in zip(low, high, strict=True))
