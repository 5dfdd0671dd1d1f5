"""Classes of lengths that were not measured, between lengths that were.

A block's time is taken as a + b·L + c·L², none of them negative: what does not depend on the length, what
grows with it, and attention, which grows with its square. Of two measured lengths a is 0; of more, the three
are fitted by least squares of relative errors. Measured lengths keep what was measured: what they differ from
the fit, as a ratio, is carried evenly in between. Where no such curve goes through two lengths, times grow
evenly. Memory and lags grow evenly. Nothing is said beyond the measured lengths: there memory and kernels may
change. Checked in tests/tessel/batches/test_lengths.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

from tessel.batches.batch import MicroBatchClass
from tessel.errors import ScheduleError

SAME = 1e-9
"""Relative error up to which a curve goes through two lengths."""


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
    low, high = around(measured, length)
    short, long = measured[low], measured[high]
    share = (length - low) / (high - low)
    every = zip(*(each.spans for each in measured.values()), strict=True)
    return MicroBatchClass(
        name=str(length),
        spans=tuple(round(interpolated(dict(zip(measured, spans, strict=True)), length)) for spans in every),
        memory=_evenly(short.memory, long.memory, share),
        lags=_evenly(short.lags, long.lags, share),
    )


def around(measured: Iterable[int], length: int) -> tuple[int, int]:
    """Return the two measured lengths next to a length.

    Raises:
        ScheduleError: it is shorter or longer than all measured ones.
    """
    known = sorted(measured)
    found = next(((low, high) for low, high in pairwise(known) if low <= length <= high), None)
    if found is None:
        listed = ", ".join(map(str, known)) or "none"
        raise ScheduleError(
            f"length {length} lies beyond the measured ones ({listed}), where nothing can be said; measure a "
            "shorter and a longer one"
        )
    return found


def interpolated(measured: Mapping[int, float], length: int) -> float:
    """Return the time at a length between measured ones, by the rule above.

    Args:
        measured: times by length.
        length: tokens, within the measured ones.
    """
    low, high = around(measured, length)
    share = (length - low) / (high - low)
    evenly = measured[low] + (measured[high] - measured[low]) * share
    if min(measured.values()) <= 0:
        return evenly
    lengths, times = np.array(list(measured), dtype=np.float64), np.array(list(measured.values()))
    powers = np.array([1, 2] if len(measured) == 2 else [0, 1, 2])
    terms = (lengths[:, None] / lengths.max()) ** powers
    fit, miss = _fit(terms / times[:, None])
    if len(measured) == 2 and miss > SAME:
        return evenly
    ratio = dict(zip(measured, times / (terms @ fit), strict=True))
    curve = float((length / lengths.max()) ** powers @ fit)
    return float(curve * (ratio[low] + (ratio[high] - ratio[low]) * share))


def _fit(terms: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], float]:
    """Return weights of columns, none negative, whose sum of terms is next to 1, and how far it is from 1.

    The best of them is the least-squares fit of the columns that it uses: all choices are tried.
    """
    ones, size = np.ones(len(terms)), terms.shape[1]
    best, least = np.zeros(size), float("inf")
    for number in range(size, 0, -1):
        for used in map(list, combinations(range(size), number)):
            own = np.linalg.lstsq(terms[:, used], ones, rcond=None)[0]
            miss = float(np.linalg.norm(terms[:, used] @ own - ones))
            if own.min() >= 0 and miss < least - SAME:
                best, least = np.zeros(size), miss
                best[used] = own
    return best, least


def _named(own: MicroBatchClass, length: int) -> MicroBatchClass:
    return MicroBatchClass(name=str(length), spans=own.spans, memory=own.memory, lags=own.lags)


def _evenly(low: tuple[int, ...], high: tuple[int, ...], share: float) -> tuple[int, ...]:
    return tuple(round(before + (after - before) * share) for before, after in zip(low, high, strict=True))
