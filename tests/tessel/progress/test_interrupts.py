"""Ctrl-C at any moment of a command: never a traceback, and the best schedule so far once there is one."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tessel.errors import ScheduleError
from tessel.jobs import search_thread
from tessel.progress import interrupts
from tessel.search.budget import SearchBudget

ROOT = Path(__file__).resolve().parents[3]

SITE = """
# Before the program's first instruction Ctrl-C is the interpreter's affair: end as it would.
import os, signal
signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
if os.environ.pop("TEST_SAYS_STARTED", None):  # Processes that the command starts do not say it again.
    os.write(2, b"started\\n")
"""

SEARCH = (
    *("schedule", "zbv", "--devices", "8", "--micro-batches", "16", "--split-backward", "--memory", "7"),
    *("--work", "1000", "--json"),
)

PLAN = (
    *("plan", str(ROOT / "examples" / "profiles" / "eight_layers.csv"), "--devices", "4"),
    *("--memory", "8GiB", "--work", "1000", "--json"),
)


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command and return once its interpreter is about to run it."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "TEST_SAYS_STARTED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "started\n"
    return process


def interrupted_after(seconds: float, tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    """Return status, stdout and stderr of a command that is interrupted so long after its start."""
    process = start(tmp_path, *arguments)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)
    return process.returncode, stdout, stderr


def check(status: int, stdout: str, stderr: str) -> None:
    """Either nothing was found, which one line says, or a whole schedule is there."""
    assert "Traceback" not in stderr
    assert "Traceback" not in stdout
    if status == 130:
        assert stdout == ""
        assert stderr.strip().splitlines()[-1:] in (
            [],
            ["tessel: interrupted; finished measurements are kept"],
        )
    else:
        assert status == 0, stderr
        found = json.loads(stdout)
        assert found["stopped_by"] == "interrupt"
        assert len(found["starts"]) == found["micro_batches"] * len(found["placement"]["blocks"])


def moments(count: int, *, seed: int, longest_s: float) -> list[float]:
    rng = random.Random(seed)
    return [rng.uniform(0, longest_s) for _ in range(count)]


@pytest.mark.parametrize("seconds", moments(3, seed=1, longest_s=2.5))
def test_ctrl_c_at_any_moment_leaves_a_schedule_or_one_line(seconds: float, tmp_path: Path) -> None:
    check(*interrupted_after(seconds, tmp_path, *SEARCH))


def check_plan(status: int, stdout: str, stderr: str) -> None:
    """Either nothing was found, which one line says, or a whole plan is there, as fast as what it names."""
    if status == 130:
        check(status, stdout, stderr)
        return
    assert status == 0, stderr
    assert "Traceback" not in stderr
    found = json.loads(stdout)
    assert found["stopped_by"] == "interrupt"
    assert found["best"]["fits"]
    steps = [row["step_ms"] for row in found["baselines"] if row["fits"]]
    assert found["best"]["step_ms"] <= min(steps, default=float("inf"))


@pytest.mark.parametrize("seconds", moments(1, seed=3, longest_s=4.0))
def test_ctrl_c_while_planning_leaves_a_plan_or_one_line(seconds: float, tmp_path: Path) -> None:
    check_plan(*interrupted_after(seconds, tmp_path, *PLAN))


@pytest.mark.slow
def test_ctrl_c_in_planning_gives_the_best_so_far(tmp_path: Path) -> None:
    process = start(tmp_path, *PLAN)
    assert process.stderr is not None
    assert any("best so far" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)
    check_plan(process.returncode, stdout, stderr)
    assert process.returncode == 0


@pytest.mark.slow
def test_ctrl_c_at_three_hundred_moments(tmp_path: Path) -> None:
    statuses = []
    for seconds in moments(300, seed=2, longest_s=8.0):
        outcome = interrupted_after(seconds, tmp_path, *SEARCH)
        check(*outcome)
        statuses.append(outcome[0])
    assert {0, 130} == set(statuses)


@pytest.mark.slow
def test_ctrl_c_in_the_search_gives_the_best_so_far(tmp_path: Path) -> None:
    process = start(tmp_path, *SEARCH)
    assert process.stderr is not None
    # A plain line of progress comes every ten seconds.
    assert any("best so far" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)
    check(process.returncode, stdout, stderr)
    assert process.returncode == 0


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Ctrl-C as the program takes it, in this process."""
    before = signal.signal(signal.SIGINT, interrupts._handle)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    interrupts.raise_in_work()


def test_an_answer_is_taken_from_a_search_that_does_not_look_up(ctrl_c: Callable[[], None]) -> None:
    budget = SearchBudget(None, None)
    is_done = threading.Event()

    def search() -> str:
        budget.answer = lambda: "best so far"
        budget.report(1, 0, "a rule")
        ctrl_c()
        is_done.wait()
        return "too late"

    assert search_thread.run_search(search, budget, description="searching") == "best so far"
    assert (budget.stopped_by, search_thread.is_any_abandoned()) == ("interrupt", True)
    is_done.set()


def test_a_search_that_looks_up_ends_by_itself(ctrl_c: Callable[[], None]) -> None:
    budget = SearchBudget(None, None)

    def search() -> str:
        budget.report(1, 0, "a rule")
        ctrl_c()
        while not budget.is_over:
            time.sleep(0.001)
        return "ended by itself"

    assert search_thread.run_search(search, budget, description="searching") == "ended by itself"
    assert budget.stopped_by == "interrupt"


def test_a_search_whose_time_is_over_is_not_waited_for() -> None:
    budget = SearchBudget(None, 0.01)
    is_done = threading.Event()

    def search() -> str:
        budget.answer = lambda: "best so far"
        is_done.wait()
        return "too late"

    assert search_thread.run_search(search, budget, description="searching") == "best so far"
    assert budget.stopped_by == "time"
    is_done.set()


def test_an_error_of_the_search_is_raised_where_it_is_waited_for() -> None:
    def search() -> None:
        raise ScheduleError("nothing was found")

    with pytest.raises(ScheduleError, match="nothing was found"):
        search_thread.run_search(search, SearchBudget(), description="searching")


def test_printing_goes_on_and_a_second_ctrl_c_is_meant(
    ctrl_c: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[None] = []
    monkeypatch.setattr(interrupts, "leave", lambda: left.append(None))
    with interrupts.deferred():
        ctrl_c()
        ctrl_c()
        assert left == []
        monkeypatch.setattr(interrupts, "PATIENCE_S", 0.0)
        ctrl_c()
    assert left == [None]
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()


def test_half_an_import_is_no_state_to_go_on_from(
    ctrl_c: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left: list[None] = []
    monkeypatch.setattr(interrupts, "leave", lambda: left.append(None))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "interrupted_module.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    )
    with pytest.raises(KeyboardInterrupt):  # `leave` does not return where it is not replaced
        importlib.import_module("interrupted_module")
    assert left == [None]


def test_an_interrupt_that_python_would_lose_leaves(
    ctrl_c: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[None] = []
    monkeypatch.setattr(interrupts, "leave", lambda: left.append(None))
    monkeypatch.setattr(sys, "unraisablehook", interrupts._leave_where_lost)

    class Lost:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    lost = Lost()
    del lost
    assert left == [None]


@pytest.mark.parametrize(
    "arguments",
    [
        ("schedule", "nnshape", "--devices", "8", "--frontier", "--work", "1000", "--json"),
        ("tune", "gpt2:tiny", "--devices", "2", "--out", "out"),
        ("partition", "gpt2:tiny"),
        ("compile", "gpt2:tiny", "--out", "net.tessel"),
        ("doctor",),
        ("--help",),
    ],
)
def test_other_commands_show_no_traceback_at_their_start(arguments: tuple[str, ...], tmp_path: Path) -> None:
    for seconds in moments(1, seed=len(arguments), longest_s=1.0):
        status, stdout, stderr = interrupted_after(seconds, tmp_path, *arguments)
        assert "Traceback" not in stderr + stdout
        # Ended by the signal itself, while Python starts or ends, is what a shell calls 130 too.
        assert status in (0, 1, 130, -signal.SIGINT)
