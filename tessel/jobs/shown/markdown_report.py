"""A plan or a schedule as a Markdown report, ready to paste into a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tessel.exports.markdown_text import escaped, table_lines
from tessel.jobs.shown.formatting import (
    end_to_end_rows,
    format_bytes,
    format_error,
    format_figure,
    format_numbers,
    format_us,
)

if TYPE_CHECKING:
    from tessel.comparison import Comparison
    from tessel.tuned_plan import TunedPlan

_MAX_PARTS = 12


def plan_report(plan: TunedPlan, comparison: Comparison) -> str:
    """Return the report of a plan: the comparison first, then what it rests on."""
    from tessel.comparison import format_ms

    schedule = plan.schedule
    proof = (
        "its order proven optimal on these stages"
        if schedule.optimal
        else f"its order within {schedule.gap:.1%} of optimal on these stages"
    )
    kind = "training" if plan.training else "inference"
    parts = [
        f"## {escaped(plan.model)}, {kind}, on {len(plan.stages)} devices\n",
        f"Measured on {escaped(plan.device_model)}, {plan.num_threads} threads per device, "
        f"{schedule.micro_batches} micro-batches. "
        f"Makespan {format_ms(schedule.makespan * plan.step_us / 1000)} ms, {proof}; "
        f"simulated from measured stages, hop latency {plan.hop_source}.\n",
        comparison_table(comparison),
        "### Stages (latencies per micro-batch)\n",
        _stages(plan),
        "### Backends, forward function end to end\n",
        _end_to_end(plan),
        f"Largest error against the unpartitioned model {format_error(plan.max_relative_error)}; of "
        f"gradients against the uncut model {format_error(plan.max_gradient_error)}.\n",
        "### Most expensive sub-graphs\n",
        _partition(plan),
    ]
    return "\n".join(parts)


def comparison_table(comparison: Comparison) -> str:
    """Return the comparison with hand-written schedules as a table."""
    rows = []
    for row in comparison.rows:
        if row.peak_memory_bytes is not None:
            memory = format_bytes(max(row.peak_memory_bytes))
        else:
            memory = format_numbers(row.peak_memory)
        ratio = "–" if row.ratio_to_1f1b is None else f"{row.ratio_to_1f1b:.3f}"
        fits = "yes" if row.fits else "no"
        rows.append((row.title, f"{row.length} {row.unit}", f"{row.bubble_ratio:.1%}", memory, fits, ratio))
    return markdown_table(
        ("schedule", "makespan", "bubble ratio", "peak memory", "fits", "ratio to 1F1B"), rows
    )


def _stages(plan: TunedPlan) -> str:
    rows = [
        (
            f"{stage.name}: {' … '.join(dict.fromkeys((stage.layers[0], stage.layers[-1])))}",
            *(
                "–" if figure is None else format_figure(figure)
                for figure in (stage.forward, stage.backward, stage.backward_input, stage.backward_weight)
            ),
            format_bytes(stage.weight_bytes),
            format_bytes(stage.saved_bytes),
        )
        for stage in plan.stages
    ]
    return markdown_table(("stage", "F", "B and W joint", "B", "W", "weights", "saved"), rows)


def _end_to_end(plan: TunedPlan) -> str:
    return markdown_table(("backends", "latency", "ratio to mix", "interval"), end_to_end_rows(plan))


def _partition(plan: TunedPlan) -> str:
    rows = [
        (
            ", ".join(part.operators),
            part.backend,
            format_figure(part.figure),
            str(part.occurrences),
            "–" if part.runner_up is None else f"{part.runner_up[0]} {format_us(part.runner_up[1])}",
        )
        for part in plan.partition[:_MAX_PARTS]
    ]
    return markdown_table(("operators", "backend", "latency", "runs", "alternative"), rows)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; all cells are text."""
    return "\n".join(table_lines(columns, rows)) + "\n"
