"""Trials of MetaSchedule as records, stored as they are measured.

TVM's own database holds trials too, but neither device nor number of threads, and each work directory has
another. Here a trial is a record like any other: the kernel is its workload, of role `task`, the trace its
settings. Checked in tests/tuner/backends/metaschedule/test_trials.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from records import Environment, Measurement, Status, Tensor, Workload, open_store
from records.files.metaschedule import BACKEND, Trial, describe_trial
from records.measurement import NOT_BY_PROGRAM
from tuner.graph.relax_types import IRModule
from tuner.machine_faults import says_machine
from tuner.targets.target import Target

_LEAST_US = 1e-3
"""A latency is positive, and a clock may not see the shortest."""

_MESSAGE_CHARACTERS = 500


@derived_object
class KeepTrials(meta_schedule.measure_callback.PyMeasureCallback):
    """Appends each batch of trials of one kernel to the records."""

    def __init__(
        self, records_url: str, task: IRModule, tuned_for: Any, target: Target, environment: Environment
    ) -> None:
        super().__init__()
        self.records_url = records_url
        self.task = task
        self.tuned_for = tuned_for
        self.target = target
        self.environment = environment

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        """Keep what was measured, failures too; called by TVM."""
        self.keep(measure_candidates, builder_results, runner_results)

    def keep(
        self,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        """Keep a batch of this kernel."""
        arguments = meta_schedule.arg_info.ArgInfo.from_entry_func(self.task)
        tensors = [Tensor(tuple(map(int, each.shape)), str(each.dtype)) for each in arguments]
        known = meta_schedule.database.Workload(self.task)
        task_hash, module = map(str, known.as_json())
        workload = describe_trial(Trial(task_hash, module, ""), tensors)
        kept = []
        for candidate, built, run in zip(measure_candidates, builder_results, runner_results, strict=True):
            entry = meta_schedule.database.TuningRecord(
                candidate.sch.trace, known, None, self.tuned_for, arguments
            )
            trace = json.dumps(entry.as_json()[0], separators=(",", ":"))
            kept.append((workload, self._measurement(workload, trace, built, run)))
        with open_store(self.records_url) as store:
            store.append_many(kept)

    def _measurement(self, workload: Workload, trace: str, built: Any, run: Any) -> Measurement:
        seconds = [float(each) for each in (run.run_secs or ())]
        said = str(built.error_msg or run.error_msg or "TVM gave no reason").strip().splitlines()
        return Measurement(
            workload_fingerprint=workload.fingerprint,
            backend=BACKEND,
            target=self.target.text,
            environment=self.environment,
            status=Status.OK if seconds else Status.ERROR,
            samples_us=tuple(max(each * 1e6, _LEAST_US) for each in seconds),
            settings=trace,
            message="" if seconds else _message(said[-1]),
            measured_at=time.time(),
        )


def _message(said: str) -> str:
    """Return what a record says of a failed trial, and whether it was the trial that failed."""
    return f"{NOT_BY_PROGRAM if says_machine(said) else ''}{said}"[:_MESSAGE_CHARACTERS]


def task_name(task: IRModule) -> str:
    """Return what names a kernel among trials."""
    return str(meta_schedule.database.Workload(task).as_json()[0])
