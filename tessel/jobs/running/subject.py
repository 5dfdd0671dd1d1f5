"""Subject of a run: a plan or a schedule, its devices, and the overheads of their ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tessel.errors import UsageError
from tessel.jobs.inputs.arguments import describe_shapes, parse_duration
from tessel.jobs.running.options import Device, Overheads, RunOptions
from tessel.progress import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tessel.engine.devices import Devices
    from tessel.engine.synthetic.overheads import Calibration
    from tessel.jobs.inputs.plan_view import PlanView
    from tessel.schedule import Schedule
    from tessel.tuned_plan import TunedPlan


@dataclass(frozen=True)
class Subject:
    """Subject of a run: a plan, or a schedule alone, whose steps may have no length."""

    name: str
    schedule: Schedule
    step_us: float | None
    plan: TunedPlan | None


def subject_of_schedule(name: str, schedule: Schedule, options: RunOptions) -> Subject:
    """Return what a schedule alone says is to be run, whose steps may have no length."""
    step_us = None if options.step is None else parse_duration(str(options.step)) * 1e6
    return _as_asked(Subject(name, schedule, step_us, None), options)


def subject_of_plan(plan: PlanView, options: RunOptions) -> Subject:
    """Return what a plan says is to be run; a table's plan has no programs, and its stages sleep.

    Raises:
        UsageError: `step` is given for a plan, or a shape that it does not have.
    """
    if options.step is not None:
        raise UsageError("--step is for schedules; the steps of a plan have a length")
    plan.schedule.require_equal("a real run")
    tuned = plan.tuned
    if plan.planned is not None:
        plan.planned.layout.refuse_bubbles("a real run")
    job = None if plan.planned is None else plan.planned.job
    sharding = job.sharding if job is not None else tuned.state_sharding if tuned is not None else "none"
    if sharding != "none":
        messages.note(
            f"the plan divides {sharding} among replicas (--sharding); here every replica keeps all of it, "
            "and gradients are summed as without"
        )
    plan.schedule.require_apart("a real run")
    name = plan.title if plan.planned is None else plan.planned.profile.name
    name = name if tuned is None else tuned.model
    return _as_asked(Subject(name, plan.schedule, plan.step_us, tuned), options)


def _as_asked(subject: Subject, options: RunOptions) -> Subject:
    """Return it with the model's file, the shapes and the orders that the options name."""
    if options.model is not None:
        subject = _with_file(subject, options.model)
    if options.shape:
        subject = _for_shapes(subject, options.shape)
    return subject if options.orders is None else _with_orders(subject, options.orders)


def find_devices(subject: Subject, wanted: Device | None, num_ranks: int | None = None) -> Devices:
    """Return a device for each rank, of the kind that was asked for or else of the plan's target.

    Args:
        num_ranks: ranks on this machine; None for all.

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
        num_ranks or subject.schedule.placement.devices,
        num_gpus=torch.cuda.device_count(),
        has_nccl=torch.distributed.is_nccl_available(),
    )


def find_overheads(subject: Subject, options: RunOptions, devices: Devices) -> Calibration | None:
    """Look up the overheads of real ranks in the records, or measure and record them.

    They are those of equal micro-batches, and None for others.
    """
    if options.overheads is Overheads.NONE or subject.schedule.classes is not None:
        return None
    from records import open_store
    from records.database.connection import without_password
    from tessel.engine.synthetic.overheads import known_overheads
    from tuner.backends.environment import environment_of
    from tuner.targets.resolution import resolve_target

    num_ranks = subject.schedule.placement.devices
    target = resolve_target(devices.kind, num_threads=1)
    with open_store(options.records) as store, messages.bar(f"overheads of {num_ranks} ranks"):
        found = known_overheads(
            store,
            num_ranks,
            target=target.text,
            machine=environment_of(target),
            devices=devices,
            anew=options.overheads is Overheads.ANEW,
        )
    place = without_password(options.records)
    origin = f"measured, and kept in {place}" if found.is_new else f"found in {place}"
    messages.note(f"overheads of {num_ranks} ranks {origin}")
    return found.calibration


def _with_file(subject: Subject, model: str) -> Subject:
    """Return the plan with its model's file where the user says that it lies; a fingerprint tells others."""
    import msgspec

    from tuner.frontend import names_file

    if subject.plan is None or not (names_file(subject.plan.model) and names_file(model)):
        return subject
    others = tuple(msgspec.structs.replace(plan, model=model) for plan in subject.plan.other_shapes)
    plan = msgspec.structs.replace(subject.plan, model=model, other_shapes=others)
    return Subject(model, subject.schedule, subject.step_us, plan)


def _for_shapes(subject: Subject, wanted: Mapping[str, tuple[int, ...]]) -> Subject:
    """Return the plan's part for some of its inputs' shapes."""
    plans = () if subject.plan is None else (subject.plan, *subject.plan.other_shapes)
    for plan in plans:
        if all(plan.shapes.get(name) == tuple(shape) for name, shape in wanted.items()):
            return Subject(plan.model, plan.schedule, plan.step_us, plan)
    known = "; ".join(describe_shapes(plan.shapes) for plan in plans if plan.shapes) or "none by name"
    raise UsageError(
        f"--shape {describe_shapes(wanted)}: the document has {known}; name one of these, or tune the model "
        "for that too"
    )


def _with_orders(subject: Subject, path: Path) -> Subject:
    """Put the orders of a CSV in the place of the schedule's; each action starts as early as they allow."""
    from tessel.documents import read_document
    from tessel.engine import actions_from_csv, schedule_of_actions

    actions = actions_from_csv(read_document(path).decode())
    schedule = schedule_of_actions(subject.schedule.placement, actions, found_by=path.name)
    return replace(subject, schedule=schedule)
