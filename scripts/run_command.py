"""`tessel run`: run a plan's schedule and 1F1B on real ranks, check what they compute, and time them."""

from __future__ import annotations

import enum
import functools
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import console
from scripts.arguments import parse_duration
from scripts.tuning_options import DEFAULT_RECORDS, RecordsOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from scripts.documents.runs import RunDone
    from tessel.engine.devices import Devices
    from tessel.engine.overheads import Calibration
    from tessel.engine.results_check import Reference, ResultsCheck
    from tessel.engine.run import RunReport
    from tessel.plan import Plan
    from tessel.schedule import Schedule


_PICTURES = (".svg", ".pdf", ".png")
_SLEEP_STEP_S = 0.01
_OF_PLAN = ("compiled", "torch")
"""Kinds of stages that load the plan's model."""


class Device(enum.StrEnum):
    """What the ranks compute on."""

    CPU = "cpu"
    CUDA = "cuda"


class Overheads(enum.StrEnum):
    """Where the overheads of this machine's ranks come from."""

    KNOWN = "known"
    ANEW = "anew"
    NONE = "none"


def run(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="A plan that `tessel tune` wrote, or a schedule of `tessel schedule --save`."
        ),
    ],
    stages: Annotated[
        str | None,
        typer.Option(
            help="compiled: the plan's functions, as TVM compiles them (the default for a plan). torch: the "
            "model's own modules; for plans of a module:function. sleep: stages that take as long as their "
            "blocks (the default for a schedule). module:function or file.py:function: your own stages."
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(help="How long a step of a schedule takes, such as 5ms; 10ms where stages sleep."),
    ] = None,
    device: Annotated[
        Device | None,
        typer.Option(
            help="What the ranks compute on: that of the plan's target unless given, cpu for a schedule. "
            "GPUs talk over NCCL where each rank has one, else through the host."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Counted steps of each schedule.")] = 3,
    timeout: Annotated[str, typer.Option(help="Time limit for the ranks, such as 5m.")] = "5m",
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
    orders: Annotated[
        Path | None,
        typer.Option(help="Run this CSV's orders, as --csv writes them, in place of the document's own."),
    ] = None,
    overheads: Annotated[
        Overheads,
        typer.Option(
            help="Overheads that ranks add to their blocks: known, from the records, or measured once if "
            "missing; anew, measured again; none, left out."
        ),
    ] = Overheads.KNOWN,
    model: Annotated[
        str | None,
        typer.Option(
            help="The module:function or file.py:function that the plan was tuned for: running it runs that "
            "code, so name it here too, or give --trust-model."
        ),
    ] = None,
    trust_model: Annotated[
        bool, typer.Option("--trust-model", help="Run whatever code the plan names as its model.")
    ] = False,
    records: RecordsOption = DEFAULT_RECORDS,
    seed: Annotated[int, typer.Option(help="Seed of weights and inputs.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Run a plan's schedule and 1F1B in turn, one process per device, and check every loss and gradient.

    Exits with status 1 if a tensor deviates from the reference by more than its data type's tolerance.

    Examples:

    `tessel run out/gpt2/plan.json`

    `tessel run out/own/plan.json --model examples/own_model.py:build --stages torch --trace real.json`

    `tessel run out/gpt2/plan.json --csv orders.csv`

    `tessel run m.json --stages examples/vocabulary_parallel.py:stages`
    """
    from tessel.documents import save_document

    if repeats < 1:
        raise typer.BadParameter(f"--repeats is {repeats}; at least one step must count")
    if picture is not None and picture.suffix not in _PICTURES:
        raise typer.BadParameter(f"--picture {picture} is none of {', '.join(_PICTURES)}; change the suffix")
    timeout_s = parse_duration(timeout)
    subject = _load(plan, step)
    if orders is not None:
        subject = _with_orders(subject, orders)
    if csv is not None:
        from tessel.engine import actions_of, actions_to_csv, renumbered

        save_document(csv, actions_to_csv(renumbered(actions_of(subject.schedule))).encode())
        console.print_note(f"orders written to {csv}")
        if json:
            from scripts.documents.runs import OrdersWritten

            console.print_json(OrdersWritten(orders=str(csv)))
        return
    devices = _devices(subject, device)
    trusted = _is_trusted(subject, stages, model, trust_model=trust_model)
    programs = _programs(subject, stages, seed, devices, trust_model=trusted)
    known = _overheads(subject, records, overheads, devices)
    report = _run(subject, programs, known, devices, repeats=repeats, timeout_s=timeout_s)
    if trace is not None:
        save_document(trace, _trace(subject, report))
        console.print_note(f"trace written to {trace}")
    if picture is not None:
        _draw(subject, report, picture)
        console.print_note(f"picture written to {picture}")
    if json:
        console.print_json(_document(report))
    else:
        _print(subject, programs, report)
    _require_right(report)


@dataclass(frozen=True)
class _Subject:
    """What is run: a plan, or a schedule alone, whose steps may have no length."""

    name: str
    schedule: Schedule
    step_us: float | None
    plan: Plan | None


@dataclass(frozen=True)
class _Programs:
    """Who builds the stages, from what, the reference, and how long a step is simulated to be."""

    provider: str
    spec: str
    reference: Callable[[int], Reference] | None
    reference_name: str
    step_us: float | None


def _load(path: Path, step: str | None) -> _Subject:
    from tessel.documents import DocumentKind, detect_kind, load_schedule
    from tessel.plan import load_plan

    if detect_kind(path) is DocumentKind.SCHEDULE:
        step_us = None if step is None else parse_duration(step) * 1e6
        return _Subject(path.stem, load_schedule(path), step_us, None)
    plan = load_plan(path)
    if step is not None:
        raise typer.BadParameter("--step is for schedules; the steps of a plan have a length")
    return _Subject(plan.model, plan.schedule, plan.step_us, plan)


def _with_orders(subject: _Subject, path: Path) -> _Subject:
    """Put the orders of a CSV in the place of the schedule's; each action starts as early as they allow."""
    from tessel.documents import read_document
    from tessel.engine import actions_from_csv, schedule_of_actions

    actions = actions_from_csv(read_document(path).decode())
    schedule = schedule_of_actions(subject.schedule.placement, actions, found_by=path.name)
    return replace(subject, schedule=schedule)


def _run(
    subject: _Subject,
    programs: _Programs,
    overheads: Calibration | None,
    devices: Devices,
    *,
    repeats: int,
    timeout_s: float,
) -> RunReport:
    from tessel.engine.run import run_schedule

    with console.progress_bar(f"running {subject.schedule.placement.devices} ranks", limit_s=timeout_s):
        return run_schedule(
            subject.schedule,
            step_us=programs.step_us,
            provider=programs.provider,
            provider_spec=programs.spec,
            reference=programs.reference,
            reference_name=programs.reference_name,
            tied=subject.plan.tied if subject.plan is not None else (),
            parameters=[stage.parameters for stage in subject.plan.stages]
            if subject.plan is not None
            else (),
            num_threads=subject.plan.num_threads if subject.plan is not None else 1,
            repeats=repeats,
            timeout_s=timeout_s,
            overheads=overheads,
            devices=devices,
        )


def _devices(subject: _Subject, wanted: Device | None) -> Devices:
    """Return a device for each rank, of the kind that was asked for or else of the plan's target.

    Raises:
        EngineError: there is no such device here.
    """
    from tessel.engine.devices import CPUS, choose_devices

    kind = wanted.value if wanted is not None else subject.plan.device_kind if subject.plan else "cpu"
    if kind == "cpu":
        return CPUS
    import torch

    return choose_devices(
        kind,
        subject.schedule.placement.devices,
        num_gpus=torch.cuda.device_count(),
        has_nccl=torch.distributed.is_nccl_available(),
    )


def _overheads(
    subject: _Subject, records_url: str, wanted: Overheads, devices: Devices
) -> Calibration | None:
    """Look up the overheads of real ranks in the records, or measure and record them."""
    if wanted is Overheads.NONE:
        return None
    from records import open_store
    from tessel.engine.overheads import known_overheads
    from tuner.backends.environment import environment_of
    from tuner.targets.resolution import resolve_target

    num_ranks = subject.schedule.placement.devices
    target = resolve_target(devices.kind, num_threads=1)
    with open_store(records_url) as store, console.progress_bar(f"overheads of {num_ranks} ranks"):
        found = known_overheads(
            store,
            num_ranks,
            target=target.text,
            machine=environment_of(target),
            devices=devices,
            anew=wanted is Overheads.ANEW,
        )
    origin = f"measured, and kept in {records_url}" if found.is_new else f"found in {records_url}"
    console.print_note(f"overheads of {num_ranks} ranks {origin}")
    return found.calibration


def _is_trusted(subject: _Subject, stages: str | None, model: str | None, *, trust_model: bool) -> bool:
    """Return whether the user wants the code run that a plan names as its model.

    Raises:
        typer.BadParameter: it would be run and is not wanted, or the user named another model.
    """
    if model is not None and (subject.plan is None or model != subject.plan.model):
        found = (
            "is a schedule, without a model" if subject.plan is None else f"was tuned for {subject.name!r}"
        )
        raise typer.BadParameter(f"--model {model}: this document {found}; leave --model out, or name that")
    if trust_model or model is not None or subject.plan is None or (stages or "compiled") not in _OF_PLAN:
        return trust_model or model is not None
    from tuner.frontend import is_code

    if is_code(subject.plan.model):
        raise typer.BadParameter(
            f"this plan names the Python code {subject.plan.model!r} as its model, and running the plan runs "
            f"that code; if you trust it, add --model {shlex.quote(subject.plan.model)} or --trust-model"
        )
    return False


def _programs(
    subject: _Subject, stages: str | None, seed: int, devices: Devices, *, trust_model: bool
) -> _Programs:
    """Return who builds the stages, from which specification, and the unpipelined model.

    Raises:
        typer.BadParameter: there are no such stages for this document.
    """
    chosen = stages or ("sleep" if subject.plan is None else "compiled")
    if chosen == "sleep":
        return _sleeping(subject, devices)
    if ":" in chosen:
        return _stages_of_ones_own(subject, chosen, devices)
    if chosen not in _OF_PLAN:
        raise typer.BadParameter(f"--stages {chosen} is none of compiled, torch, sleep and module:function")
    if subject.plan is None:
        raise typer.BadParameter(
            f"--stages {chosen} needs a plan, and this document is a schedule without a model; give sleep or "
            "module:function"
        )
    return _stages_of_plan(subject.plan, chosen, seed, devices, trust_model=trust_model)


def _sleeping(subject: _Subject, devices: Devices) -> _Programs:
    import msgspec

    from tessel.engine.synthetic_run import PROVIDER, sleep_spec

    step_us = subject.step_us or _SLEEP_STEP_S * 1e6
    spec = sleep_spec(subject.schedule.placement, step_us=step_us, device=devices.kind)
    return _Programs(PROVIDER, msgspec.json.encode(spec).decode(), None, "", step_us)


def _stages_of_ones_own(subject: _Subject, provider: str, devices: Devices) -> _Programs:
    """Take stages from a function of the user's; a function `reference` beside it gives the whole model."""
    import msgspec

    from tessel.engine import EngineError
    from tessel.engine.actions import rank_by_stage
    from tessel.engine.import_function import find_function

    find_function(provider)  # Refused here, before any process starts.
    told = {"ranks": rank_by_stage(subject.schedule), "device": devices.kind}
    spec = msgspec.json.encode(told).decode()
    try:
        whole = find_function(f"{provider.rpartition(':')[0]}:reference")
    except EngineError:
        whole = None
    reference = None if whole is None else functools.partial(whole, spec)
    name = f"{provider.rpartition(':')[0]}:reference"
    return _Programs(provider, spec, reference, name, subject.step_us if subject.plan is None else None)


def _stages_of_plan(plan: Plan, stages: str, seed: int, devices: Devices, *, trust_model: bool) -> _Programs:
    import msgspec

    from tuner.plan import ModelPlan

    tuned = ModelPlan(**{name: getattr(plan, name) for name in ModelPlan.__struct_fields__})
    if stages == "torch":
        from tuner.programs import torch_programs

        of_torch = torch_programs.TorchProgramSpec(
            plan=tuned, seed=seed, device=devices.kind, trust_model=trust_model
        )
        torch_programs.check_spec(of_torch)
        return _Programs(
            "tuner.programs.torch_programs:provide_programs",
            msgspec.json.encode(of_torch).decode(),
            lambda count: torch_programs.reference_step(of_torch, count),
            "the uncut torch module under plain torch",
            plan.step_us,
        )
    from tuner.programs import compiled_stages

    if devices.kind != plan.device_kind:
        raise typer.BadParameter(
            f"--device {devices.kind}: this plan was compiled for {plan.device_model}; leave --device out, "
            "or give --stages torch"
        )
    spec = compiled_stages.ProgramSpec(plan=tuned, seed=seed, trust_model=trust_model)
    compiled_stages.check_spec(spec)
    return _Programs(
        "tuner.programs.compiled_stages:provide_programs",
        msgspec.json.encode(spec).decode(),
        lambda count: compiled_stages.reference_step(spec, count),
        "the uncut, unpartitioned program that was imported from the model",
        plan.step_us,
    )


def _trace(subject: _Subject, report: RunReport) -> bytes:
    """Return the schedule and its last step as it ran, side by side."""
    from tessel.engine.measured_timeline import begin_of, with_measured_spans
    from tessel.picture import RealSlice, trace_document

    step = report.events["searched"][-1]
    begin_s = begin_of(step)
    real = [
        RealSlice(rank, event.action, (event.start_s - begin_s) * 1e6, (event.end_s - event.start_s) * 1e6)
        for rank, events in enumerate(step)
        for event in events
    ]
    planned, step_us = subject.schedule, subject.step_us
    if step_us is None:
        planned, step_us = with_measured_spans(planned, [step]), 1.0
    return trace_document(planned, step_us=step_us, name=subject.name, real=real)


def _draw(subject: _Subject, report: RunReport, path: Path) -> None:
    """Draw the last step of the schedule."""
    from tessel.engine.measured_timeline import measured_schedule
    from tessel.picture import save_figure, schedule_figure

    real = measured_schedule(report.events["searched"][-1])
    save_figure(schedule_figure(real, step_ms=1e-3, title=f"{subject.name}, as it ran"), path)


def _document(report: RunReport) -> RunDone:
    from msgspec import UNSET

    from scripts.documents.runs import NumChecked, RunDone

    check = report.check
    return RunDone(
        max_gradient_error=report.max_gradient_error,
        loss_error=report.loss_error,
        is_right=not check.failures if check.reference_name else None,
        reference=check.reference_name or None,
        checked=NumChecked(gradients=check.num_gradients, losses=check.num_losses),
        worst_gradient=check.worst_gradient,
        worst_loss=check.worst_loss,
        failures=check.failures,
        ranks_per_core=report.ranks_per_core,
        ranks_per_gpu=report.ranks_per_gpu,
        searched=report.figures["searched"],
        one_f_one_b=report.figures.get("1f1b", UNSET),
    )


def _print(subject: _Subject, programs: _Programs, report: RunReport) -> None:
    rows = []
    for name, figures in report.figures.items():
        simulated_ms = figures.with_overheads_ms or figures.simulated_ms
        rows.append(
            [
                name,
                f"{figures.real_ms:.1f}",
                f"{min(figures.real_ms_by_step):.1f} to {max(figures.real_ms_by_step):.1f}",
                f"{figures.simulated_ms:.1f}",
                "-" if figures.with_overheads_ms is None else f"{figures.with_overheads_ms:.1f}",
                f"{figures.real_ms / simulated_ms:.2f}",
            ]
        )
    ranks, micro_batches = subject.schedule.placement.devices, subject.schedule.micro_batches
    title = f"{subject.name}, {ranks} ranks, {micro_batches} micro-batches"
    columns = ["schedule", "real (ms)", "range", "simulated (ms)", "with overheads", "real/simulated"]
    console.print_table(title, columns, rows)
    if programs.step_us is None:
        console.print_line("simulated with the durations that blocks really had")
    if len(report.figures) == 2:
        searched, baseline = report.figures.values()
        console.print_line(f"searched over 1F1B, for real  {searched.real_ms / baseline.real_ms:.3f}")
    _print_check(report.check)
    if report.ranks_per_gpu > 1:
        console.print_line(
            f"{report.ranks_per_gpu} ranks share a GPU here and hand over through the host, so real steps "
            "take longer than simulated"
        )
    elif report.ranks_per_core > 1 and not report.ranks_per_gpu and "sleeping" not in programs.provider:
        console.print_line(
            f"{report.ranks_per_core:.1f} ranks share a core here, so real steps take longer than simulated"
        )


def _print_check(check: ResultsCheck) -> None:
    """Say what was checked, against what, and where the largest errors are."""
    if not check.reference_name:
        console.print_line("no loss and no gradient was checked: there is nothing to compare with")
        return
    console.print_line(
        f"checked {check.num_gradients} gradients and {check.num_losses} losses, over schedules, against "
        f"{check.reference_name}"
    )
    for name, worst in (("gradient", check.worst_gradient), ("loss", check.worst_loss)):
        if worst is not None:
            error = "none" if worst.relative_error is None else f"{worst.relative_error:.1e}"
            allowed = f"{error} of {worst.tolerance:.0e} allowed"
            console.print_line(f"largest relative error of a {name:8}  {allowed}, in {worst.place}")


def _require_right(report: RunReport) -> None:
    """End the command with status 1 where results are wrong.

    Raises:
        EngineError: they are; names the worst tensors with their stages.
    """
    from tessel.engine import EngineError

    if report.check.failures:
        raise EngineError(
            f"{report.check.describe_failures()}; what was timed is not the model: run the stages that are "
            "named alone, or with --stages torch, to find the one that is wrong"
        )
