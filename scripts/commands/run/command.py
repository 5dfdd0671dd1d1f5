"""`tessel run`: run a plan's schedule and 1F1B on real ranks, check what they compute, and time them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.run.process_role import ProcessRole, join_team
from scripts.commands.run.report import (
    draw_run,
    note_of_other_device,
    print_run,
    run_document,
    trace_of,
)
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import JsonOption, RecordsOption, job_options
from scripts.terminal import console
from tessel.errors import UsageError
from tessel.jobs.plan import load_planned
from tessel.jobs.running.options import Device, Overheads, RunOptions
from tessel.jobs.running.programs import Programs, find_programs
from tessel.jobs.running.run import require_right, run_subject, settings_of
from tessel.jobs.running.subject import Subject, find_overheads, subject_of_plan, subject_of_schedule
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS

if TYPE_CHECKING:
    from tessel.engine.devices import Devices
    from tessel.engine.run import RunReport

_PICTURES = (".svg", ".pdf", ".png")


@dataclass(frozen=True, kw_only=True)
class RunCommandOptions:
    """What is run, on what, how often, and what is written about it."""

    stages: Annotated[
        str | None,
        "compiled: the plan's functions, as TVM compiles them (the default for a plan). torch: the "
        "model's own modules; for plans of a module:function. sleep: stages that take as long as their "
        "blocks (the default for a schedule). module:function or file.py:function: your own stages.",
    ] = None
    step: Annotated[str | None, "How long a step of a schedule takes, such as 5ms; 10ms if left out."] = None
    device: Annotated[
        Device | None,
        "Device of the ranks; if left out, the plan's target, or cpu for a schedule. Ranks that "
        "have a GPU each communicate over NCCL, others through the host.",
    ] = None
    repeats: Annotated[int, "Timed steps of each schedule."] = 3
    timeout: Annotated[str, "Time limit for the ranks, such as 5m."] = "5m"
    trace: Annotated[
        Path | None,
        "Write the measured timeline of every rank as a Perfetto trace, such as real.json; none if left out.",
    ] = None
    picture: Annotated[
        Path | None, "Draw the measured timeline of every rank (.svg, .pdf or .png); none if left out."
    ] = None
    csv: Annotated[
        Path | None,
        "Only write the orders as the CSV that torch.distributed.pipelining loads, such as orders.csv.",
    ] = None
    orders: Annotated[
        Path | None,
        "Run the orders of this CSV (orders.csv), as --csv writes them; the document's own if left out.",
    ] = None
    overheads: Annotated[
        Overheads,
        "Overheads that ranks add to their blocks: known, from the records, or measured once if "
        "missing; anew, measured again; none, left out.",
    ] = Overheads.KNOWN
    shape: Annotated[
        list[str] | None, "Which of the shapes that the plan has: input_ids=1,64; the largest if left out."
    ] = None
    model: Annotated[
        str | None,
        "The module:function or file.py:function that the plan was tuned for: running it runs that "
        "code, so name it here too, or give --trust-model. Or the .onnx or .pt2 file, where it was moved "
        "since it was tuned.",
    ] = None
    trust_model: Annotated[bool, "Run whatever code the plan names as its model."] = False
    records: RecordsOption = DEFAULT_RECORDS
    seed: Annotated[int, "Seed of weights and inputs."] = 0
    json: JsonOption = False

    def check(self) -> None:
        """Refuse a picture that cannot be drawn.

        Raises:
            UsageError: one of them is wrong.
        """
        if self.picture is not None and self.picture.suffix not in _PICTURES:
            raise UsageError(f"--picture {self.picture} is none of {', '.join(_PICTURES)}; change the suffix")


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
