"""The placements that a model was tuned for, side by side: built from their plans, and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tessel.jobs.shown.formatting import format_bytes

if TYPE_CHECKING:
    from tessel.jobs.shown.sections import Sections
    from tessel.placement_comparison import PlacementRow, PlannedRow
    from tessel.tuned_plan import TunedPlan


def placement_rows(
    plans: Mapping[str, TunedPlan], failures: Mapping[str, Exception], chosen: str
) -> tuple[PlacementRow, ...]:
    """Return a row for each placement, the fastest first."""
    from tessel.placement_comparison import PlacementResult, compare_placements
    from tessel.tuned_model.model_placement import BASELINE

    found: dict[str, PlacementResult | str] = {
        name: PlacementResult(
            rows=plan.comparison, found_by=plan.schedule.found_by, optimal=plan.schedule.optimal
        )
        for name, plan in plans.items()
    }
    found |= {name: str(error) for name, error in failures.items()}
    return compare_placements(found, baseline=BASELINE, chosen=chosen)


def add_placements(out: Sections, placements: Sequence[PlacementRow]) -> None:
    """Add the table of placements, and under it why some have no schedule."""
    rows = []
    for row in placements:
        if row.searched_ms is None:
            continue
        fastest = "-" if row.handwritten_ms is None else f"{row.handwritten} {_ms(row.handwritten_ms)}"
        rows.append(
            [
                f"{row.placement} *" if row.chosen else row.placement,
                _ms(row.searched_ms),
                _ms(row.one_f_one_b_ms),
                fastest,
                "-" if row.peak_memory_bytes is None else format_bytes(row.peak_memory_bytes),
                "-" if row.ratio_to_v_1f1b is None else f"{row.ratio_to_v_1f1b:.3f}",
            ]
        )
    columns = ["placement", "ours", "1F1B", "best by hand", "peak memory", "to chain"]
    title = "Placements, each with its own cuts (ms, simulated from the figures of its stages)"
    out.table(title, columns, rows, folded=("best by hand",))
    out.line(
        "to chain: ours over 1F1B on the plain chain (vshape); peak memory: of the fullest device; * taken"
    )
    if any(row.placement.startswith("xshape") or "×" in row.placement for row in placements):
        out.line("Sums of gradients over copies, after the last block, are not in these times.")
    for row in placements:
        if row.reason:
            out.line(f"{row.placement}: {row.reason}")


def add_planned(out: Sections, planned: Sequence[PlannedRow]) -> None:
    """Add what was planned from the figures of single layers, and why some ways have no step."""
    rows = [
        [
            f"{row.name} *" if row.name == "plan" else row.name,
            _ms(row.step_ms),
            _ms(row.after_ms),
            "-" if row.peak_memory_bytes is None else format_bytes(row.peak_memory_bytes),
            "-" if row.ratio is None else f"{row.ratio:.3f}",
            row.layout,
        ]
        for row in planned
        if row.step_ms is not None
    ]
    columns = ["planned", "step", "after it", "peak memory", "to plan", "layout"]
    title = "Planned from the figures of single layers, each with its own degrees and cut (ms)"
    out.table(title, columns, rows, folded=("layout",))
    out.line("after it: synchronisation and optimizer, after the last block; * this plan")
    for row in planned:
        if row.reason:
            out.line(f"{row.name}: {row.reason}")


def _ms(time_ms: float | None) -> str:
    from tessel.comparison import format_ms

    return "-" if time_ms is None else format_ms(time_ms)
