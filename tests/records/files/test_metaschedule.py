from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from records import Match, RecordError, RecordFileError, Status, open_store
from records.database.merging import import_items
from records.files.metaschedule import RECORD_FILE, WORKLOAD_FILE, read_database, write_database
from tests.records.strategies import make_environment, make_measurement, make_workload

TRACE = '[[["GetSBlock",[],["C","main"],["b0"]]],[]]'
TARGET = '{"keys":["cpu"],"kind":"llvm","num-cores":2,"tag":""}'
ARGUMENTS = '[["TENSOR","float32",[16,8]],["TENSOR","float32",[8,4]],["TENSOR","float32",[16,4]]]'


def write(folder: Path, *entries: str, modules: str = '["123","bW9kdWxl"]\n') -> Path:
    folder.mkdir(exist_ok=True)
    (folder / WORKLOAD_FILE).write_text(modules)
    (folder / RECORD_FILE).write_text("".join(f"{entry}\n" for entry in entries))
    return folder


def entry(seconds: str = "[0.001,0.003,0.002]", *, index: int = 0, trace: str = TRACE) -> str:
    return f"[{index},[{trace},{seconds},{TARGET},{ARGUMENTS}]]"


def test_a_tuning_record_becomes_a_measurement(tmp_path: Path) -> None:
    ((workload, measurement),) = read_database(write(tmp_path, entry()))
    assert measurement.samples_us == (1000.0, 3000.0, 2000.0)
    assert (measurement.backend, measurement.settings) == ("metaschedule", TRACE)
    assert measurement.target == TARGET
    assert [tensor.shape for tensor in workload.values] == [(16, 8), (8, 4), (16, 4)]
    assert measurement.environment.device_model == "unknown"


def test_no_look_up_for_a_real_device_finds_it(tmp_path: Path) -> None:
    ((workload, measurement),) = read_database(write(tmp_path / "db", entry()))
    with open_store(str(tmp_path / "records.db")) as store:
        store.append(workload, measurement)
        for match in Match:
            found = store.find(
                workload.fingerprint,
                backend="metaschedule",
                settings=TRACE,
                target=TARGET,
                environment=make_environment(),
                match=match,
            )
            assert found == []


def test_failures_are_kept_and_what_was_not_run_is_left_out(tmp_path: Path) -> None:
    found = list(read_database(write(tmp_path, entry("[1e10]"), entry("null"), entry("[]"))))
    assert [measurement.status for _, measurement in found] == [Status.ERROR, Status.ERROR]


def test_a_database_goes_out_as_it_came_in(tmp_path: Path) -> None:
    modules = '["123","bW9kdWxl"]\n["456","b3RoZXI="]\n'
    came_in = write(
        tmp_path / "in", entry(), entry("[0.0005]", index=1, trace=TRACE.replace("b0", "b1")), modules=modules
    )
    other = make_workload()
    with open_store(str(tmp_path / "records.db")) as store:
        store.append(other, make_measurement(other))
        assert import_items(store, read_database(came_in)).new == 2
        assert write_database(store.iterate(), tmp_path / "out") == 2
    for name in (WORKLOAD_FILE, RECORD_FILE):
        before = [msgspec.json.decode(line) for line in (came_in / name).read_bytes().splitlines()]
        after = [msgspec.json.decode(line) for line in (tmp_path / "out" / name).read_bytes().splitlines()]
        assert before == after


def test_an_existing_database_is_not_overwritten(tmp_path: Path) -> None:
    folder = write(tmp_path, entry())
    with pytest.raises(RecordError, match="would be overwritten"):
        write_database([], folder)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (entry(index=7), "workload 7 is none of the 1"),
        (entry(index=-1), "workload -1 is none"),
        (entry('"fast"'), "line 1: not a line"),
        (entry("[-1.0]"), "positive"),
        (entry().replace("TENSOR", "SHAPE"), "not tensors"),
        (entry().replace(ARGUMENTS, "[]"), "not tensors"),
        (entry().replace("[16,8]", "[-16,8]"), "negative extent"),
        ("{}", "line 1: not a line"),
        ("[" * 50_000, "line 1: not a line"),
        (entry()[:-1] + ',"more"]', "line 1: not a line"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, bad: str, message: str) -> None:
    with pytest.raises(RecordFileError, match=message):
        list(read_database(write(tmp_path, bad)))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordFileError, match="name the work directory"):
        list(read_database(tmp_path))


@pytest.mark.tvm
def test_tvm_writes_what_is_read_and_reads_what_is_written(tmp_path: Path) -> None:
    tvm = pytest.importorskip("tvm")
    from tvm import te  # noqa: PLC0415 - only where TVM is asked for
    from tvm.s_tir import Schedule, meta_schedule  # noqa: PLC0415 - imports TVM

    left, right = te.placeholder((16, 8), name="A"), te.placeholder((8, 4), name="B")
    axis = te.reduce_axis((0, 8), name="k")
    product = te.compute((16, 4), lambda i, j: te.sum(left[i, axis] * right[axis, j], axis=axis), name="C")
    function = te.create_prim_func([left, right, product])
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    (tmp_path / "in").mkdir()
    database = meta_schedule.database.JSONDatabase(work_dir=str(tmp_path / "in"))
    task = database.commit_workload(module)
    schedule = Schedule(module)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    arguments = meta_schedule.arg_info.ArgInfo.from_prim_func(function)
    for seconds in ([1e-3, 2e-3], [1.23456789e-5]):
        database.commit_tuning_record(
            meta_schedule.database.TuningRecord(schedule.trace, task, seconds, target, arguments)
        )

    with open_store(str(tmp_path / "records.db")) as store:
        import_items(store, read_database(tmp_path / "in"))
        assert write_database(store.iterate(), tmp_path / "out") == 2

    read_back = meta_schedule.database.JSONDatabase(work_dir=str(tmp_path / "out"))
    assert read_back.has_workload(module)
    found = sorted(
        [float(second) for second in record.run_secs] for record in read_back.get_all_tuning_records()
    )
    assert found == [pytest.approx([1.23456789e-5]), pytest.approx([1e-3, 2e-3])]
