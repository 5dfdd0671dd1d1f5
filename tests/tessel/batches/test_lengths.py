"""Times between measured lengths: the law they are taken from, and where nothing is said."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from tessel.batches import MicroBatchClass, class_of_length
from tessel.batches.lengths import interpolated
from tessel.errors import ScheduleError


def measured(*lengths: int, linear: float = 3.0, square: float = 0.01) -> dict[int, MicroBatchClass]:
    return {
        length: MicroBatchClass(
            name=str(length),
            spans=(round(linear * length + square * length**2), 5 * length),
            memory=(length, -length),
            lags=(length // 10,),
        )
        for length in lengths
    }


def test_a_linear_and_a_square_part_are_found_again() -> None:
    found = class_of_length(measured(1000, 4000), 2000)
    assert found.name == "2000"
    assert found.spans == (3 * 2000 + 40_000, 10_000)
    assert found.memory == (2000, -2000)
    assert found.lags == (200,)


def test_measured_lengths_keep_what_was_measured() -> None:
    known = measured(1000, 2000, 4000)
    assert class_of_length(known, 2000) == known[2000]


def test_times_that_no_square_explains_grow_evenly() -> None:
    flat = {
        length: MicroBatchClass(name=str(length), spans=(span,), memory=(0,))
        for length, span in ((100, 50), (300, 70))
    }
    assert class_of_length(flat, 200).spans == (60,)


@pytest.mark.parametrize("length", [999, 4001])
def test_beyond_the_measured_lengths_nothing_is_said(length: int) -> None:
    with pytest.raises(ScheduleError, match=rf"{length} lies beyond the measured ones \(1000, 4000\)"):
        class_of_length(measured(1000, 4000), length)


def test_of_three_lengths_a_constant_part_is_found_too() -> None:
    law = {length: 40.0 + 0.3 * length + 2e-4 * length**2 for length in (512, 2048, 8192)}
    for length in (600, 1024, 4096, 8000):
        assert interpolated(law, length) == pytest.approx(40.0 + 0.3 * length + 2e-4 * length**2)


@given(st.lists(st.floats(0.1, 1e6), min_size=3, max_size=5), st.integers(0, 6400))
def test_no_measured_length_changes_and_no_part_is_negative(times: list[float], beyond: int) -> None:
    measured = dict(zip((100, 400, 900, 1600, 6500), times, strict=False))
    for length, time in measured.items():
        assert interpolated(measured, length) == pytest.approx(time)
    length = min(100 + beyond, max(measured))
    lengths, values = np.array(list(measured)) / max(measured), np.array(times)
    terms = np.stack([lengths**0, lengths, lengths**2], axis=1) / values[:, None]
    fit, _ = scipy.optimize.nnls(terms, np.ones(len(times)))
    ratio = np.interp(length, list(measured), 1 / (terms @ fit))
    curve = fit @ (length / max(measured)) ** np.arange(3)
    assert interpolated(measured, length) == pytest.approx(float(curve * ratio), rel=1e-3)
