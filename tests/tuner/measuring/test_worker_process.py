"""A worker that dies or hangs is buried, and the next request has a new one."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from records import Status
from tuner.backends.registry import backends_for
from tuner.measuring.messages import Build, Failed
from tuner.measuring.worker_process import WorkerProcess
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    target = resolve_target("cpu", num_threads=1)
    with WorkerProcess(target, backends_for(("tvm",), target)) as process:
        yield process


def test_nonsense_is_an_error_and_the_worker_lives_on(worker: WorkerProcess) -> None:
    request = Build(key=1, module_json="not a module", check=False, seed=0)
    reply = worker.ask(request, 60)
    assert isinstance(reply, Failed)
    assert reply.status is Status.ERROR
    assert worker.alive
    starts = worker.num_starts
    worker.ask(request, 60)
    assert worker.num_starts == starts


def test_a_killed_worker_is_replaced(worker: WorkerProcess) -> None:
    request = Build(key=2, module_json="not a module", check=False, seed=0)
    worker.ask(request, 60)
    starts = worker.num_starts
    children = psutil.Process().children()
    for child in children:
        child.kill()
    psutil.wait_procs(children, timeout=5)
    buried = worker.ask(request, 60)
    assert isinstance(buried, Failed)
    reply = worker.ask(request, 60)
    assert isinstance(reply, Failed)
    assert worker.num_starts == starts + 1
    worker.close()
    assert not worker.alive
