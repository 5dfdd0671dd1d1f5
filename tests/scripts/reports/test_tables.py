"""Tables give the ratios of a race with their intervals, whatever latencies apart would say."""

from __future__ import annotations

import msgspec

from scripts.reports.tables import end_to_end_rows
from tests.samples.tuned_model import figure, tuned_model
from tuner.plan import PairedRatio


def test_ratios_are_those_of_the_race_with_their_intervals() -> None:
    found = msgspec.structs.replace(
        tuned_model([(10.0, 20.0, 10.0, 10.0)]),
        end_to_end={"mix": figure(10.0), "tvm": figure(9.0), "blas": figure(12.0), "torch": figure(300.0)},
        ratio_to_mix={
            "tvm": PairedRatio(ratio=1.04, low=1.02, high=1.061, num_rounds=30),
            "blas": PairedRatio(ratio=1.2, low=0.0, high=None, num_rounds=3),
        },
    )
    assert end_to_end_rows(found) == [
        ["mix", "10.0 us (given)", "1.00", ""],
        ["tvm", "9.0 us (given)", "1.04", "1.02 … 1.06"],
        ["blas", "12.0 us (given)", "1.20", "0.00 … ∞"],
        ["torch", "300.0 us (given)", "30.00", ""],
    ]
