"""A plan from Python is the command's own, from every form of a table, and ends as a caller wants it to."""

from __future__ import annotations

import csv
import os
import signal
import threading
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import tessel
from scripts.commands.check.command import CheckCommandOptions
from scripts.commands.plan.options import PlanCommandOptions
from scripts.commands.run.command import RunCommandOptions
from scripts.commands.tune.command import TuneCommandOptions
from scripts.main import main
from tessel.errors import DocumentError, UsageError
from tessel.jobs.inputs.check_options import CheckOptions
from tessel.jobs.inputs.plan_options import PlanOptions
from tessel.jobs.inputs.tune_options import TuneOptions
from tessel.jobs.running.options import RunOptions
from tessel.profiles import load_profile
from tessel.profiles.profile import Profile

TABLE = Path(__file__).parents[3] / "examples" / "profiles" / "eight_layers.csv"
ASKED = {"devices": 2, "micro_batches": 4, "work": 0.3, "seed": 3, "progress": False}


def rows() -> list[dict[str, str]]:
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def found() -> tessel.Plan:
    return tessel.plan(TABLE, **ASKED)


def layout_and_step(plan: tessel.Plan) -> tuple[object, float]:
    assert plan.planned is not None
    return plan.planned.layout, plan.step_ms


def as_frame() -> Any:
    return pytest.importorskip("pandas").read_csv(TABLE, comment="#")


@pytest.mark.parametrize(
    "source",
    [
        rows,
        as_frame,
        lambda: {name: [row[name] for row in rows()] for name in rows()[0]},
        lambda: load_profile(TABLE),
    ],
    ids=["rows", "frame", "columns", "profile"],
)
def test_every_form_of_a_table_gives_the_same_plan(found: tessel.Plan, source: Any) -> None:
    assert layout_and_step(tessel.plan(source(), **ASKED)) == layout_and_step(found)


def test_the_command_saves_the_plan_that_the_call_returns(found: tessel.Plan, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    asked = "--devices 2 --micro-batches 4 --work 0.3 --seed 3 --json -q --save"
    assert main(["plan", str(TABLE), *asked.split(), str(saved)]) == 0
    found.save(tmp_path / "own.json")
    assert saved.read_bytes() == (tmp_path / "own.json").read_bytes()
    assert tessel.load_plan(saved).to_json() == found.to_json()


def test_a_plan_is_planned_again_from_itself(found: tessel.Plan) -> None:
    again = tessel.plan(found, **{**ASKED, "devices": 4})
    assert again.planned is not None
    assert found.planned is not None
    assert again.planned.profile == found.planned.profile
    assert again.step_ms < found.step_ms


@pytest.mark.parametrize(
    ("command", "library"),
    [
        (PlanCommandOptions, PlanOptions),
        (TuneCommandOptions, TuneOptions),
        (CheckCommandOptions, CheckOptions),
        (RunCommandOptions, RunOptions),
    ],
)
def test_names_and_defaults_are_the_commands_own(command: type, library: type) -> None:
    """Options that a command reads as a list are None there and empty here; numbers may be text there."""
    renamed = {"tvm_database": "database", "format": "format_name"}
    own = {each.name: each for each in fields(command)}
    for each in fields(library):
        option = own[renamed.get(each.name, each.name)]
        assert (each.default is MISSING) == (option.default is MISSING), each.name
        alike = (option.default, ()) if option.default != str(each.default) else (each.default,)
        assert each.default in alike, each.name


def test_an_option_that_is_none_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="there is no option device; did you mean devices"):
        tessel.plan(TABLE, device=2)
    with pytest.raises(UsageError, match="the option devices is missing"):
        tessel.plan(TABLE)
    with pytest.raises(UsageError, match="'16' is 16 bytes, without a unit"):
        tessel.plan(TABLE, devices=2, memory=16)
    with pytest.raises(UsageError, match=r"adan.*did you mean 'adam'"):
        tessel.plan(TABLE, devices=2, optimizer="adan")
    with pytest.raises(DocumentError, match="the column weights_mib is missing"):
        tessel.plan([{"layer": "a", "forward_ms": 1}], devices=1)


def test_what_does_not_fit_says_so(tmp_path: Path) -> None:
    nearest = tessel.plan(TABLE, **{**ASKED, "memory": "1GiB"})
    assert not nearest.fits
    assert "GiB" in nearest.shortfall
    assert "DOES NOT FIT" in str(nearest.explain())
    nearest.save(tmp_path / "nearest.json")
    with pytest.raises(
        DocumentError, match=r"does not fit: without activations, devices \d lack .*more memory"
    ):
        tessel.load_plan(tmp_path / "nearest.json")


def test_sizes_and_speeds_are_numbers_too() -> None:
    options = PlanOptions(
        devices=2, device_memory=[8 << 30, "4GiB"], device_speed=(1, 0.5), link=25e9, time_limit=3
    )
    cluster = options.cluster()
    assert cluster.device_memory_bytes == (8 << 30, 4 << 30)
    assert cluster.device_speed == (1.0, 0.5)
    assert cluster.hop.bytes_per_s == 25e9
    assert options.budget().time_limit_s == 3


def test_progress_is_silent_on_request(capsys: pytest.CaptureFixture[str], found: tessel.Plan) -> None:
    tessel.plan(TABLE, **ASKED)
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_ends_a_plan_with_the_best_so_far(found: tessel.Plan) -> None:
    """The signal comes once there is an answer; the handler of the caller is back afterwards."""
    before = signal.getsignal(signal.SIGINT)
    tessel.plan(TABLE, **ASKED)  # loads what the next one needs
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    plan = tessel.plan(TABLE, devices=8, micro_batches=64, memory="6GiB", work=5000, progress=False)
    timer.cancel()
    assert plan.stopped_by in ("interrupt", "proven")
    assert plan.step_ms >= plan.lower_bound_ms
    assert signal.getsignal(signal.SIGINT) is before


def test_a_plan_says_what_it_is(found: tessel.Plan, tmp_path: Path) -> None:
    assert "ms a step" in repr(found)
    assert "<table>" in found._repr_html_()
    text = str(found.explain())
    assert "best plan" in text
    assert "1f1b" in text
    loaded = tessel.load_plan(found.save(tmp_path / "plan.json"))
    assert isinstance(loaded.profile, Profile)  # the document's fields are attributes
    assert str(loaded.explain()).count("eight layers") == 1
    assert found.compare(["1f1b", "gpipe"]).rows[0].makespan <= found.schedule.makespan
    for name in ("plan.svg", "plan.html", "plan.json", "plan.txt", "plan.md"):
        assert found.draw(tmp_path / f"drawn_{name}").stat().st_size
    with pytest.raises(UsageError, match="suffix"):
        found.draw(tmp_path / "plan.gif")


def test_exports_are_the_commands_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tessel.plan(TABLE, **ASKED, placement="vshape", pipeline=2)
    saved = plan.save(tmp_path / "plan.json")
    assert main(["export", str(saved), "--to", "torch", "--out", str(tmp_path / "orders.csv")]) == 0
    texts = plan.export("torch", tmp_path / "own.csv")
    assert (tmp_path / "own.csv").read_text() == (tmp_path / "orders.csv").read_text()
    assert list(texts) == [str(tmp_path / "own.csv")]
    assert "#" in next(iter(plan.export("markdown").values()))
    with pytest.raises(UsageError, match="'pytorch' is not known"):
        plan.export("pytorch")


def test_a_plan_is_checked_as_it_is(found: tessel.Plan, tmp_path: Path) -> None:
    direct = tessel.check(found, work=0.2, progress=False)
    from_file = tessel.check(found.save(tmp_path / "plan.json"), work=0.2, progress=False)
    assert direct.fits
    assert not direct.deadlock
    assert direct.found is not None
    assert from_file.found is not None
    assert direct.found.schedule == from_file.found.schedule
    assert direct.lower_bound == from_file.lower_bound


def test_the_check_counts_the_plans_own_framework() -> None:
    """A framework whose hops block makes a step longer, for the check as for the plan."""
    plan = tessel.plan(TABLE, **{**ASKED, "runtime": "deepspeed", "link": "2GB/s", "placement": "vshape"})
    assessment = tessel.check(plan, work=0.1, progress=False)
    assert assessment.found is not None
    assert assessment.found.length == pytest.approx(plan.step_ms * 1e3, rel=0.01)


@pytest.mark.parametrize("offload", ["optimizer", "activations"])
def test_what_inference_does_not_keep_is_not_put_on_the_hosts(offload: str) -> None:
    columns = ("layer", "forward_ms", "weights_mib", "boundary_mib")
    forwards = [{name: each[name] for name in columns} for each in rows()]
    with pytest.raises(UsageError, match=rf"--offload {offload}: \S+ is not trained"):
        tessel.plan(forwards, **ASKED, host_link="50GB/s", offload=offload)
