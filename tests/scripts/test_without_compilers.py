"""Schedules, plans, pictures and records without TVM, XGBoost and torch, and all but records without a
database's library: in a process that refuses them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kernel_physics
import msgspec
import pytest
from tuned_model import tuned_model

from records import open_store
from records.files.exchange import save_records
from tessel import save, shapes
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.pipeline import build_plan
from tessel.search.budget import SearchBudget
from tessel.tuned_plan import save_plan

BLOCKER = """
import os, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
if "fcntl" in sys.argv[1].split(","):
    for name in "fork forkpty killpg setsid getuid sched_getaffinity mkfifo".split():
        delattr(os, name)
from scripts.main import main
for line in sys.stdin.read().splitlines():
    print("$", line, flush=True)
    status = main(line.split())
    print("exit status", status, flush=True)
"""
LEFT_OUT = (
    "tvm,tvm_ffi,xgboost,torch,onnx,onnxruntime,transformers,ortools,scipy,psutil,cloudpickle,tornado,"
    "threadpoolctl"
)
LEFT_OUT_ELSEWHERE = "fcntl,resource,pwd,grp,termios,tty,pty,syslog"
"""Modules of Python that Windows lacks; the blocker takes functions of `os` away with them."""
COMMANDS = """
schedule vshape --devices 2 --micro-batches 2 --save {folder}/schedule.json
schedule vshape --devices 2 --period-only --json
schedule {folder}/placement.json --micro-batches 2 --json
compare {folder}/schedule.json --json
draw {folder}/schedule.json
draw {folder}/schedule.json --out {folder}/picture.svg --compare
draw {folder}/schedule.json --out {folder}/page.html
draw {folder}/schedule.json --out {folder}/trace.json
draw {folder}/schedule.json --out {folder}/report.md
plan examples/profiles/eight_layers.csv --devices 2 --global-batch 4 --work 0.01 \
--placement vshape --joint-backward --save {folder}/plan.json
export {folder}/plan.json --to torch --out {folder}/torch.csv
export {folder}/plan.json --to torchtitan --out {folder}/stages.toml
export {folder}/plan.json --to megatron
export {folder}/plan.json --to deepspeed --out {folder}/schedule.py
export {folder}/plan.json --to markdown --out {folder}/plan.md
check examples/checking/orders.csv --profile examples/checking/profile.csv --work 0.01
check Et*5|t*6|t*6|t*5L --devices 4 --micro-batches 8 --profile examples/checking/profile.csv --work 0.01
run {folder}/schedule.json --csv {folder}/orders.csv
"""
RECORD_COMMANDS = """
records import {folder}/records.jsonl --records {folder}/records.db
records list --records {folder}/records.db
records show 1 --records {folder}/records.db
records stats --records {folder}/records.db
records verify --records {folder}/records.db
records export {folder}/again.jsonl --records {folder}/records.db
records merge {folder}/again.jsonl --records {folder}/other.db
records prune --records {folder}/records.db
"""


def run_without(commands: str, folder: Path, left_out: str = LEFT_OUT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKER, left_out],
        input=commands.strip(),
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parent.parent.parent,
        check=False,
    )


def test_schedules_plans_pictures_and_records_need_none_of_them(tmp_path: Path) -> None:
    save(shapes.vshape(2), tmp_path / "placement.json")
    with open_store(str(tmp_path / "first.db")) as store:
        for record in kernel_physics.many_records(2):
            store.append(record.workload, record.measurement)
        save_records(store, tmp_path / "records.jsonl")
    alone = f"{LEFT_OUT},sqlalchemy,{LEFT_OUT_ELSEWHERE}"
    for commands, left_out in ((COMMANDS, alone), (RECORD_COMMANDS, LEFT_OUT)):
        done = run_without(commands.format(folder=tmp_path), tmp_path, left_out)
        states = [line for line in done.stdout.splitlines() if line.startswith("exit status ")]
        assert states == ["exit status 0"] * len(commands.strip().splitlines()), done.stdout + done.stderr


@pytest.mark.parametrize(
    "command", ["partition mlp", "backends", "cost-model train --records {folder}/first.db"]
)
def test_what_needs_one_says_which_and_how_to_get_it(tmp_path: Path, command: str) -> None:
    with open_store(str(tmp_path / "first.db")):
        pass
    done = run_without(command.format(folder=tmp_path), tmp_path)
    assert "exit status 1" in done.stdout
    assert "is not installed, and this command needs it; python -m pip install" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "extra", "left_out"),
    [
        pytest.param("run {folder}/plan.json", "torch", "torch", marks=pytest.mark.slow),
        ("fleet status tcp://localhost:9", "fleet", "distributed,dask"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("language train --out {folder}/model", "torch", "torch"),
                ("fleet worker tcp://localhost:9", "fleet", "distributed,dask"),
                (
                    "partition mlp --fleet tcp://localhost:9 --records {folder}/new.db",
                    "fleet",
                    "distributed,dask",
                ),
            )
        ),
    ],
)
def test_what_needs_an_extra_says_which(tmp_path: Path, command: str, extra: str, left_out: str) -> None:
    schedule = ONE_F_ONE_B.build(shapes.vshape(2), micro_batches=2)
    save(schedule, tmp_path / "schedule.json")
    made_up = tuned_model([(10.0, 21.0, 11.0, 12.0), (13.0, 27.0, 14.0, 15.0)])
    tuned = msgspec.structs.replace(made_up, model="mlp:tiny")
    budget = SearchBudget(0.1)
    save_plan(
        build_plan(tuned, micro_batches=2, memory_limit_bytes=None, budget=budget), tmp_path / "plan.json"
    )
    done = run_without(command.format(folder=tmp_path), tmp_path, left_out)
    assert "exit status 1" in done.stdout
    assert f"[{extra}]" in done.stderr or f"extra `{extra}`" in done.stderr
    assert "Traceback" not in done.stderr
