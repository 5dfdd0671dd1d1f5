"""`tessel run`: run a plan's schedule and 1F1B on real ranks, check what they compute, and time them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.run.options import RunOptions
from scripts.commands.run.programs import Programs, find_programs
from scripts.commands.run.report import draw_run, print_run, require_right, run_document, trace_of
from scripts.commands.run.subject import Subject, find_devices, find_overheads, load_subject
from scripts.options.dataclass_options import takes_options
from scripts.terminal import console

if TYPE_CHECKING:
    from tessel.engine.devices import Devices
    from tessel.engine.run import RunReport


@takes_options
def run(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="A plan that `tessel tune` wrote, or a schedule of `tessel schedule --save`."
        ),
    ],
    options: RunOptions,
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

    options.check()
    subject = load_subject(plan, options)
    if options.csv is not None:
        _write_orders(subject, options.csv, as_json=options.json)
        return
    devices = find_devices(subject, options.device)
    programs = find_programs(subject, options, devices)
    report = _run(subject, programs, options, devices)
    if options.trace is not None:
        save_document(options.trace, trace_of(subject, report))
        console.print_note(f"trace written to {options.trace}")
    if options.picture is not None:
        draw_run(subject, report, options.picture)
        console.print_note(f"picture written to {options.picture}")
    if options.json:
        console.print_json(run_document(report))
    else:
        print_run(subject, programs, report)
    require_right(report)


def _write_orders(subject: Subject, path: Path, *, as_json: bool) -> None:
    """Write the orders as the CSV that torch.distributed.pipelining loads, and run nothing."""
    from tessel.documents import save_document
    from tessel.engine import actions_of, actions_to_csv, renumbered

    save_document(path, actions_to_csv(renumbered(actions_of(subject.schedule))).encode())
    console.print_note(f"orders written to {path}")
    if as_json:
        from scripts.documents.runs import OrdersWritten

        console.print_json(OrdersWritten(orders=str(path)))


def _run(subject: Subject, programs: Programs, options: RunOptions, devices: Devices) -> RunReport:
    from tessel.engine.run import RunSettings, Simulation, run_schedule

    overheads = find_overheads(subject, options, devices)
    settings = RunSettings(
        num_threads=1 if subject.plan is None else subject.plan.num_threads,
        repeats=options.repeats,
        timeout_s=options.timeout_s,
        devices=devices,
    )
    with console.progress_bar(
        f"running {subject.schedule.placement.devices} ranks", limit_s=options.timeout_s
    ):
        return run_schedule(
            subject.schedule,
            programs.stages,
            expected=programs.expected,
            settings=settings,
            simulation=Simulation(step_us=programs.step_us, overheads=overheads),
        )
