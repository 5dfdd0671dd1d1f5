"""Options of what measures: numbers out of range are refused before anything opens."""

from __future__ import annotations

import pytest

from scripts.options.tuning_options import (
    MeasuringOptions,
    TuningOptions,
    open_session,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (MeasuringOptions(jobs=0), "jobs is 0; it is at least 1"),
        (MeasuringOptions(trials=-1), "trials is -1"),
        (TuningOptions(threads=0), "threads is 0"),
        (TuningOptions(regret=1.0), "regret is a share"),
        (TuningOptions(budget=-1), "budget a number"),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_opens(
    options: MeasuringOptions, message: str
) -> None:
    with pytest.raises(ValueError, match=message), open_session(options):
        pass
