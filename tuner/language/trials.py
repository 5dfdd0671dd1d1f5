"""Measure proposals as MetaSchedule measures its candidates: same builder, same runner, same records.

Checked in tests/tuner/language/test_trials.py.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.s_tir import meta_schedule

from records import Environment, RecordStore, Status
from records.files.metaschedule import BACKEND, Trial, trial_of
from tuner.backends.metaschedule.backend import build_trial
from tuner.errors import TunerError
from tuner.graph.relax_types import IRModule
from tuner.language.sketches import KernelSpace, Proposal
from tuner.targets.target import Target

logger = logging.getLogger(__name__)

_BATCH = 16

_BUILD_TIMEOUT_S, _TRIAL_TIMEOUT_S = 60.0, 10.0
"""As the backend `metaschedule` has them: a build takes 0.3 s, and a kernel of a model milliseconds."""

_DRAWS_A_SAMPLE = 8
"""Draws for each sample that is wanted, after which a space holds no more that are new."""


@dataclass(frozen=True, slots=True)
class MeasuredProposal:
    """A proposal and its latency.

    Attributes:
        proposal: what was built.
        latency_us: median of its samples; None where it could not be built or run.
    """

    proposal: Proposal
    latency_us: float | None


def new_builder() -> Any:
    """Return TVM's builder with a process of its own, as MetaSchedule gets it."""
    return meta_schedule.builder.LocalBuilder(
        max_workers=1, f_build=build_trial, timeout_sec=_BUILD_TIMEOUT_S
    )


def new_runner() -> Any:
    """Return TVM's runner with a process of its own, as MetaSchedule gets it."""
    return meta_schedule.runner.LocalRunner(timeout_sec=_TRIAL_TIMEOUT_S)


def measure_proposals(
    space: KernelSpace,
    proposals: Sequence[Proposal],
    *,
    builder: Any,
    runner: Any,
    keep: Any | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[MeasuredProposal]:
    """Build and run proposals in order; those that are not legal are failures.

    Args:
        space: of the kernel.
        proposals: what to measure.
        builder: TVM's.
        runner: TVM's.
        keep: called with every batch in the manner of MetaSchedule's callbacks, such as `KeepTrials`.
        on_progress: called with the number measured and the total.
    """
    found: list[MeasuredProposal] = []
    for start in range(0, len(proposals), _BATCH):
        batch = proposals[start : start + _BATCH]
        found += _measure_batch(space, batch, builder, runner, keep)
        if on_progress is not None:
            on_progress(len(found), len(proposals))
    return found


def recorded_trials(
    store: RecordStore, tuned_for: Any, target: Target, environment: Environment
) -> dict[str, tuple[KernelSpace, dict[Proposal, float | None]]]:
    """Return the trials that the records hold of this device with so many threads, by kernel.

    Left out are kernels without decisions, or with ones that the language cannot write, and trials that
    follow none of a kernel's sketches, such as those that evolution changed beyond their decisions. Of a
    proposal that was measured several times, the last latency counts; None is a failure.

    Raises:
        RecordError: the records cannot be read.
    """
    found: dict[str, tuple[KernelSpace, dict[Proposal, float | None]]] = {}
    unwritable: set[str] = set()
    for record in store.iterate(backend=BACKEND, target=target.text, role="task"):
        where = record.measurement.environment
        trial = trial_of(record)
        if trial is None or trial.task in unwritable:
            continue
        if (where.device_model, where.num_threads) != (environment.device_model, environment.num_threads):
            continue
        if trial.task not in found:
            space = _space_of(trial, tuned_for)
            if space is None:
                unwritable.add(trial.task)
                continue
            found[trial.task] = space, {}
        space, measured = found[trial.task]
        proposal = space.read_trace(trial.trace)
        if proposal is not None:
            is_ok = record.measurement.status is Status.OK
            measured[proposal] = record.measurement.latency_us if is_ok else None
    return found


def new_samples(
    space: KernelSpace, count: int, known: Collection[Proposal], rng: np.random.Generator
) -> list[Proposal]:
    """Return distinct schedules as TVM draws them, none of them known; fewer where a space is small."""
    found: dict[Proposal, None] = {}
    for _ in range(_DRAWS_A_SAMPLE * count):
        if len(found) == count:
            break
        proposal = space.sample(rng)
        if proposal not in known:
            found[proposal] = None
    return list(found)


def _space_of(trial: Trial, tuned_for: Any) -> KernelSpace | None:
    try:
        module = meta_schedule.database.Workload.from_json([trial.task, trial.module]).mod
    except Exception:  # TVM raises whatever its readers raise, and records may come from a stranger
        return None
    try:
        space = KernelSpace(trial.task, module, tuned_for)
        return space if space.has_decisions else None
    except TunerError as error:
        logger.debug("kernel %s is left out: %s", trial.task, error)
        return None


def measure_schedules(
    module: IRModule,
    tuned_for: Any,
    schedules: Sequence[Any],
    *,
    builder: Any,
    runner: Any,
    keep: Any | None = None,
) -> list[float | None]:
    """Build and run schedules of a kernel, ready to be built; return the medians of their latencies in µs.

    Args:
        module: whose `main` is the kernel.
        tuned_for: TVM's target.
        schedules: what to measure.
        builder: TVM's.
        runner: TVM's.
        keep: called with the batch in the manner of MetaSchedule's callbacks, such as `KeepTrials`.
    """
    arguments = meta_schedule.arg_info.ArgInfo.from_entry_func(module)
    built = builder.build([meta_schedule.builder.BuilderInput(each.mod, tuned_for) for each in schedules])
    results = [_run(each, tuned_for, arguments, runner) for each in built]
    if keep is not None and schedules:
        candidates = [meta_schedule.MeasureCandidate(schedule, arguments) for schedule in schedules]
        unused = meta_schedule.task_scheduler.RoundRobin()  # TVM's interface asks for one
        keep.apply(unused, 0, candidates, built, results)
    return [_latency_us(each) for each in results]


def _measure_batch(
    space: KernelSpace, proposals: Sequence[Proposal], builder: Any, runner: Any, keep: Any | None
) -> list[MeasuredProposal]:
    schedules = [space.schedule(proposal) for proposal in proposals]
    legal = [schedule for schedule in schedules if schedule is not None]
    latency = iter(
        measure_schedules(space.module, space.tuned_for, legal, builder=builder, runner=runner, keep=keep)
    )
    return [
        MeasuredProposal(proposal, None if schedule is None else next(latency))
        for proposal, schedule in zip(proposals, schedules, strict=True)
    ]


def _run(built: Any, tuned_for: Any, arguments: Any, runner: Any) -> Any:
    if built.error_msg is not None:
        return meta_schedule.runner.RunnerResult(None, built.error_msg)
    device = "cuda" if tuned_for.kind.name == "cuda" else "cpu"
    given = meta_schedule.runner.RunnerInput(built.artifact_path, device, arguments)
    (future,) = runner.run([given])
    return future.result()


def _latency_us(result: Any) -> float | None:
    seconds = [float(each) for each in (result.run_secs or ())]
    return statistics.median(seconds) * 1e6 if seconds else None
