"""Report of `tessel run`: figures, checks, a trace and a picture of what the ranks did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scripts.terminal import console
from tessel.jobs.shown.formatting import format_bytes

if TYPE_CHECKING:
    from scripts.documents.runs import RunDone
    from tessel.engine.results_check import ResultsCheck
    from tessel.engine.run import RunReport
    from tessel.jobs.running.programs import Programs
    from tessel.jobs.running.subject import Subject


def trace_of(subject: Subject, report: RunReport) -> bytes:
    """Return the schedule and its last step as it ran, side by side."""
    from tessel.engine.measured_timeline import begin_of, with_measured_spans
    from tessel.picture.trace import MeasuredSlice, trace_document

    step = report.events["searched"][-1]
    begin_s = begin_of(step)
    measured = [
        MeasuredSlice(
            rank, event.action, (event.start_s - begin_s) * 1e6, (event.end_s - event.start_s) * 1e6
        )
        for rank, events in enumerate(step)
        for event in events
    ]
    planned, step_us = subject.schedule, subject.step_us
    if step_us is None:
        planned, step_us = with_measured_spans(planned, [step]), 1.0
    return trace_document(planned, step_us=step_us, name=subject.name, measured=measured)


def draw_run(subject: Subject, report: RunReport, path: Path) -> None:
    """Draw the last step of the schedule."""
    from tessel.engine.measured_timeline import measured_schedule
    from tessel.picture.captions import save_figure
    from tessel.picture.figures import schedule_figure

    ran = measured_schedule(report.events["searched"][-1])
    save_figure(schedule_figure(ran, step_ms=1e-3, title=f"{subject.name}, as it ran"), path)


def run_document(report: RunReport, *, num_nodes: int = 1) -> RunDone:
    """Return what `--json` prints."""
    from msgspec import UNSET

    from scripts.documents.runs import NumChecked, RunDone

    check = report.check
    return RunDone(
        max_gradient_error=report.max_gradient_error,
        loss_error=report.loss_error,
        is_right=not check.failures if check.reference_name or check.failures else None,
        reference=check.reference_name or None,
        checked=NumChecked(gradients=check.num_gradients, losses=check.num_losses, outputs=check.num_outputs),
        worst_gradient=check.worst_gradient,
        worst_loss=check.worst_loss,
        worst_output=check.worst_output,
        failures=check.failures,
        ranks_per_core=report.ranks_per_core,
        ranks_per_gpu=report.ranks_per_gpu,
        nodes=num_nodes,
        clock_error_ms=report.clock_error_ms,
        memory=report.memory,
        sums_ms=report.sums_ms,
        searched=report.figures["searched"],
        one_f_one_b=report.figures.get("1f1b", UNSET),
    )


def print_run(subject: Subject, programs: Programs, report: RunReport, *, num_nodes: int = 1) -> None:
    """Print the measured and simulated times of each schedule, and what was checked."""
    from tessel.comparison import shown_name

    rows = []
    for name, figures in report.figures.items():
        simulated_ms = figures.with_overheads_ms or figures.simulated_ms
        rows.append(
            [
                shown_name(name),
                f"{figures.real_ms:.1f}",
                f"{min(figures.real_ms_by_step):.1f} to {max(figures.real_ms_by_step):.1f}",
                f"{figures.simulated_ms:.1f}",
                "-" if figures.with_overheads_ms is None else f"{figures.with_overheads_ms:.1f}",
                f"{figures.real_ms / simulated_ms:.2f}",
            ]
        )
    ranks, micro_batches = subject.schedule.placement.devices, subject.schedule.micro_batches
    on_nodes = f" on {num_nodes} nodes" if num_nodes > 1 else ""
    title = f"{subject.name}, {ranks} ranks{on_nodes}, {micro_batches} micro-batches"
    columns = ["schedule", "measured (ms)", "range", "simulated (ms)", "with overheads", "measured/simulated"]
    console.print_table(title, columns, rows)
    if programs.step_us is None:
        console.print_line("simulated with the durations that blocks really had")
    if len(report.figures) == 2:
        searched, baseline = report.figures.values()
        console.print_line(f"ours over 1F1B, measured  {searched.real_ms / baseline.real_ms:.3f}")
    if report.sums_ms is not None:
        steps = ", ".join(
            f"{shown_name(name)} {figures.real_ms + report.sums_ms:.1f} measured and "
            f"{(figures.with_overheads_ms or figures.simulated_ms) + report.sums_ms:.1f} simulated"
            for name, figures in report.figures.items()
        )
        console.print_line(
            f"sums of gradients over ranks after the last block: {report.sums_ms:.1f} ms, measured apart; "
            f"steps with them (ms): {steps}"
        )
    if report.clock_error_ms:
        console.print_line(
            f"the nodes' clocks are compared to within {report.clock_error_ms:.2f} ms; overheads, and the "
            "links between nodes, are not simulated"
        )
    _print_memory(report)
    _print_check(report.check)
    if report.ranks_per_gpu > 1:
        console.print_line(
            f"{report.ranks_per_gpu} ranks share a GPU here and hand over through the host, so measured "
            "steps take longer than simulated"
        )
    elif report.ranks_per_core > 1 and not report.ranks_per_gpu and not programs.are_sleeping:
        console.print_line(
            f"the ranks have {report.ranks_per_core:.1f} threads a core here, so measured steps take longer "
            "than simulated"
        )


def note_of_other_device(planned: str, kind: str) -> str | None:
    """Say that a plan's latencies, by which steps are simulated, are another device's; None if they are not.

    Args:
        planned: the device that the plan was tuned on.
        kind: of the device that runs it, `cpu` or `cuda`.
    """
    from tuner.backends.environment import environment_of
    from tuner.targets.resolution import resolve_target

    found = environment_of(resolve_target(kind, num_threads=1)).device_model
    if planned == found:
        return None
    return (
        f"the plan was tuned on {planned}, and this machine has {found}: simulated steps are the former's, "
        "so tune here to compare them with measured ones"
    )


_SMALL_BYTES = 50 << 20
"""Predictions below which code and buffers are over a tenth of what a rank holds."""


def _print_memory(report: RunReport) -> None:
    """Print what each rank's process was predicted to hold, and what it held, where both are known."""
    rows = [
        [
            str(rank),
            format_bytes(each.predicted_bytes),
            format_bytes(each.held_bytes),
            f"{each.held_bytes / each.predicted_bytes:.2f}",
        ]
        for rank, each in enumerate(report.memory)
        if each.predicted_bytes and each.held_bytes is not None
    ]
    if rows:
        console.print_table("memory in steps", ["rank", "predicted", "held", "held/predicted"], rows)
    if rows and max(each.predicted_bytes or 0 for each in report.memory) < _SMALL_BYTES:
        console.print_line(
            "what is held includes some MiB of code and of buffers for messages, which no tensor accounts for"
        )


def _print_check(check: ResultsCheck) -> None:
    """Say what was checked, against what, and where the largest errors are."""
    counts = (
        (check.num_outputs, "outputs"),
        (check.num_gradients, "gradients"),
        (check.num_losses, "losses"),
    )
    what = " and ".join(f"{count} {kind}" for count, kind in counts if count)
    if not what:
        console.print_line("no result was checked: there is nothing to compare with")
        return
    if not check.reference_name:
        console.print_line(
            f"looked for NaN and infinity alone in {what}, over schedules: there is nothing to compare with"
        )
        return
    console.print_line(f"checked {what}, over schedules, against {check.reference_name}")
    for name, worst in (
        ("gradient", check.worst_gradient),
        ("loss", check.worst_loss),
        ("output", check.worst_output),
    ):
        if worst is not None:
            error = "none" if worst.relative_error is None else f"{worst.relative_error:.1e}"
            allowed = f"{error} of {worst.tolerance:.0e} allowed"
            article = "an" if name == "output" else "a"
            console.print_line(f"largest relative error of {article} {name:8}  {allowed}, in {worst.place}")
