"""Trials of MetaSchedule as records: stored as they are measured, and read for the cost model.

TVM's own database holds trials too, but neither device nor number of threads, and each work directory has
another. Here a trial is a record like any other: the kernel is its workload, of role `task`, the trace its
settings. A trace is replayed on its kernel to get the schedule's features back, 3 ms each; a change of the
features therefore needs no new measurement. Checked in tests/tuner/backends/metaschedule/test_cost_model.py.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.schedule import Trace

from cost_model.schedule_model import Trials
from records import Environment, Measurement, RecordStore, Status, Tensor, Workload, open_store
from records.files.metaschedule import BACKEND, Trial, describe_trial, trial_of
from records.measurement import NOT_BY_PROGRAM
from tuner.graph.relax_types import IRModule
from tuner.machine_faults import says_machine
from tuner.targets.target import Target

_LEAST_US = 1e-3
"""A latency is positive, and a clock may not see the shortest."""

_MESSAGE_CHARACTERS = 500

logger = logging.getLogger(__name__)


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


def load_trials(
    records_url: str, tuned_for: Any, target: Target, environment: Environment
) -> tuple[Trials, ...]:
    """Return the successful trials of every kernel on this device with so many threads, by kernel.

    Args:
        records_url: where records are kept.
        tuned_for: TVM's target.
        target: whose records count.
        environment: whose device and threads count; its versions do not.

    Raises:
        RecordError: the records cannot be read.
    """
    found: dict[str, list[tuple[Trial, float]]] = {}
    with open_store(records_url) as store:
        for trial, latency_us in _trials(store, target, environment):
            found.setdefault(trial.task, []).append((trial, latency_us))
    replayed = (_replay(task, trials, tuned_for) for task, trials in found.items())
    return tuple(trials for trials in replayed if trials is not None)


def features_of(context: Any, candidates: Sequence[Any]) -> list[npt.NDArray[np.float32]]:
    """Return the features of every store of each candidate, shape (num_stores, num_features)."""
    extractor = meta_schedule.feature_extractor.PerStoreFeature()
    return [found.numpy().astype(np.float32) for found in extractor.extract_from(context, candidates)]


def task_name(task: IRModule) -> str:
    """Return what names a kernel among trials."""
    return str(meta_schedule.database.Workload(task).as_json()[0])


def _trials(store: RecordStore, target: Target, environment: Environment) -> Iterator[tuple[Trial, float]]:
    for record in store.iterate(status=Status.OK, backend=BACKEND, target=target.text, role="task"):
        where = record.measurement.environment
        if (where.device_model, where.num_threads) != (environment.device_model, environment.num_threads):
            continue
        trial = trial_of(record)
        if trial is not None:
            yield trial, record.measurement.latency_us


def _replay(task: str, trials: Sequence[tuple[Trial, float]], tuned_for: Any) -> Trials | None:
    """Return a kernel's trials with their features; those that this TVM cannot replay are left out.

    Records may come from a stranger: a kernel that TVM cannot read is None.
    """
    try:
        module = meta_schedule.database.Workload.from_json([task, trials[0][0].module]).mod
    except Exception as error:  # TVM raises whatever its readers raise
        logger.debug("kernel %r cannot be read: %s", task, error)
        return None
    candidates, latencies = [], []
    for trial, latency_us in trials:
        schedule = Schedule(module)
        try:
            Trace.apply_json_to_schedule(json.loads(trial.trace), schedule)
        except Exception as error:  # TVM raises whatever its instructions raise
            logger.debug("a trial of kernel %s cannot be replayed: %s", task, error)
            continue
        candidates.append(meta_schedule.MeasureCandidate(schedule, []))
        latencies.append(latency_us)
    features = features_of(meta_schedule.TuneContext(mod=module, target=tuned_for), candidates)
    # A program without stores has no features.
    kept = [index for index, each in enumerate(features) if len(each)]
    return Trials(task, tuple(features[index] for index in kept), tuple(latencies[index] for index in kept))
