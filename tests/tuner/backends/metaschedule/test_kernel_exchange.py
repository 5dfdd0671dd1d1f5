"""Kernels that one database has tuned are found by another, the fastest of each, and added once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tvm
from tvm import relax
from tvm.s_tir import Schedule, meta_schedule

from tests.samples.partition_samples import partition_module
from tuner.backends.metaschedule.backend import tuning_target, tuning_tasks
from tuner.backends.metaschedule.kernel_exchange import RECORD_FILE, WORKLOAD_FILE, add_kernels, read_kernels
from tuner.backends.tvm.native import fuse_function
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm


def database(folder: Path) -> meta_schedule.database.JSONDatabase:
    folder.mkdir(exist_ok=True)
    return meta_schedule.database.JSONDatabase(
        str(folder / WORKLOAD_FILE), str(folder / RECORD_FILE), module_equality="structural"
    )


def product(width: int) -> tvm.IRModule:
    module = partition_module("metaschedule", [(8, width), (width, 8)], lambda x, w: relax.op.matmul(x, w))
    (name,) = [str(v.name_hint) for v, _ in module.functions_items() if v.name_hint != "main"]
    (task,) = tuning_tasks(fuse_function(module[name]))
    return task


def commit(known: meta_schedule.database.JSONDatabase, task: tvm.IRModule, *seconds: float) -> None:
    target = tuning_target(resolve_target("cpu", num_threads=1))
    workload = known.commit_workload(task)
    schedule = Schedule(task)
    schedule.split(schedule.get_loops(schedule.get_sblock("matmul"))[0], factors=[None, 2])
    for each in seconds:
        record = meta_schedule.database.TuningRecord(
            schedule.trace,
            workload,
            [each],
            target,
            meta_schedule.arg_info.ArgInfo.from_entry_func(task),
        )
        known.commit_tuning_record(record)


def test_what_one_database_found_answers_anothers_question(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    commit(database(here), product(16), 3e-6, 1e-6, 1e10)
    commit(database(here), product(32), 1e10)
    commit(database(there), product(64), 2e-6)
    found = read_kernels(here)
    assert [kernel.seconds for kernel in found.values()] == [1e-6]
    assert add_kernels(there, found.values()) == 1
    assert add_kernels(there, found.values()) == 0
    known = database(there)
    for width, seconds in ((16, 1e-6), (64, 2e-6)):
        (record,) = known.get_top_k(known.commit_workload(product(width)), 3)
        assert [float(each) for each in record.run_secs] == [seconds]
    assert not known.has_workload(product(32))
    assert len((there / WORKLOAD_FILE).read_text().splitlines()) == 2


def test_a_folder_without_a_database_has_none_and_gets_one(tmp_path: Path) -> None:
    assert read_kernels(tmp_path / "none") == {}
    commit(database(tmp_path / "here"), product(16), 1e-6)
    assert add_kernels(tmp_path / "new", read_kernels(tmp_path / "here").values()) == 1
    assert json.loads((tmp_path / "new" / RECORD_FILE).read_text())[0] == 0
