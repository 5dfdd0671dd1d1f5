"""`tessel check` and `tessel export`: exit statuses, what is printed, and files that go round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from layer_plans import profile, saved_plan

from scripts.main import main
from scripts.options import search_options
from tessel.documents import load_schedule, save
from tessel.planning.cluster import OPTIMIZERS
from tessel.profiles import save_table

DEADLOCK = "0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n"
RIGHT = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
)
LIGHT = ("--work", "0.01")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "profile.csv"
    save_table(profile(), path)
    return path


def checked(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> dict[str, Any]:
    assert main(["check", *map(str, arguments), *LIGHT, "--json", "--quiet"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_deadlock_is_named_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(DEADLOCK)
    found = checked(capsys, path, status=1)
    assert found["deadlock"]
    assert not found["fits"]
    assert found["makespan"] is None
    assert len(found["cycle"]) == 4
    assert main(["check", str(path), *LIGHT]) == 1
    out = capsys.readouterr().out
    assert "b0[0] on device 0 takes the result of b1[0] on device 1" in out


def test_sends_and_receives_are_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "communication.csv"
    path.write_text(RIGHT)
    assert checked(capsys, path)["makespan"] == 9
    path.write_text(RIGHT.replace("0SEND_F1,", ""))
    assert main(["check", str(path), *LIGHT]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert "0F1 of rank 0 has no 0SEND_F1 of rank 0, so that rank 1 waits for ever" in said.err


def test_a_layout_is_priced_by_a_profile(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = ("Et*4|t*2L", "--devices", 2, "--micro-batches", 8, "--profile", table)
    found = checked(capsys, *layout, "--memory", "80GiB")
    assert found["fits"]
    assert found["makespan"] >= found["best"] >= found["lower_bound"]
    assert found["step_ms"] >= found["makespan_ms"] >= found["lower_bound_ms"]
    assert found["advice"][0]["kind"] == "move"
    assert all(each["saves_ms"] > 0 for each in found["advice"])
    assert max(found["memory"]) <= min(found["limits"]) == 80 * 2**30
    tight = checked(capsys, *layout, "--memory", "3GiB", status=1)
    assert not tight["fits"]
    assert main(["check", *map(str, layout), *LIGHT]) == 0
    out = capsys.readouterr().out
    assert "no deadlock" in out
    assert "critical path" in out


def test_the_best_schedule_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders, better = tmp_path / "orders.csv", tmp_path / "better.json"
    orders.write_text(DEADLOCK)
    found = checked(capsys, orders, "--save", better, status=1)
    assert load_schedule(better).makespan == found["best"]
    assert checked(capsys, better)["makespan"] == found["best"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("missing.csv", "cannot be read"),
        ("Et|tL --devices 2", "--micro-batches is missing"),
        ("Et|t --devices 2 --micro-batches 4", "L 0 times"),
        ("Et|tL --devices 2 --micro-batches 4 --cuts 0-1", "--cuts has no effect without --profile"),
        ("Et|tL --devices 0 --micro-batches 4", "--devices is 0"),
        ("Et|tL --devices 2 --micro-batches 4 --hop-us -1 --profile p.csv", "--hop-us is -1"),
        ("orders.csv --profile p.csv --cuts x", "are no layers of stages"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders.csv").write_text("0F0,0B0\n")
    assert main(["check", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_bad_cell_is_named_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("0F0,0X0\n")
    assert main(["check", str(path)]) == 2
    assert f"{path}: line 1 has the cell '0X0'" in capsys.readouterr().err


def test_a_plan_goes_out_and_its_orders_are_the_plan_s(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = saved_plan(data_parallel=2)
    save(plan, tmp_path / "plan.json")
    for to, name in (
        ("torch", "o.csv"),
        ("torchtitan", "t.py"),
        ("deepspeed", "d.py"),
        ("markdown", "m.md"),
    ):
        assert main(["export", str(tmp_path / "plan.json"), "--to", to, "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "t.csv").read_text() == (tmp_path / "o.csv").read_text()
    exported = (tmp_path / "t.py").read_text()
    assert "t.csv" in exported
    assert str(tmp_path) not in exported
    capsys.readouterr()
    assert main(["export", str(tmp_path / "plan.json"), "--to", "megatron", "--quiet"]) == 0
    assert "--pipeline-model-parallel-layout 'Ettt|tttL'" in capsys.readouterr().out
    arguments = ("--profile", table, "--cuts", "0-3,4-7", "--data-parallel", 2)
    found = checked(capsys, tmp_path / "o.csv", *arguments)
    assert found["makespan"] == plan.schedule.makespan
    assert found["step_ms"] == pytest.approx(plan.training_step_us / 1000)
    assert checked(capsys, tmp_path / "plan.json")["step_ms"] == pytest.approx(plan.training_step_us / 1000)


def test_a_suffix_of_another_framework_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(saved_plan(), tmp_path / "plan.json")
    status = main(
        ["export", str(tmp_path / "plan.json"), "--to", "torchtitan", "--out", str(tmp_path / "x.csv")]
    )
    assert status == 2
    assert "end it with one of .py, .toml" in capsys.readouterr().err


def test_roles_and_names_of_rows_reach_the_file(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    steps = ("--devices", "2", "--pipeline", "2", "--placement", "vshape", "--micro-batches", "4", *LIGHT)
    assert main(["plan", str(table), *steps, "--save", str(plan), "--quiet"]) == 0
    names = [layer.name for layer in profile().layers]

    def exported(*options: str) -> str:
        assert main(["export", str(plan), "--to", "torchtitan", *options]) == 0
        return capsys.readouterr().out

    kept = exported("--keep-names")
    assert all(repr(name) in kept for name in names)
    stated = exported("--roles", f"Et*{len(names) - 3}nL")
    assert f"'layers.{len(names) - 4}'" in stated
    assert f"'layers.{len(names) - 3}'" not in stated
    assert main(["export", str(plan), "--to", "torchtitan", "--roles", "EL"]) == 1
    assert f"and the plan has {len(names)}" in capsys.readouterr().err


def test_optimizers_are_those_there_are() -> None:
    assert tuple(OPTIMIZERS) == search_options.OPTIMIZERS
