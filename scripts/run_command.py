"""`tessel run`: run a plan's schedule and 1F1B on real ranks, check what they compute, and time them."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import console
from scripts.arguments import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from tessel.engine.run import Reference, RunReport
    from tessel.plan import Plan


_PICTURES = (".svg", ".pdf", ".png")


class Stages(enum.StrEnum):
    """What the ranks run."""

    COMPILED = "compiled"
    TORCH = "torch"


def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan that `tessel tune` wrote.")],
    stages: Annotated[
        Stages,
        typer.Option(
            help="compiled: the plan's functions, as TVM compiles them. torch: the model's own modules; for "
            "plans of a module:function."
        ),
    ] = Stages.COMPILED,
    repeats: Annotated[int, typer.Option(help="Counted steps of each schedule.")] = 3,
    timeout: Annotated[str, typer.Option(help="Longest the ranks may take, such as 5m.")] = "5m",
    trace: Annotated[
        Path | None, typer.Option(help="Write what every rank really did as a trace for Perfetto (.json).")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw what every rank really did (.svg, .pdf or .png).")
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

    `tessel run out/own/plan.json --stages torch --trace real.json`

    `tessel run out/gpt2/plan.json --csv orders.csv`
    """
    from tessel.documents import save_document
    from tessel.plan import load_plan

    if repeats < 1:
        raise typer.BadParameter(f"--repeats is {repeats}; at least one step must count")
    if picture is not None and picture.suffix not in _PICTURES:
        raise typer.BadParameter(f"--picture {picture} is none of {', '.join(_PICTURES)}; change the suffix")
    timeout_s = parse_duration(timeout)
    loaded = load_plan(plan)
    if csv is not None:
        from tessel.engine import actions_of, actions_to_csv, renumbered

        save_document(csv, actions_to_csv(renumbered(actions_of(loaded.schedule))).encode())
        console.print_note(f"orders written to {csv}")
        return
    report = _run(loaded, stages, repeats=repeats, timeout_s=timeout_s, seed=seed)
    if trace is not None:
        save_document(trace, _trace(loaded, report))
        console.print_note(f"trace written to {trace}")
    if picture is not None:
        _draw(loaded, report, picture)
        console.print_note(f"picture written to {picture}")
    if json:
        console.print_json(_document(report))
        return
    _print(loaded, report)


def _run(plan: Plan, stages: Stages, *, repeats: int, timeout_s: float, seed: int) -> RunReport:
    from tessel.engine.run import run_plan

    provider, provider_spec, reference = _programs(plan, stages, seed)
    with console.progress_bar(f"running {plan.placement.devices} ranks"):
        return run_plan(
            plan,
            provider=provider,
            provider_spec=provider_spec,
            reference=reference,
            repeats=repeats,
            timeout_s=timeout_s,
        )


def _programs(plan: Plan, stages: Stages, seed: int) -> tuple[str, str, Callable[[int], Reference]]:
    """Return who builds the stages, from which specification, and the unpipelined model."""
    import msgspec

    from tuner.plan import ModelPlan

    tuned = ModelPlan(**{name: getattr(plan, name) for name in ModelPlan.__struct_fields__})
    if stages is Stages.TORCH:
        from tuner import torch_programs

        of_torch = torch_programs.TorchProgramSpec(plan=tuned, seed=seed)
        torch_programs.check_spec(of_torch)
        return (
            "tuner.torch_programs:provide_programs",
            msgspec.json.encode(of_torch).decode(),
            lambda count: torch_programs.reference_step(of_torch, count),
        )
    from tuner import compiled_stages

    spec = compiled_stages.ProgramSpec(plan=tuned, seed=seed)
    return (
        "tuner.compiled_stages:provide_programs",
        msgspec.json.encode(spec).decode(),
        lambda count: compiled_stages.reference_step(spec, count),
    )


def _trace(plan: Plan, report: RunReport) -> bytes:
    """Return the plan and the last step of its schedule side by side."""
    from tessel.engine.real import begin_of
    from tessel.picture import RealSlice, trace_document

    step = report.events["searched"][-1]
    begin_s = begin_of(step)
    real = [
        RealSlice(rank, event.action, (event.start_s - begin_s) * 1e6, (event.end_s - event.start_s) * 1e6)
        for rank, events in enumerate(step)
        for event in events
    ]
    return trace_document(plan.schedule, step_us=plan.step_us, name=plan.model, real=real)


def _draw(plan: Plan, report: RunReport, path: Path) -> None:
    """Draw the last step of the plan's schedule."""
    from tessel.engine.real import real_schedule
    from tessel.picture import save_figure, schedule_figure

    real = real_schedule(report.events["searched"][-1])
    save_figure(schedule_figure(real, step_ms=1e-3, title=f"{plan.model}, as it ran"), path)


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
