"""The document of `tessel tune --json`."""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET

from scripts.documents.tuning import OtherShapes, Tuned
from tessel.jobs.plan import Plan


def plan_document(found: Plan, path: Path) -> Tuned:
    """Return what `--json` prints.

    Args:
        found: the plan, which was just made.
        path: where it was saved.
    """
    plan = found.tuned
    assert plan is not None, "it is of a model"
    assert found.stopped_by is not None, "it was just made"
    return Tuned(
        plan=str(path),
        new_measurements=plan.new_measurements,
        reused_measurements=plan.reused_measurements,
        comparison=plan.comparison,
        max_relative_error=plan.max_relative_error,
        max_gradient_error=plan.max_gradient_error,
        import_error=UNSET if plan.import_error is None else plan.import_error,
        notes=plan.notes,
        lower_bound_ms=plan.schedule.lower_bound * plan.step_us / 1000,
        optimal=plan.schedule.optimal,
        gap=plan.schedule.gap if plan.schedule.lower_bound else None,
        stopped_by=found.stopped_by,
        recompute=tuple(stage.recomputes for stage in plan.stages),
        placements=plan.placements,
        planned=plan.planned,
        other_shapes=tuple(
            OtherShapes(
                shapes=each.shapes,
                makespan_ms=each.schedule.makespan * each.step_us / 1000,
                optimal=each.schedule.optimal,
                max_gradient_error=each.max_gradient_error,
            )
            for each in plan.other_shapes
        ),
    )
