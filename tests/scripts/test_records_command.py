from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from records import RecordError, RecordFileError, Status, open_store
from records.workload import Role
from scripts import records_command
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
    return CliRunner().invoke(records_command.app, [str(argument) for argument in arguments])


def test_choices_are_those_of_the_records() -> None:
    assert typing.get_args(records_command.StatusName) == tuple(Status)
    assert typing.get_args(records_command.RoleName) == typing.get_args(Role)


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
    assert (result.exit_code, result.stdout) == (0, "every record is as it was written\n")


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
