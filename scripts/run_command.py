"""`tessel run`: run a plan's schedule and 1F1B on real ranks, check what they compute, and time them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import console
from scripts.arguments import parse_duration

if TYPE_CHECKING:
    from tessel.engine.run import RunReport
    from tessel.plan import Plan


def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan that `tessel tune` wrote.")],
    repeats: Annotated[int, typer.Option(help="Counted steps of each schedule.")] = 3,
    timeout: Annotated[str, typer.Option(help="Longest the ranks may take, such as 5m.")] = "5m",
    trace: Annotated[
        Path | None, typer.Option(help="Write what every rank really did as a trace for Perfetto (.json).")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Only write the orders as the CSV that torch.distributed.pipelining loads."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and inputs.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Run a plan's schedule and 1F1B in turn, one process a device, and check every gradient.

    Examples:

    `tessel run out/gpt2/plan.json`

    `tessel run out/gpt2/plan.json --csv orders.csv`
    """
    from tessel.documents import save_document
    from tessel.plan import load_plan

    if repeats < 1:
        raise typer.BadParameter(f"--repeats is {repeats}; at least one step must count")
    timeout_s = parse_duration(timeout)
    loaded = load_plan(plan)
    if csv is not None:
        from tessel.engine import actions_of, actions_to_csv

        save_document(csv, actions_to_csv(actions_of(loaded.schedule)).encode())
        console.print_note(f"orders written to {csv}")
        return
    report = _run(loaded, repeats=repeats, timeout_s=timeout_s, seed=seed)
    if trace is not None:
        save_document(trace, _trace(loaded, report))
        console.print_note(f"trace written to {trace}")
    if json:
        console.print_json(_document(report))
        return
    _print(loaded, report)


def _run(plan: Plan, *, repeats: int, timeout_s: float, seed: int) -> RunReport:
    import msgspec

    from tessel.engine.run import run_plan
    from tuner.compiled_stages import ProgramSpec, reference_step
    from tuner.plan import ModelPlan

    tuned = ModelPlan(**{name: getattr(plan, name) for name in ModelPlan.__struct_fields__})
    spec = ProgramSpec(plan=tuned, seed=seed)
    with console.progress_bar(f"running {plan.placement.devices} ranks"):
        return run_plan(
            plan,
            provider="tuner.compiled_stages:provide_programs",
            provider_spec=msgspec.json.encode(spec).decode(),
            reference=lambda count: reference_step(spec, count),
            repeats=repeats,
            timeout_s=timeout_s,
        )


def _trace(plan: Plan, report: RunReport) -> bytes:
    """Return the plan and the last step of its schedule side by side."""
    from tessel.picture import RealSlice, trace_document

    step = report.events["searched"][-1]
    begin_s = min(events[0].ready_s for events in step if events)
    real = [
        RealSlice(rank, event.action, (event.start_s - begin_s) * 1e6, (event.end_s - event.start_s) * 1e6)
        for rank, events in enumerate(step)
        for event in events
    ]
    return trace_document(plan.schedule, step_us=plan.step_us, name=plan.model, real=real)


def _document(report: RunReport) -> dict[str, object]:
    return {
        "max_gradient_error": report.max_gradient_error,
        "loss_error": report.loss_error,
        "ranks_per_core": report.ranks_per_core,
        **report.figures,
    }


def _print(plan: Plan, report: RunReport) -> None:
    rows = [
        [
            name,
            f"{figures.real_ms:.1f}",
            f"{min(figures.real_ms_by_step):.1f} to {max(figures.real_ms_by_step):.1f}",
            f"{figures.simulated_ms:.1f}",
            f"{figures.real_ms / figures.simulated_ms:.2f}",
        ]
        for name, figures in report.figures.items()
    ]
    title = f"{plan.model}, {plan.placement.devices} ranks, {plan.schedule.micro_batches} micro-batches"
    console.print_table(title, ["schedule", "real (ms)", "range", "simulated (ms)", "real/simulated"], rows)
    if report.max_gradient_error is not None:
        console.print_line(f"largest relative error of a gradient  {report.max_gradient_error:.1e}")
    if report.loss_error is not None:
        console.print_line(f"largest relative error of a loss      {report.loss_error:.1e}")
    if report.ranks_per_core > 1:
        console.print_line(
            f"{report.ranks_per_core:.1f} ranks share a core here, so real steps take longer than simulated"
        )
