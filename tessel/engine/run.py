"""Run a schedule and 1F1B in turn on real ranks, check their results, and compare their makespans.

Results are checked against a reference that the caller names, usually the unpipelined model: the loss of each
micro-batch and each weight's mean gradient (`tessel.engine.results_check`). Measured makespans are reported
next to simulated ones; on a machine with fewer cores than ranks the two must differ, and the report states
how many ranks share a core. Checked in tests/tessel/engine/test_run.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from records.cores import num_usable_cores
from tessel.comparison import BASELINE
from tessel.engine.actions import actions_of, check_chain, rank_by_stage, require_valid
from tessel.engine.devices import CPUS, Devices
from tessel.engine.job import Event, JobSpec, RankResult, RunSpec, actions_as_lines
from tessel.engine.measured_timeline import with_measured_spans
from tessel.engine.ranks.launch import launch
from tessel.engine.results_check import RankGradients, Reference, ResultsCheck, check_results
from tessel.engine.synthetic.overheads import Calibration, makespan_with_overheads_ms
from tessel.handwritten import HANDWRITTEN
from tessel.handwritten.construction.stages import read_pipeline
from tessel.plan import Plan
from tessel.schedule import Schedule
from tuner.plan import TiedParameter

SEARCHED = "searched"

UNPIPELINED = "the unpipelined model"
"""What a reference is called unless it has another name."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How long one schedule took.

    Attributes:
        real_ms: median makespan over the counted steps.
        simulated_ms: makespan of the simulation.
        with_overheads_ms: the same with the overheads of real ranks; None where those are not known.
        real_ms_by_step: every counted step.
    """

    real_ms: float
    simulated_ms: float
    with_overheads_ms: float | None
    real_ms_by_step: tuple[float, ...]


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What running schedules showed.

    Attributes:
        figures: by schedule.
        check: what comparing results with the reference showed, over schedules.
        ranks_per_core: ranks that share a core of this machine; real times equal simulated ones only up to 1.
        ranks_per_gpu: ranks on the GPU that most of them share, likewise; 0 where they compute on the CPU.
        events: every counted step's events by schedule, then by rank.
    """

    figures: dict[str, RunFigures]
    check: ResultsCheck
    ranks_per_core: float
    ranks_per_gpu: int
    events: dict[str, tuple[tuple[tuple[Event, ...], ...], ...]]

    @property
    def max_gradient_error(self) -> float | None:
        """Largest relative error of a gradient; None where none is checked, or the worst has no number."""
        return self.check.worst_gradient.relative_error if self.check.worst_gradient is not None else None

    @property
    def loss_error(self) -> float | None:
        """Largest relative error of a micro-batch's loss; None likewise."""
        return self.check.worst_loss.relative_error if self.check.worst_loss is not None else None


def run_schedule(
    schedule: Schedule,
    *,
    step_us: float | None,
    provider: str,
    provider_spec: str,
    reference: Callable[[int], Reference] | None,
    reference_name: str = UNPIPELINED,
    tied: Sequence[Sequence[TiedParameter]] = (),
    parameters: Sequence[Sequence[str]] = (),
    num_threads: int = 1,
    repeats: int = 3,
    timeout_s: float = 300.0,
    overheads: Calibration | None = None,
    devices: Devices = CPUS,
) -> RunReport:
    """Run a schedule and, where it applies, 1F1B in turn, and check both.

    Wrong results are no error here: the report says which tensors are wrong.

    Args:
        schedule: what to run.
        step_us: microseconds of one of its steps; None simulates with the durations that blocks really had.
        provider: `module:function` that builds the stages' programs in each rank.
        provider_spec: what the provider is given, as JSON text.
        reference: returns losses and mean gradients of the whole model for so many micro-batches; None where
            nothing is to be checked.
        reference_name: what makes them, in words, for the report.
        tied: groups of weights that are one and the same; equal names in several stages are one anyway.
        parameters: weights of each stage, where they are known, to say whose gradient is missing.
        num_threads: threads of each rank.
        repeats: counted steps of each schedule.
        timeout_s: longest the ranks may take.
        overheads: what real ranks take beyond what is simulated, where it is known.
        devices: where each rank computes, and what carries tensors between them.

    Raises:
        EngineError: a schedule cannot run, a rank failed, or the results are not there.
    """
    check_chain(schedule.placement)
    schedules = {SEARCHED: schedule, **_baseline(schedule)}
    for each in schedules.values():
        require_valid(each)
    gradients: dict[str, RankGradients] = {}

    def read(folder: Path) -> None:
        for name in schedules if reference is not None else ():
            gradients[name] = _read_gradients(folder, name, schedule.placement.devices)

    results = launch(
        JobSpec(
            num_ranks=schedule.placement.devices,
            ranks_by_stage=rank_by_stage(schedule),
            micro_batches=schedule.micro_batches,
            provider=provider,
            provider_spec=provider_spec,
            runs=tuple(
                RunSpec(name=name, actions=actions_as_lines(actions_of(each)))
                for name, each in schedules.items()
            ),
            repeats=repeats,
            num_threads=num_threads,
            devices=devices,
            write_gradients=reference is not None,
        ),
        timeout_s=timeout_s,
        read=read,
    )
    check = ResultsCheck()
    if reference is not None:
        check = check_results(
            {name: (results, gradients[name]) for name in schedules},
            reference(schedule.micro_batches),
            reference_name=reference_name,
            last_stage=len(rank_by_stage(schedule)) - 1,
            is_trained=read_pipeline(schedule.placement).has_backward,
            tied=tied,
            parameters=parameters,
        )
    return RunReport(
        figures=_figures(results, schedules, step_us=step_us, overheads=overheads),
        check=check,
        ranks_per_core=schedule.placement.devices * num_threads / num_usable_cores(),
        ranks_per_gpu=devices.ranks_per_gpu,
        events={name: _steps(results, name) for name in schedules},
    )


def run_plan(
    plan: Plan,
    *,
    provider: str,
    provider_spec: str,
    reference: Callable[[int], Reference] | None,
    reference_name: str = UNPIPELINED,
    repeats: int = 3,
    timeout_s: float = 300.0,
    overheads: Calibration | None = None,
    devices: Devices = CPUS,
) -> RunReport:
    """Run the plan's schedule and 1F1B in turn, and check both; arguments are those of `run_schedule`.

    Raises:
        EngineError: the schedule cannot run, a rank failed, or the results are not there.
    """
    return run_schedule(
        plan.schedule,
        step_us=plan.step_us,
        provider=provider,
        provider_spec=provider_spec,
        reference=reference,
        reference_name=reference_name,
        tied=plan.tied,
        parameters=[stage.parameters for stage in plan.stages],
        num_threads=plan.num_threads,
        repeats=repeats,
        timeout_s=timeout_s,
        overheads=overheads,
        devices=devices,
    )


def makespan_ms(step: Sequence[Sequence[Event]]) -> float:
    """Return the time from the first rank's begin to the last rank's end, in milliseconds."""
    begin = min(events[0].ready_s for events in step if events)
    end = max(events[-1].end_s for events in step if events)
    return (end - begin) * 1000


def _baseline(schedule: Schedule) -> dict[str, Schedule]:
    """Return 1F1B on the same placement, or nothing where it does not apply."""
    rule = next(rule for rule in HANDWRITTEN if rule.name == BASELINE)
    if rule.why_not(schedule.placement, schedule.micro_batches) is not None:
        return {}
    return {BASELINE: rule.build(schedule.placement, micro_batches=schedule.micro_batches)}


def _steps(results: Sequence[RankResult], name: str) -> tuple[tuple[tuple[Event, ...], ...], ...]:
    return tuple(zip(*(result.events[name] for result in results), strict=True))


def _figures(
    results: Sequence[RankResult],
    schedules: Mapping[str, Schedule],
    *,
    step_us: float | None,
    overheads: Calibration | None,
) -> dict[str, RunFigures]:
    if step_us is None:
        steps = [step for name in schedules for step in _steps(results, name)]
        schedules = {name: with_measured_spans(schedule, steps) for name, schedule in schedules.items()}
        overheads = overheads.without_actions() if overheads is not None else None
        step_us = 1.0
    figures = {}
    for name, schedule in schedules.items():
        real_ms = tuple(makespan_ms(step) for step in _steps(results, name))
        figures[name] = RunFigures(
            real_ms=statistics.median(real_ms),
            simulated_ms=schedule.makespan * step_us / 1000,
            with_overheads_ms=None
            if overheads is None
            else makespan_with_overheads_ms(schedule, overheads, step_us=step_us),
            real_ms_by_step=real_ms,
        )
    return figures


def _read_gradients(folder: Path, name: str, num_ranks: int) -> RankGradients:
    """Read the gradients that every rank wrote."""
    found: dict[tuple[str, int], list[tuple[int, np.ndarray]]] = {}
    for rank in range(num_ranks):
        with np.load(folder / f"gradients-{name}-{rank}.npz", allow_pickle=False) as arrays:
            for key in arrays.files:
                stage, _, parameter = key.partition("/")
                found.setdefault((parameter, int(stage)), []).append((rank, arrays[key]))
    return found
