"""Trials are kept as records with the device they ran on, and TVM can have them as a database."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm import relax

from records import open_store
from records.files.metaschedule import trial_of, write_database
from tests.samples.partition_samples import part_of, partition_module
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule, tuning_tasks
from tuner.backends.metaschedule.trials import task_name
from tuner.backends.registry import make_backend
from tuner.backends.tvm.native import fuse_function
from tuner.lowering.lower import lower_module
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op


def test_the_proposer_is_part_of_settings_and_reference() -> None:
    backend = MetaSchedule(trials=4, proposer="neighbour", records="sqlite:///a b&c.db")
    again = make_backend(backend.reference)
    assert isinstance(again, MetaSchedule)
    assert (again.proposer, again.records) == ("neighbour", "sqlite:///a b&c.db")
    assert backend.settings == "trials=4,proposer=neighbour"
    assert MetaSchedule(trials=4).settings == "trials=4"


@pytest.mark.slow  # test_lasting_knowledge.py measures trials of this backend, too
def test_trials_are_records_of_their_kernel_and_device(tmp_path: Path) -> None:
    url, target = str(tmp_path / "records.db"), resolve_target("cpu", num_threads=1)
    module = partition_module(
        "metaschedule",
        [(16, 32), (32, 32), (32,)],
        lambda x, w, b: op.nn.relu(op.add(op.matmul(x, w), b)),
    )
    lower_module(module, [MetaSchedule(trials=1, database=str(tmp_path / "db"), records=url)], target)
    with open_store(url) as store:
        kept = list(store.iterate(role="task"))
        assert len(kept) == 1
        assert store.best(target=target.text)
    (task,) = tuning_tasks(fuse_function(part_of(module)))
    assert [trial.task for record in kept if (trial := trial_of(record))] == [task_name(task)]
    assert {record.measurement.environment for record in kept} == {environment_of(target, MetaSchedule())}
    assert write_database(kept, tmp_path / "tvm") == len(kept)
