"""Measure proposals as MetaSchedule measures its candidates: same builder, same runner, same records.

Checked in tests/tuner/language/test_trials.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import meta_schedule

from records import Environment, RecordStore, Status
from records.metaschedule import BACKEND, trial_of
from tuner.backends.schedule_trials import task_name
from tuner.language.sketches import KernelSpace, Proposal
from tuner.target import Target

_BATCH = 16


@dataclass(frozen=True, slots=True)
class MeasuredProposal:
    """A proposal and its latency.

    Attributes:
        proposal: what was built.
        latency_us: median of its samples; None where it could not be built or run.
    """

    proposal: Proposal
    latency_us: float | None


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
        keep: told of every batch as MetaSchedule tells its callbacks, such as `KeepTrials`.
        on_progress: told how many of how many are measured.
    """
    found: list[MeasuredProposal] = []
    for start in range(0, len(proposals), _BATCH):
        batch = proposals[start : start + _BATCH]
        found += _measure_batch(space, batch, builder, runner, keep)
        if on_progress is not None:
            on_progress(len(found), len(proposals))
    return found


def known_trials(
    store: RecordStore, spaces: Sequence[KernelSpace], target: Target, environment: Environment
) -> Iterator[tuple[KernelSpace, MeasuredProposal]]:
    """Yield the trials of these kernels that the records hold, of this device with so many threads.

    Trials that follow none of the kernel's sketches, such as those that evolution changed beyond their
    decisions, are left out.

    Raises:
        RecordError: the records cannot be read.
    """
    space_by_name = {task_name(space.module): space for space in spaces}
    for record in store.iterate(backend=BACKEND, target=target.text, role="task"):
        where = record.measurement.environment
        trial = trial_of(record)
        same_device = (where.device_model, where.num_threads) == (
            environment.device_model,
            environment.num_threads,
        )
        if trial is None or trial.task not in space_by_name or not same_device:
            continue
        space = space_by_name[trial.task]
        proposal = space.read_trace(trial.trace)
        if proposal is not None:
            is_ok = record.measurement.status is Status.OK
            yield space, MeasuredProposal(proposal, record.measurement.latency_us if is_ok else None)


def best_so_far(measured: Sequence[MeasuredProposal], counts: Sequence[int]) -> list[float]:
    """Return the least latency after so many proposals; infinite where all of them failed."""
    latencies = [math.inf if each.latency_us is None else each.latency_us for each in measured]
    return [min(latencies[:count], default=math.inf) for count in counts]


def _measure_batch(
    space: KernelSpace, proposals: Sequence[Proposal], builder: Any, runner: Any, keep: Any | None
) -> list[MeasuredProposal]:
    schedules = [space.schedule(proposal) for proposal in proposals]
    arguments = meta_schedule.arg_info.ArgInfo.from_entry_func(space.module)
    legal = [schedule for schedule in schedules if schedule is not None]
    built = builder.build(
        [meta_schedule.builder.BuilderInput(schedule.mod, space.tuned_for) for schedule in legal]
    )
    results = [_run(each, space.tuned_for, arguments, runner) for each in built]
    if keep is not None and legal:
        candidates = [meta_schedule.MeasureCandidate(schedule, arguments) for schedule in legal]
        unused = meta_schedule.task_scheduler.RoundRobin()  # TVM's interface asks for one
        keep.apply(unused, 0, candidates, built, results)
    latency = iter([_latency_us(each) for each in results])
    return [
        MeasuredProposal(proposal, None if schedule is None else next(latency))
        for proposal, schedule in zip(proposals, schedules, strict=True)
    ]


def _run(built: Any, tuned_for: Any, arguments: Any, runner: Any) -> Any:
    if built.error_msg is not None:
        return meta_schedule.runner.RunnerResult(None, built.error_msg)
    given = meta_schedule.runner.RunnerInput(built.artifact_path, tuned_for.kind.name, arguments)
    (future,) = runner.run([given])
    return future.result()


def _latency_us(result: Any) -> float | None:
    seconds = [float(each) for each in (result.run_secs or ())]
    return statistics.median(seconds) * 1e6 if seconds else None
