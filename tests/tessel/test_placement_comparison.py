"""Placements beside each other: ratios to 1F1B on the plain chain, the fastest first, reasons last."""

from __future__ import annotations

import pytest

from tessel.comparison import ComparisonRow
from tessel.placement_comparison import PlacementResult, compare_placements


def row(schedule: str, makespan: int, *, fits: bool = True) -> ComparisonRow:
    return ComparisonRow(
        schedule=schedule,
        makespan=makespan,
        makespan_ms=makespan / 10,
        bubble_ratio=0.0,
        peak_memory=(1, 2),
        peak_memory_bytes=(10, 20),
        fits=fits,
    )


CHAIN = PlacementResult(rows=(row("searched", 90), row("1f1b", 100)), found_by="tabu", optimal=False)
M_SHAPE = PlacementResult(
    rows=(row("searched", 80), row("gpipe", 82, fits=False), row("zb-h1", 85), row("1f1b", 120)),
    found_by="prover",
    optimal=True,
)


def test_ratios_are_to_1f1b_on_the_plain_chain() -> None:
    found = {"mshape": M_SHAPE, "vshape": CHAIN, "zbv": "needs more layers"}
    first, second, last = compare_placements(found, baseline="vshape", chosen="mshape")
    assert (first.placement, first.chosen, first.optimal) == ("mshape", True, True)
    assert first.ratio_to_v_1f1b == pytest.approx(0.8)
    assert first.one_f_one_b_ms == 12.0
    assert (first.handwritten, first.handwritten_ms) == ("zb-h1", 8.5)
    assert first.peak_memory_bytes == 20
    assert (second.placement, second.chosen) == ("vshape", False)
    assert second.ratio_to_v_1f1b == pytest.approx(0.9)
    assert (last.placement, last.searched_ms, last.reason) == ("zbv", None, "needs more layers")


def test_without_a_plain_chain_there_are_no_ratios() -> None:
    found = {"mshape": M_SHAPE, "vshape": "does not fit"}
    first, _ = compare_placements(found, baseline="vshape", chosen="mshape")
    assert first.ratio_to_v_1f1b is None
