"""A run that fails says which rank and shows its log, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from shared_modules import PYTHONPATH

pytest.importorskip("torch")

from pipeline_programs import ChainSpec

from tessel.engine import EngineError, actions_from_csv, schedule_of_actions
from tessel.engine.actions import actions_of
from tessel.engine.job import JobSpec, RunSpec, actions_as_lines
from tessel.engine.ranks.launch import _require_running, _watch, launch
from tessel.engine.ranks.progress import Progress, read_standing
from tessel.shapes import make_shape
from tests.harness.local_fleet import wait_until

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are counted in /proc"),
]

ORDERS = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def failing_job(mishap: str, *, provider: str = "pipeline_programs:provide") -> JobSpec:
    schedule = schedule_of_actions(make_shape("vshape", 2), actions_from_csv(ORDERS))
    return JobSpec(
        num_ranks=2,
        ranks_by_stage=((0,), (1,)),
        micro_batches=2,
        provider=provider,
        provider_spec=msgspec.json.encode(ChainSpec(2, mishap)).decode(),
        runs=(RunSpec(name="only", actions=actions_as_lines(actions_of(schedule))),),
        repeats=1,
        num_threads=1,
    )


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Return a function that lists the ranks that are alive; jobs stand in a folder of this test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def alive() -> list[int]:
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    command = (folder / "cmdline").read_bytes()
                except OSError:
                    continue  # It ended meanwhile.
                if b"tessel.engine.ranks.forkserver" in command and str(tmp_path).encode() in command:
                    found.append(int(folder.name))
        return found

    return alive


@pytest.mark.parametrize(
    ("mishap", "message"),
    [
        pytest.param(
            "die",
            r"rank 1 was ended by signal 9, .* the end of its log: about to fail",
            marks=pytest.mark.slow,
        ),
        ("raise", r"rank 1 ended with status 1, .*about to fail.*RuntimeError: this stage was told to raise"),
    ],
)
def test_the_rank_that_fails_first_is_named_with_its_log(
    mishap: str, message: str, processes: Callable[[], list[int]], tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=message):
        launch(failing_job(mishap), timeout_s=240)
    wait_until(lambda: not processes())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_provider_that_does_not_exist_is_named(processes: Callable[[], list[int]]) -> None:
    with pytest.raises(EngineError, match=r"could not start .*'no_such_module:provide' cannot be imported"):
        launch(failing_job("", provider="no_such_module:provide"), timeout_s=240)
    wait_until(lambda: not processes())


def test_ranks_end_with_the_process_that_launched_them(
    processes: Callable[[], list[int]], tmp_path: Path
) -> None:
    job = tmp_path / "hang.json"
    job.write_bytes(msgspec.json.encode(failing_job("hang")))
    code = (
        "import sys, pathlib, msgspec\n"
        "from tessel.engine.job import JobSpec\n"
        "from tessel.engine.ranks.launch import launch\n"
        "launch(msgspec.json.decode(pathlib.Path(sys.argv[1]).read_bytes(), type=JobSpec), timeout_s=600)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, str(job)], env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    try:
        wait_until(lambda: _some_rank_runs(tmp_path, "running 1F1"))
        assert len(processes()) == 3  # The one that forked the ranks, and two ranks.
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        wait_until(lambda: not processes())
        assert list(tmp_path.glob("tessel-run-*")) == []
    finally:
        launcher.kill()
        launcher.wait()


@pytest.mark.slow
def test_the_rank_that_hangs_is_named_and_not_the_one_that_waits_for_it(
    processes: Callable[[], list[int]],
) -> None:
    with pytest.raises(EngineError, match=r"time-out of 40 s when rank 1 was running 1F1.* about to fail"):
        launch(failing_job("hang"), timeout_s=40)
    wait_until(lambda: not processes())


def test_a_run_that_takes_too_long_is_ended(processes: Callable[[], list[int]]) -> None:
    with pytest.raises(EngineError, match=r"time-out of 0 s when rank 0 was starting"):
        launch(failing_job("hang"), timeout_s=0.1)
    wait_until(lambda: not processes())


def test_progress_is_read_while_it_is_written(tmp_path: Path) -> None:
    assert read_standing(tmp_path, 0) == (False, "starting", False, 0.0)
    progress = Progress(tmp_path, 0)
    assert read_standing(tmp_path, 0) == (False, "starting", False, 0.0)
    progress.wait("waiting for what 0F1 needs")
    assert read_standing(tmp_path, 0) == (True, "waiting for what 0F1 needs", False, 0.0)
    progress.work("running 0F1")
    assert read_standing(tmp_path, 0) == (False, "running 0F1", False, 0.0)
    progress.work("ü" * 1000)
    assert not read_standing(tmp_path, 0).is_waiting


def test_a_rank_that_is_stopped_is_known_even_where_it_was_waiting(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from tessel.engine.ranks.progress import Progress\n"
        "Progress(pathlib.Path(sys.argv[1]), 3).wait('waiting for others')\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        wait_until(lambda: read_standing(tmp_path, 3) == (True, "waiting for others", True, 0.0))
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow  # it waits; how one is known is tried above
def test_a_rank_that_is_stopped_is_named_long_before_the_time_out(
    processes: Callable[[], list[int]],
) -> None:
    """Without a heartbeat only the time-out, of ten minutes here, would end the run."""
    match = (
        r"rank 1 has not answered for \d+ s because its process was stopped while running 1F1.* about to fail"
    )
    with pytest.raises(EngineError, match=match):
        launch(failing_job("stop"), timeout_s=600, silence_s=1.0)
    wait_until(lambda: not processes())


@pytest.mark.slow
@pytest.mark.parametrize(("mishap", "silence_s"), [("stop briefly", 30.0), ("hold the interpreter", 0.1)])
def test_a_rank_that_goes_on_is_not_taken_for_stopped(
    mishap: str, silence_s: float, processes: Callable[[], list[int]]
) -> None:
    results = launch(failing_job(mishap), timeout_s=240, silence_s=silence_s)
    assert [result.rank for result in results] == [0, 1]
    wait_until(lambda: not processes())


def test_silence_alone_is_no_failure(tmp_path: Path) -> None:
    """A rank that computes for long, or waits on a busy machine, may be silent: it is left alone."""
    progress = Progress(tmp_path, 0)
    progress.start_heartbeat()
    wait_until(lambda: read_standing(tmp_path, 0).silent_s > 0)
    _require_running(tmp_path, 0, silence_s=0.0)


def test_a_process_that_starts_ranks_and_is_stopped_is_named(tmp_path: Path) -> None:
    stopped = subprocess.Popen(["sleep", "600"])
    try:
        stopped.send_signal(signal.SIGSTOP)
        with pytest.raises(
            EngineError, match=f"process {stopped.pid} that started the ranks has been stopped"
        ):
            _watch(failing_job(""), tmp_path, stopped, timeout_s=600, silence_s=0.1)
    finally:
        stopped.kill()
        stopped.wait()


def test_more_stage_runs_than_transfers_can_be_told_apart_are_refused() -> None:
    with pytest.raises(EngineError, match="cannot be told apart"):
        msgspec.structs.replace(failing_job(""), micro_batches=1 << 24)


def _some_rank_runs(folder: Path, what: str) -> bool:
    return any(
        read_standing(job, rank).what == what for job in folder.glob("tessel-run-*") for rank in range(2)
    )
