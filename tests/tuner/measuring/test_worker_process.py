"""A worker that dies or hangs is reaped, and the next request has a new one."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from tvm import relax

from records import Status
from tests.samples.partition_samples import partition_module
from tests.tuner.misbehaving_backends import MODULE
from tuner.backends.registry import backends_for
from tuner.measuring.messages import ArrayInfo, Build, Done, Failed, Run
from tuner.measuring.module_json import json_of
from tuner.measuring.worker_process import WorkerProcess
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    target = resolve_target("cpu", num_threads=1)
    with WorkerProcess(target, backends_for(("tvm",), target)) as process:
        yield process


def _workers() -> list[psutil.Process]:
    """Return the workers among this process's children, which other tests may have some of too."""
    children = psutil.Process().children()
    return [child for child in children if any("tuner.measuring.worker" in word for word in child.cmdline())]


def test_a_worker_imports_torch_only_where_a_backend_calls_it() -> None:
    """Torch, which tvm_ffi imports, doubled the time and the memory that a worker needs to start.

    XGBoost, and scikit-learn with it, took three seconds beside a GPU.
    """
    command = [sys.executable, "-X", "importtime", "-m", "tuner.measuring.worker.server", "no descriptor"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time")}
    assert "tvm.relax" in imported
    assert not imported & {
        "torch.nn",
        "scipy.stats",
        "xgboost",
        "sklearn",
    }  # an attempt at torch itself is listed too


def test_nonsense_is_an_error_and_the_worker_lives_on(worker: WorkerProcess) -> None:
    request = Build(key=1, module_json="not a module", check=False, seed=0)
    reply = worker.ask(request, 60)
    assert isinstance(reply, Failed)
    assert reply.status is Status.ERROR
    assert worker.alive
    starts = worker.num_starts
    worker.ask(request, 60)
    assert worker.num_starts == starts


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is told whom to kill")
def test_the_kernel_kills_a_worker_first_where_memory_is_short(worker: WorkerProcess) -> None:
    worker.ask(Build(key=1, module_json="not a module", check=False, seed=0), 60)
    (process,) = _workers()
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip() == "1000"


def test_a_killed_worker_is_replaced(worker: WorkerProcess) -> None:
    request = Build(key=2, module_json="not a module", check=False, seed=0)
    worker.ask(request, 60)
    starts = worker.num_starts
    workers = _workers()
    assert workers
    for process in workers:
        process.kill()
    psutil.wait_procs(workers, timeout=300)
    killed = worker.ask(request, 60)
    assert isinstance(killed, Failed)
    assert killed.status is Status.ERROR
    reply = worker.ask(request, 60)
    assert isinstance(reply, Failed)
    assert worker.num_starts == starts + 1
    worker.close()
    assert not worker.alive


@pytest.mark.slow  # a worker of its own starts
def test_nothing_is_left_of_a_worker_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker, its libraries and compilers write is removed by the process that started it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    target = resolve_target("cpu", num_threads=1)
    module = partition_module("littering", [(4, 8)], relax.op.nn.relu)
    with WorkerProcess(target, backends_for((f"{MODULE}:littering",), target)) as process:
        request = Build(key=1, module_json=json_of(module), check=False, seed=0)
        assert process.ask(request, 60) == Done()
        assert list(tmp_path.rglob("litter"))
        process.interrupt()
        assert isinstance(process.ask(request, 60), Failed)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "num_bytes",
    [pytest.param(0, marks=pytest.mark.slow), 2**24],
    ids=["that waits", "that does not read"],
)
def test_a_worker_that_hangs_is_killed_in_time(worker: WorkerProcess, num_bytes: int) -> None:
    """A stopped worker reads nothing: what a socket buffers is sent, more blocks the sender too."""
    worker.ask(Build(key=3, module_json="not a module", check=False, seed=0), 60)
    for process in _workers():
        process.suspend()
    array = np.zeros(num_bytes, np.uint8)
    request = Run(module_json="", function="main", arrays=(ArrayInfo(array.shape, "uint8"),))
    failed = worker.run(request, [array], timeout_s=0.2)
    assert isinstance(failed, Failed)
    assert failed.status is Status.TIMEOUT
    assert failed.message == "run did not end within 0.2 s, so it was killed"
    assert not worker.alive
    assert not _workers()


WATCHED = """
import sys
from tuner.measuring.worker_process import _Deadline

deadline = _Deadline(3.0, lambda: None)
with deadline:
    print("begun", flush=True)
    sys.stdin.readline()
print(deadline.is_over)
"""


@pytest.mark.slow  # it waits
def test_time_in_which_the_tuner_is_stopped_is_no_time_out() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as tuner:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == b"begun\n"
        tuner.send_signal(signal.SIGSTOP)
        time.sleep(3.5)  # longer than the time-out
        tuner.send_signal(signal.SIGCONT)
        output, _ = tuner.communicate(b"a reply\n")
    assert output == b"False\n"
