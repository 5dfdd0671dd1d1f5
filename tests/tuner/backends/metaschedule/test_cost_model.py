"""Trials are kept as records with the device they ran on, and teach the cost model of the next kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from numerics import relative_error
from tvm import relax
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.schedule import Trace

from cost_model.schedule_model import MIN_TRIALS, Trials
from records import Status, open_store
from records.files.metaschedule import Trial, trial_of, write_database
from tests.harness.run_module import run_module
from tests.samples.partition_samples import part_of, partition_module
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target, tuning_tasks
from tuner.backends.metaschedule.cost_model import RecordsCostModel
from tuner.backends.metaschedule.trials import load_trials, task_name
from tuner.backends.registry import make_backend
from tuner.backends.tvm.native import fuse_function
from tuner.graph.relax_types import IRModule
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

op = relax.op


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


def dense(rows: int, columns: int) -> IRModule:
    return partition_module(
        "metaschedule",
        [(rows, 32), (32, columns), (columns,)],
        lambda x, w, b: op.nn.relu(op.add(op.matmul(x, w), b)),
    )


def test_a_model_without_records_or_of_no_name_is_refused() -> None:
    with pytest.raises(ValueError, match="none are named"):
        MetaSchedule(trials=4, cost_model="records")
    with pytest.raises(ValueError, match="not known; give one of tvm, records, draft"):
        MetaSchedule(trials=4, cost_model="recrods")


def test_the_model_is_part_of_settings_and_reference() -> None:
    backend = MetaSchedule(trials=4, cost_model="records", records="sqlite:///a b&c.db")
    again = make_backend(backend.reference)
    assert isinstance(again, MetaSchedule)
    assert (again.cost_model, again.records) == ("records", "sqlite:///a b&c.db")
    assert backend.settings == "trials=4,cost_model=records"
    assert MetaSchedule(trials=4).settings == "trials=4"


@pytest.mark.slow
def test_trials_are_records_and_are_replayed_into_features(tmp_path: Path, target: Target) -> None:
    url = str(tmp_path / "records.db")
    module = dense(16, 32)
    lower_module(module, [MetaSchedule(trials=3, database=str(tmp_path / "db"), records=url)], target)
    with open_store(url) as store:
        kept = list(store.iterate(role="task"))
        assert len(kept) == 3
        assert store.best(target=target.text)
    trials = [trial_of(record) for record in kept]
    assert len({trial.task for trial in trials if trial is not None}) == 1
    assert {record.measurement.environment for record in kept} == {environment_of(target, MetaSchedule())}
    ok = [record.measurement.latency_us for record in kept if record.measurement.status is Status.OK]

    tuned_for = tuning_target(target)
    (found,) = load_trials(url, tuned_for, target, environment_of(target))
    assert found.latencies_us == tuple(ok)
    assert all(each.shape[1] == 164 for each in found.features)
    assert not load_trials(url, tuned_for, resolve_target("nvidia/nvidia-a100"), environment_of(target))
    assert write_database(kept, tmp_path / "tvm") == len(kept), "TVM can have them too"

    # As TVM calls it: at random while there is too little to learn from, then the fastest first.
    (task,) = tuning_tasks(fuse_function(part_of(module)))
    context = meta_schedule.TuneContext(mod=task, target=tuned_for)
    candidates = [replayed(task, trial) for trial in trials if trial is not None]
    guessing = RecordsCostModel(found.task, [found])
    assert guessing.model is None
    assert len(set(guessing.predict(context, candidates))) == len(candidates)
    often = Trials("another kernel", found.features * MIN_TRIALS, found.latencies_us * MIN_TRIALS)
    model = RecordsCostModel("a new kernel", [often])
    scores = model.predict(context, candidates)
    assert np.argmax(scores) == np.argmin(ok)
    assert np.array_equal(model.predict(context, candidates), scores), "asked again, it says the same"
    assert model.batch.leaders
    seconds = [[tvm.tirx.FloatImm("float32", latency * 1e-6)] for latency in ok]
    model.update(context, candidates, [meta_schedule.runner.RunnerResult(each, None) for each in seconds])
    assert model.latencies_us == pytest.approx(ok)
    assert not model.batch.leaders, "the next batch begins anew"


def replayed(task: Any, trial: Trial) -> Any:
    schedule = Schedule(task)
    Trace.apply_json_to_schedule(json.loads(trial.trace), schedule)
    return meta_schedule.MeasureCandidate(schedule, [])


@pytest.mark.slow
def test_a_kernel_is_tuned_with_what_another_taught(tmp_path: Path, target: Target) -> None:
    url, database = str(tmp_path / "records.db"), str(tmp_path / "db")
    lower_module(dense(64, 64), [MetaSchedule(trials=MIN_TRIALS + 8, database=database, records=url)], target)
    module = dense(32, 128)
    backend = MetaSchedule(trials=20, database=database, cost_model="records", records=url)
    known = load_trials(url, tuning_target(target), target, environment_of(target))
    (task,) = tuning_tasks(fuse_function(part_of(module)))
    assert task_name(task) not in {trials.task for trials in known}
    assert RecordsCostModel(task_name(task), known).model is not None
    lowered = lower_module(module, [backend], target)
    with open_store(url) as store:
        assert sum(1 for _ in store.iterate(role="task")) == MIN_TRIALS + 8 + 20
    inputs = random_inputs(input_specs(module), seed=0)
    results = run_module(build_module(lowered, target), inputs, target)
    expected = run_module(build_reference(module, target), inputs, target)
    assert relative_error(results, expected) < 1e-5
