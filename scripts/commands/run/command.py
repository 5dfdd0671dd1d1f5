"""`tessel run`: run a plan's schedule and 1F1B on real ranks, check what they compute, and time them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.run.options import RunCommandOptions
from scripts.commands.run.process_role import ProcessRole, join_team
from scripts.commands.run.report import (
    draw_run,
    note_of_other_device,
    print_run,
    run_document,
    trace_of,
)
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import job_options
from scripts.terminal import console
from tessel.jobs.plan import load_planned
from tessel.jobs.running.options import RunOptions
from tessel.jobs.running.programs import Programs, find_programs
from tessel.jobs.running.run import require_right, run_subject, settings_of
from tessel.jobs.running.subject import Subject, find_overheads, subject_of_plan, subject_of_schedule
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.engine.devices import Devices
    from tessel.engine.run import RunReport


@common_options("repeats stages step csv orders picture trace shape model timeout records json")
@takes_options
def run(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="A plan that `tessel tune` wrote, or a schedule of `tessel schedule --save`."
        ),
    ],
    options: RunCommandOptions,
) -> None:
    """Run a plan's schedule and 1F1B in turn, one process per device, and check every loss and gradient.

    Exits with status 1 if a tensor deviates from the reference by more than its data type's tolerance, or is
    NaN or infinite.
    Started by torchrun, also on several machines, each of its processes runs one rank, and rank 0 prints.

    Examples:

    `tessel run out/gpt2/plan.json`

    `tessel run out/own/plan.json --model examples/own_model.py:build --stages torch --trace real.json`

    `tessel run out/gpt2/plan.json --csv orders.csv`

    `tessel run m.json --stages examples/vocabulary_parallel.py:stages`

    `torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT -m tessel run PLAN`
    """
    options.check()
    wanted = job_options(RunOptions, options)
    wanted.check()
    with join_team() as role:
        role.require(wanted)
        subject = _subject(plan, wanted)
        role.require_devices(subject)
        if options.csv is not None:
            if role.is_first:
                _write_orders(subject, options.csv, as_json=options.json)
            return
        devices = role.devices(subject, wanted)
        programs = find_programs(subject, wanted, devices)
        if not role.is_first:
            role.take_part(plan, subject, programs, settings_of(subject, wanted, devices))
            return
        note = None if subject.plan is None else note_of_other_device(subject.plan.device_model, devices.kind)
        if note is not None and not programs.are_sleeping:
            messages.note(note)
        report = _run(plan, subject, programs, wanted, devices, role)
        role.conclude(is_right=not report.check.failures)
    _show(subject, programs, report, options, role)
    require_right(report)


def _show(
    subject: Subject, programs: Programs, report: RunReport, options: RunCommandOptions, role: ProcessRole
) -> None:
    """Write and print what the run showed."""
    from tessel.documents import save_document

    if options.trace is not None:
        save_document(options.trace, trace_of(subject, report))
        messages.note(f"trace written to {options.trace}")
    if options.picture is not None:
        draw_run(subject, report, options.picture)
        messages.note(f"picture written to {options.picture}")
    if options.json:
        console.print_json(run_document(report, num_nodes=role.num_nodes))
    else:
        print_run(subject, programs, report, num_nodes=role.num_nodes)


def _write_orders(subject: Subject, path: Path, *, as_json: bool) -> None:
    """Write the orders as the CSV that torch.distributed.pipelining loads, and run nothing."""
    from tessel.documents import save_document
    from tessel.engine import actions_of, actions_to_csv, renumbered

    save_document(path, actions_to_csv(renumbered(actions_of(subject.schedule))).encode())
    messages.note(f"orders written to {path}")
    if as_json:
        from scripts.documents.runs import OrdersWritten

        console.print_json(OrdersWritten(orders=str(path)))


def _run(
    plan: Path, subject: Subject, programs: Programs, options: RunOptions, devices: Devices, role: ProcessRole
) -> RunReport:
    overheads = None if role.is_of_team else find_overheads(subject, options, devices)
    settings = role.on_all_nodes(plan, settings_of(subject, options, devices))
    return run_subject(subject, programs, settings, overheads)


def _subject(path: Path, options: RunOptions) -> Subject:
    """Return what a document says is to be run.

    Raises:
        UsageError: `--step` is given for a plan, or a shape that it does not have.
        DocumentError: a file cannot be read.
    """
    schedule, plan = load_planned(path)
    return (
        subject_of_schedule(path.stem, schedule, options) if plan is None else subject_of_plan(plan, options)
    )
