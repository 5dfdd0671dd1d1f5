"""Run a schedule and 1F1B in turn on real ranks, check their results, and compare their makespans.

Results are checked against a reference that the caller names, usually the unpipelined model: the loss of
each micro-batch and each weight's mean gradient (`tessel.engine.results_check`), or in inference each output
of each micro-batch (`tessel.engine.outputs_check`); without one they are to be finite. Measured makespans are
reported next to simulated ones; on a machine with fewer cores than ranks the two must differ, and the report
states how many ranks share a core. Checked in tests/tessel/engine/test_run.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from records.cores import num_usable_cores
from tessel.comparison import BASELINE
from tessel.engine.actions import actions_of, check_chain, rank_by_stage, require_valid, stages_before
from tessel.engine.devices import CPUS, Devices
from tessel.engine.job import Event, JobSpec, RankResult, RankSum, RunSpec, actions_as_lines
from tessel.engine.measured_timeline import begin_of, with_measured_spans
from tessel.engine.outputs_check import check_outputs, outputs_path, with_outputs
from tessel.engine.ranks.launch import launch
from tessel.engine.results_check import ExpectedResults, RankGradients, ResultsCheck, check_results
from tessel.engine.synthetic.overheads import Calibration, makespan_with_overheads_ms
from tessel.handwritten import HANDWRITTEN
from tessel.handwritten.construction.stages import read_pipeline
from tessel.handwritten.strongest import build_strongest
from tessel.orders import earliest_starts
from tessel.schedule import Schedule

SEARCHED = "searched"


@dataclass(frozen=True, slots=True)
class StagePrograms:
    """Who builds the programs of the stages.

    Attributes:
        provider: `module:function` that builds them in each rank.
        spec: what the provider is given, as JSON text.
        copies: of the pipeline among the stages, each of which runs a share of a step's micro-batches.
        branches: the stages that each stage receives from; empty where they are a chain, or copies of one.
        sums: of gradients over ranks at the end of a step.
        returns_outputs: whether programs keep the model's outputs when they are told to
            (`tessel.engine.program.OutputsProgram`).
    """

    provider: str
    spec: str = ""
    copies: int = 1
    branches: tuple[tuple[int, ...], ...] = ()
    sums: tuple[RankSum, ...] = ()
    returns_outputs: bool = False


class Launch(Protocol):
    """Runs the ranks of a job; see `tessel.engine.ranks.launch.launch`."""

    def __call__(
        self, job: JobSpec, /, *, timeout_s: float, read: Callable[[Path], None]
    ) -> tuple[RankResult, ...]:
        """Return what every rank reports; `read` is called with the folder of what they wrote."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How often, for how long and where ranks run.

    Attributes:
        num_threads: threads of each rank.
        repeats: counted steps of each schedule.
        timeout_s: longest the ranks may take.
        devices: where each rank computes, and what carries tensors between them.
        launch: runs a job's ranks and returns what they report; all on this machine unless told otherwise.
        ranks_here: ranks on this machine; None for all.
    """

    num_threads: int = 1
    repeats: int = 3
    timeout_s: float = 300.0
    devices: Devices = CPUS
    launch: Launch = launch
    ranks_here: int | None = None


DEFAULT_SETTINGS = RunSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What simulated makespans assume.

    Attributes:
        step_us: microseconds of a step of the schedule; None for the durations that blocks really had.
        overheads: what real ranks take beyond what is simulated, where it is known.
    """

    step_us: float | None = None
    overheads: Calibration | None = None


BLOCKS_AS_THEY_RAN = Simulation()
"""Every block as long as it really took, and nothing beyond."""


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


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's process was predicted to hold in steps, and what it held; see `RankResult`."""

    predicted_bytes: int | None
    held_bytes: int | None


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What running schedules showed.

    Attributes:
        figures: by schedule.
        check: what comparing results with the reference showed, over schedules.
        ranks_per_core: ranks that share a core of this machine; real times equal simulated ones only up to 1.
        ranks_per_gpu: ranks on the GPU that most of them share, likewise; 0 where they compute on the CPU.
        clock_error_ms: by how much times of ranks on other machines may be off; 0 where all are on one.
        memory: of each rank.
        sums_ms: median of the sums of gradients over ranks that follow the last block, of the rank that takes
            longest, measured apart from the steps; None where ranks share no weights.
        events: every counted step's events by schedule, then by rank.
    """

    figures: dict[str, RunFigures]
    check: ResultsCheck
    ranks_per_core: float
    ranks_per_gpu: int
    events: dict[str, tuple[tuple[tuple[Event, ...], ...], ...]]
    clock_error_ms: float = 0.0
    memory: tuple[RankMemory, ...] = ()
    sums_ms: float | None = None

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
    programs: StagePrograms,
    *,
    expected: ExpectedResults | None = None,
    settings: RunSettings = DEFAULT_SETTINGS,
    simulation: Simulation = BLOCKS_AS_THEY_RAN,
) -> RunReport:
    """Run a schedule and, where it applies, 1F1B in turn, and check both.

    Wrong results are no error here: the report says which tensors are wrong.

    Args:
        programs: who builds the programs of its stages.
        expected: what the results are compared with; where it is None they are to be finite.
        settings: how long, how often and where ranks run.
        simulation: what the simulated makespans in the report assume.

    Raises:
        EngineError: a schedule cannot run, a rank failed, or the results are not there.
    """
    schedules = _schedules_of(schedule, programs)
    gradients: dict[str, RankGradients] = {}

    of_outputs: list[ResultsCheck] = []
    ranks, micro_batches = schedule.placement.devices, schedule.micro_batches * programs.copies

    def read(folder: Path) -> None:
        for name in schedules:
            gradients[name] = _read_gradients(folder, name, ranks)
        if job.write_outputs:
            files = {name: [outputs_path(folder, name, rank) for rank in range(ranks)] for name in schedules}
            of_outputs.append(check_outputs(files, expected, micro_batches=micro_batches))

    job = _job(schedules, programs, settings)
    results = settings.launch(job, timeout_s=settings.timeout_s, read=read)
    if of_outputs and of_outputs[0].reference_name:
        (check,) = of_outputs
    else:
        of_steps = check_results(
            {name: (results, gradients[name]) for name in schedules},
            expected,
            micro_batches=micro_batches,
            last_stage=len(job.ranks_by_stage) - 1,
            is_trained=not _is_inference(schedule),
        )
        check = with_outputs(of_steps, *of_outputs) if of_outputs else of_steps
    return RunReport(
        figures=_figures(results, schedules, simulation),
        check=check,
        ranks_per_core=(settings.ranks_here or job.num_ranks) * settings.num_threads / num_usable_cores(),
        ranks_per_gpu=settings.devices.ranks_per_gpu,
        memory=tuple(
            RankMemory(predicted_bytes=result.predicted_bytes, held_bytes=result.held_bytes)
            for result in results
        ),
        clock_error_ms=1000 * max(result.clock_error_s for result in results),
        sums_ms=_sums_ms(results),
        events={name: _steps(results, name) for name in schedules},
    )


def take_part(schedule: Schedule, programs: StagePrograms, *, settings: RunSettings) -> None:
    """Run what is run here of a job whose results another process gathers and checks.

    Args:
        schedule: as that process runs it.
        programs: likewise.
        settings: of which `launch` runs the ranks that are here.

    Raises:
        EngineError: a schedule cannot run, or a rank failed.
    """
    job = _job(_schedules_of(schedule, programs), programs, settings)
    settings.launch(job, timeout_s=settings.timeout_s, read=lambda folder: None)


def makespan_ms(step: Sequence[Sequence[Event]]) -> float:
    """Return the time from the first rank's begin to the last rank's end, in milliseconds."""
    return (max(events[-1].end_s for events in step if events) - begin_of(step)) * 1000


def one_f_one_b_of(schedule: Schedule) -> dict[str, Schedule]:
    """Return the strongest 1F1B on the same placement, as in comparisons; nothing where it does not apply.

    Micro-batches that differ are run as they are given.
    """
    rule = next(rule for rule in HANDWRITTEN if rule.name == BASELINE)
    if rule.why_not(schedule.placement, schedule.micro_batches) is not None:
        return {}
    if (batch := schedule.classes) is not None:
        orders = rule.orders(schedule.placement, micro_batches=schedule.micro_batches)
        starts = earliest_starts(schedule.placement, orders, batch)
        given = Schedule.of(
            schedule.placement,
            starts,
            micro_batches=schedule.micro_batches,
            batch=batch,
            found_by=f"{BASELINE}, as given",
        )
        return {BASELINE: given}
    strongest = build_strongest(
        rule, schedule.placement, micro_batches=schedule.micro_batches, memory=schedule.memory
    )
    return {BASELINE: strongest}


def _schedules_of(schedule: Schedule, programs: StagePrograms) -> dict[str, Schedule]:
    check_chain(schedule.placement, copies=programs.copies, branches=programs.branches)
    schedules = {SEARCHED: schedule, **one_f_one_b_of(schedule)}
    for each in schedules.values():
        require_valid(each)
    return schedules


def _job(schedules: Mapping[str, Schedule], programs: StagePrograms, settings: RunSettings) -> JobSpec:
    schedule = schedules[SEARCHED]
    return JobSpec(
        num_ranks=schedule.placement.devices,
        ranks_by_stage=rank_by_stage(schedule),
        micro_batches=schedule.micro_batches,
        provider=programs.provider,
        provider_spec=programs.spec,
        runs=tuple(
            RunSpec(name=name, actions=actions_as_lines(actions_of(each))) for name, each in schedules.items()
        ),
        repeats=settings.repeats,
        num_threads=settings.num_threads,
        devices=settings.devices,
        write_outputs=programs.returns_outputs and _is_inference(schedule),
        stages_before=stages_before(schedule),
        sums=programs.sums,
    )


def _is_inference(schedule: Schedule) -> bool:
    return not read_pipeline(schedule.placement).has_backward


def _steps(results: Sequence[RankResult], name: str) -> tuple[tuple[tuple[Event, ...], ...], ...]:
    return tuple(zip(*(result.events[name] for result in results), strict=True))


def _sums_ms(results: Sequence[RankResult]) -> float | None:
    """Return the median, over repeats, of what the slowest rank took in sums of gradients."""
    repeats = tuple(zip(*(result.sums_s for result in results), strict=True))
    return 1000 * statistics.median(map(max, repeats)) if repeats else None


def _figures(
    results: Sequence[RankResult], schedules: Mapping[str, Schedule], simulation: Simulation
) -> dict[str, RunFigures]:
    step_us, overheads = simulation.step_us, simulation.overheads
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
            if overheads is None or schedule.classes is not None
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
