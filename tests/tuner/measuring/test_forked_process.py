"""A forked worker measures as a started one does, dies as one, and ends with whoever asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from tvm import relax

from records import Status
from tests.harness.local_fleet import wait_until
from tests.harness.processes import has_ended
from tests.samples.partition_samples import partition_module
from tests.tuner.misbehaving_backends import MODULE
from tuner.backends.registry import backends_for
from tuner.measuring.forked_process import ForkedProcess, ForkServer
from tuner.measuring.messages import Build, Done, Failed, Time, Timed, Timing
from tuner.measuring.module_json import json_of
from tuner.measuring.worker_process import WorkerProcess, worker_environment
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

NAMES = ("tvm", f"{MODULE}:crashing", f"{MODULE}:hanging")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    started = ForkServer(worker_environment(1), with_torch=False)
    yield started
    started.close()


def build(backend: str) -> Build:
    module = partition_module(backend, [(4, 8), (8,)], lambda x, y: relax.op.nn.relu(relax.op.add(x, y)))
    return Build(key=1, module_json=json_of(module), check=False, seed=0)


def worker(path: str) -> WorkerProcess:
    target = resolve_target("cpu", num_threads=1)
    return WorkerProcess(target, backends_for(NAMES, target), forked_from=path)


def children(server: ForkServer) -> list[psutil.Process]:
    return psutil.Process(server._process.pid).children()


def test_crashes_and_hangs_fail_alone_and_the_next_worker_is_there_at_once(server: ForkServer) -> None:
    with worker(server.path) as process:
        request = Time(key=1, seed=0, timing=Timing(budget_s=0.01))
        assert isinstance(process.ask(build("tvm"), 60), Done)
        assert isinstance(process.ask(request, 60), Timed)
        (forked,) = children(server)
        assert process.ask(build("crashing"), 60) == Done()
        crashed = process.ask(request, 60)
        assert isinstance(crashed, Failed)
        assert "SIGSEGV during time" in crashed.message
        assert not forked.is_running()
        assert process.ask(build("hanging"), 60) == Done()
        hung = process.ask(request, 1)
        assert isinstance(hung, Failed)
        assert hung.status is Status.TIMEOUT
        assert isinstance(process.ask(build("tvm"), 60), Done)
        assert process.num_starts == 3
    wait_until(lambda: not children(server))


def test_a_killed_client_takes_its_hanging_worker_along(server: ForkServer) -> None:
    """Else the hanging program would keep the device from the next worker's measurements."""
    client = (
        "import time; from tuner.measuring.forked_process import ForkedProcess; "
        f"held = ForkedProcess({server.path!r}); print(1, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", client], stdout=subprocess.PIPE, env=worker_environment(1)
    )
    assert process.stdout is not None
    process.stdout.read(1)
    (forked,) = children(server)
    forked.send_signal(signal.SIGSTOP)  # it cannot see that anybody is gone
    process.kill()
    process.wait()
    wait_until(lambda: has_ended(forked))


@pytest.mark.slow
def test_a_server_that_is_gone_costs_a_slow_start(server: ForkServer) -> None:
    other = ForkServer(worker_environment(1), with_torch=False)
    forked = ForkedProcess(other.path)
    (child,) = children(other)
    path = other.path
    os.kill(other._process.pid, signal.SIGKILL)
    assert forked.wait(300) == -signal.SIGKILL
    wait_until(lambda: has_ended(child))
    other.close()
    with worker(path) as process:
        assert isinstance(process.ask(build("tvm"), 60), Done)
