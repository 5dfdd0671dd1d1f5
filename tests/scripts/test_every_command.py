"""Every command, really run: --quiet leaves results alone, --json one document, NO_COLOR no escape codes."""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kernel_physics
import pytest
import typer
from tuned_model import tuned_model

from records import open_store
from scripts.app import app
from scripts.main import main
from scripts.terminal import output_streams
from tessel.pipeline import build_plan
from tessel.progress import messages
from tessel.search.budget import SearchBudget
from tessel.tuned_plan import save_plan

Run = Callable[..., Any]

ARGUMENTS = {
    "schedule": "vshape --devices 2 --micro-batches 2",
    "schedule (period)": "vshape --devices 2 --period-only",
    "schedule (frontier)": "vshape --devices 2 --frontier --work 0.2",
    "schedule (file)": "vshape --devices 2 --micro-batches 2 --save {folder}/saved.json",
    "chunk": "4096 --devices 2 --law 100,10,0.01 --multiple 1024",
    "compare": "{folder}/schedule.json --schedules 1f1b",
    "check": "{folder}/orders.csv --work 0.01",
    "check (layout)": "Et|tL --devices 2 --micro-batches 2 --work 0.01",
    "check (plan)": "{folder}/plan.json --work 0.01",
    "plan": "{folder}/plan.json --devices 2 --micro-batches 4 --work 0.01",
    "export": "{folder}/plan.json --to torch",
    "export (torchtitan)": "{folder}/plan.json --to torchtitan --keep-names --out {folder}/titan.toml",
    "compare (plan)": "{folder}/plan.json --schedules 1f1b --explain",
    "draw": "{folder}/schedule.json",
    "draw (plan)": "{folder}/plan.json",
    "draw (page)": "{folder}/plan.json --out {folder}/page.html",
    "draw (report)": "{folder}/plan.json --out {folder}/report.md",
    "run": "{folder}/schedule.json --csv {folder}/orders.csv",
    "records list": "--records {folder}/records.db --limit 2",
    "records show": "1 --records {folder}/records.db",
    "records stats": "--records {folder}/records.db",
    "records page": "--out {folder}/records.html --records {folder}/records.db",
    "records verify": "--records {folder}/records.db",
    "records export": "{folder}/records.jsonl --records {folder}/records.db",
    "records import": "{folder}/exported.jsonl --records {folder}/new{number}.db",
    "records merge": "{folder}/exported.jsonl --records {folder}/new{number}.db",
    "records prune": "--records {folder}/records.db",
    "cost-model predict": "{fingerprint} --model {folder}/model --records {folder}/records.db",
}
OF_TVM = {
    "targets": "",
    "backends": "",
    "records best": "--records {folder}/records.db",
}
SMALL = "mlp:tiny --infer --threads 1 --backends tvm --records {folder}/measured.db"
SLOW = {
    "doctor": "",
    "cost-model train": "--records {folder}/records.db --out {folder}/model",
    "cost-model evaluate": "--records {folder}/records.db --min-latency-us 0",
    "partition": SMALL,
    "compile": "mlp:tiny --threads 1 --backends tvm --records {folder}/measured.db --out {folder}/mlp.tessel",
    "stages": f"{SMALL} --devices 2",
    "tune": f"{SMALL} --devices 2 --micro-batches 2 --work 0.2 --out {{folder}}/tuned",
    "records best": "mlp:tiny --threads 1 --records {folder}/measured.db",
    "language collect": "--records {folder}/measured.db --out {folder}/draft --kernels dense:4x8x8 "
    "--random 2 --rounds 0",
    "language train": "--records {folder}/measured.db --out {folder}/language --families dense --random 2 "
    "--samples 4 --epochs 2 --layers 1 --width 32 --kernels dense:4x8x8 --trials 3",
    "language generate": "dense:4x8x8 --model {folder}/language --count 2",
    "language evaluate": "--model {folder}/language --kernels dense:4x8x8 --trials 2 "
    "--records {folder}/evaluated.db",
    "records collect": "--networks mlp:tiny --batches 1 --max-samples 1 --threads 1 --backends tvm "
    "--records {folder}/measured.db --save-networks {folder}/networks.json",
}
OF_FLEET = {"fleet worker", "fleet server", "fleet status"}
"""Commands that need a scheduler or a tracker: tests/scripts/commands/test_fleet.py and
tests/tuner/fleet/test_rpc_pool.py."""

WRITES_A_FILE_ONLY = {"export (torchtitan)", "draw (page)", "draw (report)", "run", "records page"}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, child in getattr(command, "commands", {}).items():
        yield from leaves(child, (*path, name)) if hasattr(child, "commands") else (" ".join((*path, name)),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schedule, a plan, records of a formula's latencies, and a cost model trained on them."""
    folder = tmp_path_factory.mktemp("inputs")
    plan = build_plan(
        tuned_model([(10.0, 21.0, 11.0, 12.0), (13.0, 27.0, 14.0, 15.0)]),
        micro_batches=2,
        memory_limit_bytes=None,
        budget=SearchBudget(1.0),
    )
    save_plan(plan, folder / "plan.json")
    with open_store(str(folder / "records.db")) as store:
        for record in kernel_physics.many_records(45):
            store.append(record.workload, record.measurement)
    for command in (
        f"schedule vshape --devices 2 --micro-batches 2 --save {folder}/schedule.json",
        f"run {folder}/schedule.json --csv {folder}/orders.csv",
        f"records export {folder}/exported.jsonl --records {folder}/records.db",
        f"cost-model train --records {folder}/records.db --out {folder}/model",
    ):
        assert main(["--quiet", *command.split()]) == 0
    messages.set_verbosity(quiet=False, verbose=False)
    return folder


def test_every_command_is_run_here() -> None:
    known = {name.partition(" (")[0] for name in (*ARGUMENTS, *OF_TVM, *SLOW)}
    assert known | OF_FLEET == set(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_command_says_what_it_was_asked_for(
    tessel: Run, monkeypatch: pytest.MonkeyPatch, folder: Path, name: str
) -> None:
    check(tessel, monkeypatch, folder, name, ARGUMENTS[name])


@pytest.mark.tvm
@pytest.mark.parametrize("name", OF_TVM)
def test_a_command_about_backends_says_what_it_was_asked_for(
    tessel: Run, monkeypatch: pytest.MonkeyPatch, folder: Path, name: str
) -> None:
    check(tessel, monkeypatch, folder, name, OF_TVM[name])


@pytest.mark.slow  # they train 15 models, or measure for a minute what is not in the records yet
@pytest.mark.tvm
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_command_says_what_it_was_asked_for(
    tessel: Run, monkeypatch: pytest.MonkeyPatch, folder: Path, name: str
) -> None:
    check(tessel, monkeypatch, folder, name, SLOW[name])


@pytest.mark.parametrize("path", ["", "records", "schedule"])  # all go through the same two lines
def test_no_color_leaves_no_escape_codes_in_help(
    tessel: Run, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    plain_terminal(monkeypatch)
    outcome = tessel(*path.split(), "--help")
    assert outcome.status == 0
    assert "\x1b" not in outcome.stdout


def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have output take a colour terminal for granted, and the user want no colours."""
    monkeypatch.setattr("typer.rich_utils.COLOR_SYSTEM", "auto")
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", True)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)


def check(tessel: Run, monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, template: str) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    plain_terminal(monkeypatch)
    numbers = itertools.count()
    fingerprint = kernel_physics.many_records(1)[-1].workload.fingerprint

    def run(*flags: str) -> Any:
        filled = template.format(folder=folder, number=f"{name[-5:]}{next(numbers)}", fingerprint=fingerprint)
        return tessel(*name.partition(" (")[0].split(), *filled.split(), *flags)

    quiet = run("--quiet")
    assert (quiet.status, quiet.stderr) == (0, "")
    assert bool(quiet.stdout) == (name not in WRITES_A_FILE_ONLY)
    for line in quiet.stdout.splitlines():
        assert "\x1b" not in line
        # Facts about one record or device are lines of their own length; tables are not.
        assert len(line) <= 100 or not line.startswith(" ") or str(folder) in line

    if name == "doctor":
        return  # it starts a process with TVM; test_doctor_command.py reads its JSON
    as_json = run("--json")
    assert as_json.status == 0, as_json.stderr
    assert isinstance(json.loads(as_json.stdout), dict)
    assert "\x1b" not in as_json.stdout + as_json.stderr
    if name not in SLOW:
        for flag in ("--quiet", "--json"):
            in_ascii = run_in_ascii(monkeypatch, lambda flag=flag: run(flag))
            assert in_ascii or (flag == "--quiet" and name in WRITES_A_FILE_ONLY)


def run_in_ascii(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> bytes:
    """Run with a stdout that has 128 characters and refuses all others, as the process makes ready for it."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii", errors="strict")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        output_streams.make_lenient(stream)
        outcome = run()
        stream.flush()
    assert outcome.status == 0, outcome
    return written.getvalue()
