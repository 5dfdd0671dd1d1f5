"""Tables and reports of a plan that was made from a table of timings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessel.jobs.shown.formatting import format_bytes

if TYPE_CHECKING:
    from tessel.comparison import Comparison
    from tessel.picture.page.document import PageTable
    from tessel.planning.costs.training_step import StepEstimate
    from tessel.planning.saved_plan import SavedPlan


def layout_report(plan: SavedPlan, comparison: Comparison) -> str:
    """Return a plan of layers as a Markdown report."""
    from tessel.exports.markdown_text import escaped
    from tessel.jobs.shown.markdown_report import comparison_table, markdown_table

    parts = [
        f"## {escaped(plan.title)}\n",
        f"{plan.cluster.devices} devices, {plan.layout.global_batch} samples per step, "
        f"{plan.layout.micro_batches} micro-batches of {plan.layout.micro_batch} a replica, "
        f"{plan.layout.placement_words}, in {escaped(order_words(plan.order))}. A training step takes "
        f"{plan.training_step_us / 1e3:.4g} ms, and no allowed plan less than "
        f"{plan.lower_bound_us / 1e3:.4g} ms ({plan.proof}).\n",
        "### Against hand-written ways, each with its own best degrees and cut\n",
        markdown_table(BASELINE_COLUMNS, baseline_rows(plan)),
        "### The order against hand-written ones, on the same stages\n",
        comparison_table(comparison),
        "### Stages\n",
        markdown_table(*stage_table(plan)),
    ]
    return "\n".join(parts)


def layout_tables(plan: SavedPlan) -> tuple[PageTable, ...]:
    """Return what a page shows of a plan of layers beside its schedule."""
    from tessel.picture.page.document import PageTable

    columns, rows = stage_table(plan)
    return (
        PageTable(title="Stages, per micro-batch", columns=columns, rows=rows),
        PageTable(
            title=f"Training step ({plan.proof}) against hand-written ways, each with its own best degrees "
            "and cut",
            columns=BASELINE_COLUMNS,
            rows=baseline_rows(plan),
        ),
    )


def order_words(order: str) -> str:
    """Return whose order of blocks a plan has, in words."""
    return "an order of ours" if order == "searched" else f"the order of {order}"


def step_words(estimate: StepEstimate) -> str:
    """Return what a training step takes, and what of: `178 ms = 158.5 pipeline + …`.

    What the optimizer of a device does before another's last block has ended is no part of the sum.
    """
    after_us = estimate.step_us - estimate.pipeline_us
    update_us = min(estimate.update_us, after_us)
    figures = (estimate.step_us, estimate.pipeline_us, update_us, round(after_us - update_us, 3))
    step, pipeline, update, after = (f"{each / 1e3:.4g}" for each in figures)
    return f"{step} ms = {pipeline} pipeline + {update} optimizer + {after} synchronisation"


STAGE_COLUMNS = ("stage", "devices", "layers", "forward (ms)", "backward (ms)", "weights", "recomputes")


def stage_table(plan: SavedPlan) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return columns, and a row a stage: where it runs, what it holds and takes, and how much that varies."""
    from tessel.planning.costs.stage_costs import costs_of
    from tessel.planning.costs.stage_figures import table_key
    from tessel.planning.layout import name_devices

    layout, spreads = plan.layout, plan.stage_spreads
    key, profile = table_key(layout), plan.mean_profile
    costs = {
        degree: costs_of(profile, key._replace(tensor_parallel=degree)) for degree in {*layout.tensor_degrees}
    }
    rows = []
    again = layout.recompute or (False,) * len(layout.cuts)
    runs = [
        (str(stage), name_devices(layout.cluster_devices(stage)), cut, again[stage], layout.device_of(stage))
        for stage, cut in enumerate(layout.cuts)
    ]
    if layout.bubbles is not None:
        every, own = name_devices(range(layout.devices)), layout.bubbles
        runs.insert(0, ("tower", every, (0, own.layers - 1), own.recompute, 0))
    for stage, (name, devices, (first, last), is_recomputed, position) in enumerate(runs):
        degree = layout.tensor_degree_at(position)
        inner = costs[degree][first : last + 1]
        rows.append(
            (
                name,
                devices,
                str(first) if first == last else f"{first}-{last}",
                f"{sum(cost.forward_us for cost in inner) / 1e3:.4g}",
                f"{sum(cost.joint_backward_us or 0.0 for cost in inner) / 1e3:.4g}",
                format_bytes(sum(cost.weight_bytes for cost in inner)),
                "yes" if is_recomputed else "no",
                *((str(degree),) if layout.has_own_degrees else ()),
                *((f"{spreads[stage]:.1%}",) if spreads else ()),
            )
        )
    further = (("tensor-parallel", layout.has_own_degrees), ("spread", bool(spreads)))
    return (*STAGE_COLUMNS, *(name for name, is_shown in further if is_shown)), tuple(rows)


def format_gap(gap: float) -> str:
    """Return a gap as text; one that is not 0 is not printed as 0."""
    return "below 0.1%" if 0 < gap < 5e-4 else f"{gap:.1%}"


BASELINE_COLUMNS = ("plan", "step (ms)", "ratio", "fits")


def baseline_rows(plan: SavedPlan) -> tuple[tuple[str, ...], ...]:
    """Return the plan and what it was compared with, a row each."""
    own_ms = plan.training_step_us / 1e3
    rows = [("this plan", f"{own_ms:.4g}", "1.000", "yes")]
    for baseline in plan.baselines:
        step_ms = baseline.step_ms
        figures = ("-", "-") if step_ms is None else (f"{step_ms:.4g}", f"{step_ms / own_ms:.3f}")
        rows.append((baseline.name, *figures, "yes" if baseline.fits else "no"))
    return tuple(rows)


REPLICA_COLUMNS = ("replica", "pipeline (ms)", "micro-batches, in the order in which they begin")

MAX_REPLICAS = 16
"""Replicas that are listed one by one."""


def replica_rows(plan: SavedPlan) -> tuple[tuple[str, ...], ...]:
    """Return a row for each replica where micro-batches differ: when it is done, and what it runs."""
    rows = []
    for replica, schedule in enumerate(plan.schedules[:MAX_REPLICAS]):
        classes = schedule.classes
        assert classes is not None, "micro-batches differ"
        begun = dict.fromkeys(start.micro_batch for start in schedule.starts)
        names = [classes.names[each] for each in begun]
        rows.append((str(replica), f"{schedule.makespan * plan.step_us / 1e3:.4g}", " ".join(names)))
    return tuple(rows)
