from __future__ import annotations

import re
import typing
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from records import RecordError, RecordFileError, Status, open_store
from records.workload import Role
from scripts.app import app
from scripts.commands.records import listing
from tests.records.files.test_metaschedule import entry, write
from tests.records.strategies import make_measurement, make_workload


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of four records, one of them a failure."""
    path = tmp_path / "records.db"
    one, two = make_workload(8), make_workload(16, name="nn.softmax", role="stage")
    with open_store(str(path)) as store:
        store.append(one, make_measurement(one, [10.0, 12.0, 11.0], settings="trials=64", measured_at=1e9))
        store.append(one, make_measurement(one, [8.0], backend="blas"))
        store.append(two, make_measurement(two, [2500.0]))
        store.append(two, make_measurement(two, status=Status.ERROR, message="[red]no rule[/red]"))
    return path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["records", *map(str, arguments)])


def test_choices_are_those_of_the_records() -> None:
    assert typing.get_args(listing.StatusName) == tuple(Status)
    assert typing.get_args(listing.RoleName) == typing.get_args(Role)


def test_list_shows_operators_backends_and_latencies(file: Path) -> None:
    lines = call("list", "--records", file).stdout.splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["matmul", "tvm", "trials=64", "ok", "1", "11.0", "us", "±5%", "3"],
        ["matmul", "blas", "ok", "2", "8.0", "us", "±0%", "1"],
    ]
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ([], [1, 2, 3, 4]),
        (["--status", "error"], [4]),
        (["--backend", "blas"], [2]),
        (["--role", "stage"], [3, 4]),
        (["--after", "2"], [3, 4]),
        (["--limit", "2"], [1, 2]),
    ],
)
def test_list_filters(file: Path, options: list[str], ids: list[int]) -> None:
    document = msgspec.json.decode(call("list", "--records", file, "--json", *options).stdout)
    assert [record["id"] for record in document["records"]] == ids
    assert document["more"] is ("--limit" in options)


def test_a_page_has_the_best_way_of_each_workload_and_what_failed(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    out = tmp_path / "records.html"
    document = msgspec.json.decode(call("page", "--out", out, "--records", file, "--json").stdout)
    assert document == {
        "out": str(out),
        "bytes": out.stat().st_size,
        "workloads": 2,
        "left_out": 0,
        "measurements": 4,
    }
    assert file.read_bytes() == before
    found = re.search(r'type="application/json">(.*?)</script>', out.read_text(), re.DOTALL)
    assert found is not None
    page = msgspec.json.decode(found[1])
    with open_store(str(file)) as store:
        fastest = {record.workload.fingerprint: record for record in store.best()}
    for workload in page["workloads"]:
        best = fastest[workload["fingerprint"]]
        way = workload["ways"][0]
        assert (way["record"], way["latency_us"]) == (best.record_id, best.measurement.latency_us)
        assert (way["first_us"], way["third_us"]) == best.measurement.quartiles_us
    assert [len(workload["ways"]) for workload in page["workloads"]] == [2, 1]
    assert [day["day"] for day in page["days"]] == ["2001-09-09", "not known", "not known"]
    assert page["tables"][1]["rows"] == [["[red]no rule[/red]", "error", "tvm", "1"]]
    assert call("page", "--out", tmp_path / "records.svg", "--records", file).exit_code == 2


def test_show_tells_everything_about_a_record(file: Path) -> None:
    text = call("show", 1, "--records", file).stdout
    for part in (
        "matmul",
        "float32[8,8]",
        "Testing CPU, 2 of 4 cores",
        "apache-tvm 0.27",
        "trials=64",
        "10, 12, 11 us",
        "2001-09-09",
        "1,024 floating-point operations",
    ):
        assert part in text
    assert "[red]no rule[/red]" in call("show", 4, "--records", file).stdout


def test_show_as_json_is_the_whole_record(file: Path) -> None:
    document = msgspec.json.decode(call("show", 2, "--records", file, "--json").stdout)
    assert document["latency_us"] == 8.0
    assert document["measurement"]["backend"] == "blas"
    assert document["workload"]["operators"][0]["name"] == "matmul"


def test_stats_have_the_documented_keys(file: Path) -> None:
    document = msgspec.json.decode(call("stats", "--records", f"sqlite:///{file}", "--json").stdout)
    assert document["measurements"] == 4
    assert document["by_status"] == {"error": 1, "ok": 3}
    assert document["by_target"] == {"llvm": 4}
    assert document["by_backend"] == {"blas": 1, "tvm": 3}
    assert "4 measurements of 2 workloads" in call("stats", "--records", file).stdout


def test_verify_is_content_with_a_sound_file(file: Path) -> None:
    result = call("verify", "--records", file)
    assert (result.exit_code, result.stdout) == (0, "all records are intact\n")


def test_verify_names_what_is_damaged_and_fails(file: Path) -> None:
    content = file.read_bytes()
    assert content.count(b"trials=64") == 1
    file.write_bytes(content.replace(b"trials=64", b"trials=65"))
    result = call("verify", "--records", file)
    assert result.exit_code == 1
    assert "record 1: " in result.stdout
    document = msgspec.json.decode(call("verify", "--records", file, "--json").stdout)
    assert [finding["subject"] for finding in document["findings"]] == ["record 1"]


@pytest.mark.parametrize("command", ["list", "stats", "verify"])
def test_reading_a_missing_file_makes_none(tmp_path: Path, command: str) -> None:
    result = call(command, "--records", tmp_path / "no.db")
    assert isinstance(result.exception, RecordFileError)
    assert "does not exist" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_record_is_an_error(file: Path) -> None:
    result = call("show", 99, "--records", file)
    assert isinstance(result.exception, RecordError)
    assert "record 99 is not in" in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["show"],
        ["show", "x"],
        ["list", "--status", "great"],
        ["list", "--limit", "0"],
        ["list", "--role", "x"],
    ],
)
def test_wrong_usage_exits_with_two(file: Path, arguments: list[str]) -> None:
    assert call(*arguments, "--records", file).exit_code == 2


def test_export_and_import_carry_everything(file: Path, tmp_path: Path) -> None:
    lines, copy = tmp_path / "records.jsonl", tmp_path / "copy.db"
    assert "4 records written" in call("export", lines, "--records", file).stdout
    document = msgspec.json.decode(call("import", lines, "--records", copy, "--json").stdout)
    assert document == {"read": 4, "new": 4, "known": 0}
    assert "0 new, 4 known" in call("import", lines, "--records", copy).stdout
    call("export", tmp_path / "again.jsonl", "--records", copy)
    assert (tmp_path / "again.jsonl").read_bytes() == lines.read_bytes()


def test_a_bad_file_is_refused_before_records_are_made(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{}\n")
    result = call("import", tmp_path / "bad.jsonl", "--records", tmp_path / "new.db")
    assert isinstance(result.exception, RecordFileError)
    assert "line 1" in str(result.exception)
    assert not (tmp_path / "new.db").exists()


def test_damaged_records_are_left_out_when_asked_and_the_status_says_so(file: Path, tmp_path: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"trials=64", b"trials=65"))
    lines = tmp_path / "records.jsonl"
    assert isinstance(call("export", lines, "--records", file).exception, RecordFileError)
    assert not lines.exists()
    result = call("export", lines, "--records", file, "--skip-damaged")
    assert result.exit_code == 1
    assert len(lines.read_text().splitlines()) == 3


def test_metaschedule_databases_go_in_and_out(tmp_path: Path) -> None:
    came_in = write(tmp_path / "in", entry(), entry("[0.5]"))
    records = tmp_path / "records.db"
    assert "2 records read: 2 new" in call("import", came_in, "--records", records).stdout
    assert (
        "2 records written" in call("export", tmp_path / "out", "--metaschedule", "--records", records).stdout
    )
    assert "2 new" in call("import", tmp_path / "out", "--records", tmp_path / "again.db").stdout


def test_merge_reports_what_contradicts(file: Path, tmp_path: Path) -> None:
    other, lines = tmp_path / "other.db", tmp_path / "lines.jsonl"
    workload = make_workload(8)
    with open_store(str(other)) as store:
        store.append(workload, make_measurement(workload, [80.0], backend="blas"))
    call("export", lines, "--records", other)
    text = call("merge", other, lines, "--records", file).stdout
    assert f"{other}: 1 records read, 1 new, 1 conflicts" in text
    assert "record 2 and new record 5 (blas): 10.00 times the latency" in text
    assert f"{lines}: 1 records read, 0 new, 0 conflicts" in text
    document = msgspec.json.decode(call("merge", other, "--records", file, "--json").stdout)
    assert document["sources"][str(other)] == {"read": 1, "new": 0, "conflicts": []}


def test_merging_a_store_with_itself_is_wrong_usage(file: Path) -> None:
    result = call("merge", file, "--records", f"sqlite:///{file}")
    assert result.exit_code == 2


def test_prune_only_counts_unless_told(file: Path) -> None:
    workload = make_workload(8)
    with open_store(str(file)) as store:
        store.append_many(
            (workload, make_measurement(workload, [20.0 + index], backend="blas", measured_at=2.0 + index))
            for index in range(5)
        )
    assert "4 records would be removed" in call("prune", "--keep", 1, "--records", file).stdout
    document = msgspec.json.decode(call("prune", "--keep", 1, "--apply", "--records", file, "--json").stdout)
    assert document == {"removed": 4, "kept": 5, "applied": True}
    assert "0 records would be" in call("prune", "--keep", 1, "--records", file).stdout


@pytest.mark.tvm
def test_best_ranks_what_this_machine_measured(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    from tuner.backends.environment import environment_of  # noqa: PLC0415 - needs TVM
    from tuner.targets.resolution import resolve_target  # noqa: PLC0415 - needs TVM

    target = resolve_target("cpu")
    mine = {"target": target.text, "environment": environment_of(target)}
    one, two = make_workload(8), make_workload(16)
    path = tmp_path / "records.db"
    with open_store(str(path)) as store:
        store.append(one, make_measurement(one, [9.0], backend="tvm", **mine))
        store.append(one, make_measurement(one, [5.0], backend="blas", **mine))
        store.append(two, make_measurement(two, [70.0], **mine))
        store.append(two, make_measurement(two, [1.0]))  # another device
    document = msgspec.json.decode(call("best", "--records", path, "--json").stdout)
    assert [(best["record"], best["backend"], best["latency_us"]) for best in document["best"]] == [
        (3, "tvm", 70.0),
        (2, "blas", 5.0),
    ]
    assert "matmul" in call("best", "--records", path, "--match", "any").stdout


@pytest.mark.tvm
def test_best_of_a_model_asks_for_its_parts(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    from tuner.backends.environment import environment_of  # noqa: PLC0415 - imports TVM
    from tuner.backends.registry import available_backends  # noqa: PLC0415 - needs TVM
    from tuner.frontend import load_model  # noqa: PLC0415 - imports TVM
    from tuner.targets.resolution import resolve_target  # noqa: PLC0415 - imports TVM
    from tuner.tuning.model_workloads import find_model_workloads  # noqa: PLC0415 - imports TVM

    target = resolve_target("cpu")
    parts = find_model_workloads(load_model("mlp:tiny"), target, available_backends(target))
    assert parts.whole.role == "model"
    assert len(parts.sub_graphs) == len(set(parts.sub_graphs)) > 1
    mine = {"target": target.text, "environment": environment_of(target)}
    path = tmp_path / "records.db"
    with open_store(str(path)) as store:
        for part in (parts.whole, parts.sub_graphs[0]):
            store.append(part, make_measurement(part, [9.0], **mine))
        store.append(make_workload(), make_measurement(make_workload(), [1.0], **mine))
    document = msgspec.json.decode(call("best", "mlp:tiny", "--records", path, "--json").stdout)
    assert [best["record"] for best in document["best"]] == [1, 2]
    assert document["not_measured"] == len(parts.sub_graphs) - 1
    assert "the whole model" in call("best", "mlp:tiny", "--records", path).stdout
