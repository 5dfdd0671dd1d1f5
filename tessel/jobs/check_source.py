"""Source of a check: a CSV of orders, a layout of Megatron, a schedule, or a plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tessel.errors import UsageError
from tessel.jobs.inputs.arguments import parse_bandwidth, parse_bytes, parse_limits
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.checking.case import Case
    from tessel.checking.sources import Pricing
    from tessel.exports.megatron import MegatronLayout
    from tessel.jobs.inputs.check_options import CheckOptions
    from tessel.jobs.plan import Plan
    from tessel.planning.saved_plan import SavedPlan


def load_case(file: str, options: CheckOptions) -> Case:
    """Return what is to be checked.

    Raises:
        DocumentError: the file cannot be read, or is nothing that can be checked.
        ScheduleError: its orders are incomplete, or its stages cannot be priced.
        UsageError: an option is missing that the file needs.
    """
    from records.own_files import FileKind, other_files_named
    from tessel.checking.file_kinds import kind_of_file
    from tessel.checking.printed_orders import csv_of_printed
    from tessel.documents import read_document
    from tessel.errors import DocumentError

    path = Path(file)
    if kind_of_file(file) == "layout" and not path.exists():
        return _layout_case(file, file, options)
    with other_files_named(path, "a schedule, a plan or a CSV of orders", DocumentError, (FileKind.TABLE,)):
        text = read_document(path).decode()
    match kind_of_file(file):
        case "layout":
            return _layout_case(path.name, text, options)
        case "table" if options.devices is None:
            raise UsageError("--devices is missing; a table of Megatron does not say it")
        case "document":
            return _document_case(path, options)
        case _:
            return _csv_case(path, csv_of_printed(text, devices=options.devices), options)


def _csv_case(path: Path, text: str, options: CheckOptions) -> Case:
    from tessel.checking.communication import check_communication
    from tessel.checking.overlap import pairs_of_cells
    from tessel.checking.sources import case_of_csv
    from tessel.engine.actions import actions_from_csv, cells_from_csv
    from tessel.engine.errors import EngineError
    from tessel.errors import DocumentError

    try:
        actions = actions_from_csv(text)
    except EngineError as error:
        raise DocumentError(f"{path}: {error}") from error
    pricing = _pricing(options, len(actions))
    case = case_of_csv(path.name, actions, pricing, cuts=options.parsed_cuts())
    check_communication(text)
    pairs = pairs_of_cells(cells_from_csv(text))
    if options.overlap_factor is not None:
        if not pairs:
            raise UsageError(
                f"--overlap-factor has no effect, since {path} has no OVERLAP_F_B cell; leave it out"
            )
        case = replace(case, pairs=pairs, overlap_factor=options.overlap_factor)
    elif pairs:
        messages.note(
            "the actions of an OVERLAP_F_B cell are priced one after the other; --overlap-factor says what "
            "they take of that together"
        )
    if pricing is None:
        messages.note("no profile: every stage counts 1 step forward and 2 backward; --profile prices them")
        return _limited(case, options)
    return case


def _layout_case(name: str, text: str, options: CheckOptions) -> Case:
    from tessel.checking.sources import case_of_megatron

    for option, value in (("--devices", options.devices), ("--micro-batches", options.micro_batches)):
        if value is None:
            raise UsageError(f"{option} is missing; a layout of Megatron does not say it")
    assert options.devices is not None
    assert options.micro_batches is not None
    pricing = _pricing(options, options.devices)
    case = case_of_megatron(
        name,
        read_layout_text(name, text, options.devices),
        pricing,
        micro_batches=options.micro_batches,
        group_size=options.group_size,
    )
    if pricing is None:
        messages.note(
            "no profile: a transformer layer and the loss count 1 step forward and 2 backward each, the "
            "embedding none; --profile prices them"
        )
        return _limited(case, options)
    return case


def read_layout_text(name: str, text: str, devices: int) -> MegatronLayout:
    """Return the layout of a text, as a string or as lists of layers.

    Raises:
        DocumentError: it is none, or Megatron would refuse it.
    """
    from tessel.errors import DocumentError, ScheduleError
    from tessel.exports.megatron import layout_of_names, read_layout

    try:
        if not text.lstrip().startswith("["):
            return read_layout(text, devices)
        stages = json.loads(text)
        if not all(
            isinstance(stage, list) and all(isinstance(each, str) for each in stage) for stage in stages
        ):
            raise DocumentError(f'{name} is no list of lists of layers; write [["embedding", "decoder"], …]')
        return layout_of_names(stages, devices)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DocumentError(f"{name} is no layout: {error}; write Et|t|tL, or lists of layers") from error
    except DocumentError:
        raise
    except ScheduleError as error:
        raise DocumentError(f"{name}: {error}") from error


def _document_case(path: Path, options: CheckOptions) -> Case:
    from tessel.checking.case import case_of_schedule
    from tessel.jobs.plan import load_planned

    schedule, plan = load_planned(path)
    if plan is None:
        return _limited(case_of_schedule(path.name, schedule), options)
    return case_of_plan(path.name, plan, options)


def case_of_plan(name: str, plan: Plan, options: CheckOptions) -> Case:
    """Return the case of a plan, under another limit where one is given."""
    from tessel.checking.case import case_of_schedule

    if plan.planned is not None:
        return _saved_plan_case(name, plan.planned, options)
    case = case_of_schedule(name, plan.schedule, step_us=plan.step_us, static_bytes=plan.static_bytes)
    if options.memory is None:
        return case
    limit = parse_bytes(str(options.memory))
    return replace(case, limits=tuple(limit - static for static in plan.static_bytes))


def _saved_plan_case(name: str, plan: SavedPlan, options: CheckOptions) -> Case:
    import msgspec

    from tessel.checking.case import PricedLayout, case_of_layout, orders_of_schedule

    plan.schedule.require_equal("tessel check")
    job = plan.job
    if options.memory is not None:
        limit = parse_bytes(str(options.memory))
        cluster = msgspec.structs.replace(job.cluster, memory_bytes=limit, device_memory_bytes=())
        job = replace(job, cluster=cluster)
    priced = PricedLayout(profile=plan.profile, layout=plan.layout, job=job)
    return case_of_layout(
        name, priced, orders_of_schedule(plan.schedule), micro_batches=plan.schedule.micro_batches
    )


def _limited(case: Case, options: CheckOptions) -> Case:
    """Return the case with the limit in units that was asked for."""
    if options.memory is None:
        return case
    return replace(case, limits=parse_limits(_units(options.memory), case.placement.devices))


def _pricing(options: CheckOptions, pipeline: int) -> Pricing | None:
    """Return what prices the stages; None without a profile."""
    if options.profile is None:
        return None
    from tessel.checking.sources import Pricing
    from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
    from tessel.planning.job import Job
    from tessel.profiles import load_profile
    from tessel.profiles.profile import Profile

    link = Link(bytes_per_s=parse_bandwidth(options.link), latency_us=options.hop_us)
    given = options.profile
    profile = (
        given
        if isinstance(given, Profile)
        else load_profile(
            given,
            micro_batch=options.micro_batch,
            tensor_parallel=options.tensor_parallel,
            context_parallel=options.context_parallel,
            expert_parallel=options.expert_parallel,
        )
    )
    for note in profile.notes:
        messages.note(note)
    return Pricing(
        profile=profile,
        job=Job(
            cluster=Cluster(
                devices=pipeline * options.data_parallel * options.tensor_parallel * options.context_parallel,
                hop=link,
                collective=link,
                memory_bytes=None if options.memory is None else parse_bytes(str(options.memory)),
            ),
            optimizer=OPTIMIZERS[options.optimizer],
        ),
        micro_batch=options.micro_batch,
        data_parallel=options.data_parallel,
        tensor_parallel=options.tensor_parallel,
        context_parallel=options.context_parallel,
        expert_parallel=options.expert_parallel,
    )


def _units(memory: str | int | Sequence[int]) -> str:
    return str(memory) if isinstance(memory, str | int) else ",".join(map(str, memory))
