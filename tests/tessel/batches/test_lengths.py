"""Times between measured lengths: the law they are taken from, and where nothing is said."""

from __future__ import annotations

import pytest

from tessel.batches import MicroBatchClass, class_of_length
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
