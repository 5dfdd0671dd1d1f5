"""Run a plan on ranks of this machine: the call behind `Plan.run`.

Checked in tests/tessel/jobs/test_tuning.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessel.jobs.inputs.keywords import options_of
from tessel.jobs.running.options import Device, Overheads, RunOptions
from tessel.jobs.running.programs import Programs, find_programs
from tessel.jobs.running.subject import Subject, find_devices, find_overheads, subject_of_plan
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.engine.devices import Devices
    from tessel.engine.run import RunReport, RunSettings
    from tessel.engine.synthetic.overheads import Calibration
    from tessel.jobs.inputs.plan_view import PlanView


def run_plan(plan: PlanView, **named: Any) -> RunReport:
    """Return what a run of a plan and of 1F1B showed; see `Plan.run`.

    Raises:
        UsageError: there is no such option, or a value is none.
        EngineError: a rank failed, or results are wrong; names them.
    """
    with messages.verbosity(quiet=not named.pop("progress", True)):
        if named.get("device") is not None:
            named["device"] = Device(named["device"])
        if "overheads" in named:
            named["overheads"] = Overheads(named["overheads"])
        options = options_of(RunOptions, named)
        options.check()
        subject = subject_of_plan(plan, options)
        devices = find_devices(subject, options.device)
        programs = find_programs(subject, options, devices)
        settings = settings_of(subject, options, devices)
        report = run_subject(subject, programs, settings, find_overheads(subject, options, devices))
        require_right(report)
        return report


def settings_of(subject: Subject, options: RunOptions, devices: Devices) -> RunSettings:
    """Return how the ranks are run."""
    from tessel.engine.run import RunSettings

    return RunSettings(
        num_threads=1 if subject.plan is None else subject.plan.num_threads,
        repeats=options.repeats,
        timeout_s=options.timeout_s,
        devices=devices,
    )


def run_subject(
    subject: Subject, programs: Programs, settings: RunSettings, overheads: Calibration | None
) -> RunReport:
    """Run a schedule and 1F1B in turn, with progress on stderr."""
    from tessel.engine.run import Simulation, run_schedule

    ranks = subject.schedule.placement.devices
    with messages.bar(f"running {ranks} ranks", limit_s=settings.timeout_s):
        return run_schedule(
            subject.schedule,
            programs.stages,
            expected=programs.expected,
            settings=settings,
            simulation=Simulation(step_us=programs.step_us, overheads=overheads),
        )


def require_right(report: RunReport) -> None:
    """Refuse a run whose results are wrong.

    Raises:
        EngineError: they are; names the worst tensors with their stages.
    """
    from tessel.engine import EngineError

    if report.check.failures:
        remedy = (
            "run the stages that are named alone, or with --stages torch, to find the one that is wrong"
            if report.check.reference_name
            else "look in the stages that are named, and in those before, for an overflow, a division by 0, "
            "or a root or logarithm of 0 or less"
        )
        raise EngineError(f"{report.check.describe_failures()}; what was timed is not the model: {remedy}")
