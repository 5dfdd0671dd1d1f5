"""Measure schedules as MetaSchedule measures its candidates: by a builder and a runner, into records.

Checked in tests/tuner/language/test_trials.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tvm.s_tir import meta_schedule

from tuner.graph.relax_types import IRModule


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
