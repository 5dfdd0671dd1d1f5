"""Compare the placements that a model was tuned for, each with its own cuts and its own searched schedule.

All of them stand under the same memory limit and rest on measurements of the same session. The yardstick is
1F1B on the plain chain with its own best cut (`V-1F1B`), which 1F1B on another placement is not. Checked in
tests/tessel/test_placement_comparison.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tessel.comparison import BASELINE as ONE_F_ONE_B
from tessel.comparison import SEARCHED, ComparisonRow


class PlacementRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one placement comes to.

    Attributes:
        placement: its name, such as `mshape`.
        chosen: whether it is the plan's.
        searched_ms: makespan of its searched schedule; None where there is none.
        found_by: the method that found that.
        optimal: whether it is proven optimal for this placement.
        one_f_one_b_ms: makespan of 1F1B on it; None where that does not apply.
        handwritten: the fastest hand-written schedule that fits; empty where none does.
        handwritten_ms: its makespan.
        ratio_to_v_1f1b: searched makespan over that of 1F1B on the plain chain.
        peak_memory_bytes: of the searched schedule on its fullest device.
        reason: why there is no schedule; empty where there is one.
    """

    placement: str
    chosen: bool = False
    searched_ms: float | None = None
    found_by: str = ""
    optimal: bool = False
    one_f_one_b_ms: float | None = None
    handwritten: str = ""
    handwritten_ms: float | None = None
    ratio_to_v_1f1b: float | None = None
    peak_memory_bytes: int | None = None
    reason: str = ""


class PlannedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A way to use the devices, as planned from the figures of single layers.

    Attributes:
        name: `plan`, or of a hand-written way, which has its own best degrees and cut.
        layout: degrees, placement and order, in words.
        step_ms: of the whole step, gradients' synchronisation and the optimizer included; None where it has
            none.
        after_ms: of that, what follows the last block.
        peak_memory_bytes: of the fullest device.
        ratio: its step over the plan's.
        reason: why it has none; empty where it has one.
    """

    name: str
    layout: str = ""
    step_ms: float | None = None
    after_ms: float | None = None
    peak_memory_bytes: int | None = None
    ratio: float | None = None
    reason: str = ""


class PlacementResult(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of one placement's schedules.

    Attributes:
        rows: as `tessel.comparison.compare_schedules` returns them, in milliseconds and bytes.
        found_by: what found the searched schedule.
    """

    rows: tuple[ComparisonRow, ...]
    found_by: str
    optimal: bool


def compare_placements(
    found: Mapping[str, PlacementResult | str], *, baseline: str, chosen: str
) -> tuple[PlacementRow, ...]:
    """Return a row for each placement, the fastest first, those without a schedule last.

    Args:
        found: by name, what each came to, or why it has no schedule.
        baseline: the name of the plain chain; where it has no 1F1B, there are no ratios.
        chosen: the name of the plan's own.
    """
    chain = found.get(baseline)
    yardstick_ms = None if chain is None or isinstance(chain, str) else _makespan_ms(chain, ONE_F_ONE_B)
    rows = [
        PlacementRow(placement=name, reason=each)
        if isinstance(each, str)
        else _row(name, each, is_chosen=name == chosen, yardstick_ms=yardstick_ms)
        for name, each in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.searched_ms is None, row.searched_ms or 0.0)))


def _row(name: str, result: PlacementResult, *, is_chosen: bool, yardstick_ms: float | None) -> PlacementRow:
    (searched,) = (row for row in result.rows if row.schedule == SEARCHED)
    by_hand = [row for row in result.rows if row.schedule != SEARCHED and row.fits]
    fastest = min(by_hand, key=lambda row: row.makespan, default=None)
    peaks = searched.peak_memory_bytes
    return PlacementRow(
        placement=name,
        chosen=is_chosen,
        searched_ms=searched.makespan_ms,
        found_by=result.found_by,
        optimal=result.optimal,
        one_f_one_b_ms=_makespan_ms(result, ONE_F_ONE_B),
        handwritten="" if fastest is None else fastest.schedule,
        handwritten_ms=None if fastest is None else fastest.makespan_ms,
        ratio_to_v_1f1b=None
        if not yardstick_ms or searched.makespan_ms is None
        else searched.makespan_ms / yardstick_ms,
        peak_memory_bytes=None if peaks is None else max(peaks),
    )


def _makespan_ms(result: PlacementResult, schedule: str) -> float | None:
    return next((row.makespan_ms for row in result.rows if row.schedule == schedule), None)
