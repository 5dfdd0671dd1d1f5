"""`tessel fleet` and `--fleet`: the same partition as without a fleet, from what the fleet measured."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.local_fleet import ROOT, LocalFleet, wait_until
from tests.tuner.fleet.rpc_devices import RpcDevices
from tuner.fleet.task_queue import TaskQueue

pytestmark = pytest.mark.tvm

Run = Callable[..., Any]


@dataclass(frozen=True)
class Fleet:
    """A fleet of one worker, and the file of what the worker says."""

    address: str
    worker: subprocess.Popen[bytes]
    said: Path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    said = tmp_path_factory.mktemp("fleet") / "said"
    with LocalFleet() as started, said.open("wb") as stderr:
        command = ("fleet", "worker", started.address, "--threads", "1", "--backends", "tvm,blas")
        worker = subprocess.Popen([sys.executable, "-m", "scripts", *command], stderr=stderr, cwd=ROOT)
        started.end_with_it(worker)
        tasks = TaskQueue(started.address)
        wait_until(lambda: len(tasks.workers()) == 1)
        tasks.close()
        yield Fleet(started.address, worker, said)


@pytest.mark.slow  # a fleet starts; tests/tuner/fleet/test_fleet.py has one
def test_the_partition_is_the_local_one(tessel: Run, fleet: Fleet, tmp_path: Path) -> None:
    """A second run, on this machine, finds every record: the fleet's machine is this one."""
    arguments = ["partition", "mlp:tiny", "--infer", "--threads", "1", "--backends", "tvm,blas", "--json"]
    arguments += ["--records", str(tmp_path / "records.db")]
    through_fleet = tessel(*arguments, "--fleet", fleet.address)
    here = tessel(*arguments)
    assert (through_fleet.status, here.status) == (0, 0)
    one, other = json.loads(through_fleet.stdout), json.loads(here.stdout)
    assert one["new_measurements"] > 0
    assert other["new_measurements"] == 0
    for document in (one, other):
        del document["new_measurements"], document["reused_measurements"]
    assert one == other


@pytest.mark.slow  # a fleet starts; tests/tuner/fleet/test_fleet.py has one
def test_its_status_is_one_document(tessel: Run, fleet: Fleet) -> None:
    result = tessel("fleet", "status", fleet.address, "--json")
    assert result.status == 0
    (machine,) = json.loads(result.stdout)["machines"]
    assert {"tvm", "blas"} <= set(machine["backends"])
    assert "1 machine" in tessel("fleet", "status", fleet.address).stdout


def test_nobody_at_the_address_is_one_line(tessel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.fleet.task_queue.CONNECT_S", 1.0)
    result = tessel("fleet", "status", "tcp://127.0.0.1:9")
    assert result.status == 1
    assert "no scheduler of a fleet answers at tcp://127.0.0.1:9" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_worker_for_another_machines_scheduler_says_where_it_listens(tessel: Run) -> None:
    result = tessel("fleet", "worker", "tcp://10.0.0.5:8786")
    assert result.status == 2
    assert "--host" in result.stderr


@pytest.mark.slow  # a fleet starts; tests/tuner/fleet/test_fleet.py has one
def test_a_worker_ends_with_ctrl_c_and_without_a_traceback(fleet: Fleet) -> None:
    """The last of the tests of this fleet: it is over then."""
    wait_until(lambda: "measuring for" in fleet.said.read_text())
    fleet.worker.send_signal(signal.SIGINT)
    assert fleet.worker.wait(timeout=400) == 0
    assert "Traceback" not in fleet.said.read_text()


@pytest.mark.slow
def test_a_partition_through_the_tracker_is_the_local_one(tessel: Run, tmp_path: Path) -> None:
    """A second run, on this machine, finds every record: the device is this machine."""
    with RpcDevices() as devices:
        devices.serve()
        devices.wait_for(1)
        arguments = ["partition", "mlp:tiny", "--infer", "--backends", "tvm", "--json"]
        arguments += ["--records", str(tmp_path / "records.db")]
        there = tessel(*arguments, "--target", devices.address())
        here = tessel(*arguments, "--threads", "1")
        assert (there.status, here.status) == (0, 0), there.stderr + here.stderr
        one, other = json.loads(there.stdout), json.loads(here.stdout)
        assert one["new_measurements"] > 0
        for document in (one, other):
            del document["new_measurements"], document["reused_measurements"]
        assert one["partitions"] == other["partitions"]
        options = (("--trials", "4"), ("--threads", "2"), ("--backends", "blas"), ("--price", "active"))
        for option in options:
            refused = tessel("partition", "mlp:tiny", "--target", devices.address(), *option)
            assert refused.status == 2
            assert "RPC tracker" in refused.stderr
