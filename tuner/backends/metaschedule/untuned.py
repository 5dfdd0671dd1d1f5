"""The schedule that a kernel has without tuning, measured beside the best that tuning found.

A few trials may all be slower than the `tvm` backend's own rule, whose tiles may lie outside MetaSchedule's
space: they pad what no tile divides, and pack operands. So after a kernel was tuned, the rule's schedule and
the fastest trial are measured in turn, and the rule's goes into the database as one more record, at the
latency of the fastest trial times the ratio of the two. Whoever looks the kernel up gets the faster one.
Checked in tests/tuner/backends/metaschedule/test_untuned.py.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections.abc import Sequence
from typing import Any

from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.schedule import Trace

from tuner.backends.metaschedule.traces import plain_json
from tuner.backends.tvm.cpu_schedule import cpu_schedule_of
from tuner.graph.relax_types import IRModule
from tuner.targets.vector_registers import registers_of

logger = logging.getLogger(__name__)

_ROUNDS = 2
"""Measurements of each, in turn."""


def keep_untuned(task: IRModule, tuned_for: Any, database: Any, *, builder: Any, runner: Any) -> float | None:
    """Add a kernel's untuned schedule to the database that tuning filled.

    Args:
        task: a module whose `main` is the kernel.
        tuned_for: TVM's target, of a processor.

    Returns:
        The latency of the untuned schedule over that of the fastest trial: above 1, tuning paid. None where
        the kernel has no rule, no trial succeeded, or one of the two can no longer be measured.
    """
    best = database.query_tuning_record(task, tuned_for, "main")
    untuned = untuned_schedule(task, registers_of(tuned_for))
    if best is None or not best.run_secs or untuned is None:
        return None
    tuned = Schedule(task)
    best.trace.apply_to_schedule(tuned, remove_postproc=False)
    pair = _measured_in_turn([untuned, tuned], task, tuned_for, builder, runner)
    if pair is None:
        logger.debug("the untuned schedule cannot be measured beside the tuned one")
        return None
    ratio = pair[0] / pair[1]
    latency_s = statistics.fmean(map(float, best.run_secs)) * ratio
    database.commit_tuning_record(
        meta_schedule.database.TuningRecord(
            untuned.trace,
            database.commit_workload(task),
            [latency_s],
            tuned_for,
            meta_schedule.arg_info.ArgInfo.from_entry_func(task),
        )
    )
    return ratio


def untuned_schedule(task: IRModule, registers: int) -> Any | None:
    """Return the schedule of the `tvm` backend's rules; None where none can be kept in a database."""
    found = cpu_schedule_of(task["main"], registers)
    if found is None:
        return None
    again = Schedule(task)
    try:
        Trace.apply_json_to_schedule(json.loads(json.dumps(plain_json(found.trace.as_json()))), again)
    except Exception as error:  # TVM raises whatever its instructions raise
        logger.debug("the untuned schedule cannot be kept: %s", error)
        return None
    return again


def _measured_in_turn(
    schedules: Sequence[Any], task: IRModule, tuned_for: Any, builder: Any, runner: Any
) -> tuple[float, ...] | None:
    """Return the latency of each schedule in seconds, the least of the rounds; None where one failed.

    Each is built again in every round, since a runner takes what was built only once.
    """
    arguments = meta_schedule.arg_info.ArgInfo.from_entry_func(task)
    found = [math.inf] * len(schedules)
    for _ in range(_ROUNDS):
        inputs = [meta_schedule.builder.BuilderInput(each.mod, tuned_for) for each in schedules]
        built = builder.build(inputs)
        if any(each.artifact_path is None for each in built):
            return None
        device = str(tuned_for.kind.name)
        futures = runner.run(
            [meta_schedule.runner.RunnerInput(str(each.artifact_path), device, arguments) for each in built]
        )
        for place, future in enumerate(futures):
            seconds = future.result().run_secs
            if not seconds:
                return None
            found[place] = min(found[place], statistics.median(map(float, seconds)))
    return tuple(found)
