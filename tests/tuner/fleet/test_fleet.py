"""What a fleet measures is what this machine would: a record a candidate, with the machine's environment."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from records import Record, RecordStore, Status, open_store
from tests.harness.fleet_tasks import temporary_folder
from tests.harness.local_fleet import LocalFleet, wait_until
from tests.samples.partition_samples import function_module, part_of, partition_module
from tests.tuner.misbehaving_backends import MODULE
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.kernel_exchange import read_kernels
from tuner.backends.registry import backends_for
from tuner.errors import TunerError
from tuner.fleet.device_worker import check_reachable
from tuner.fleet.fleet_pool import FleetPool, FleetTarget, find_machines
from tuner.fleet.status import fleet_status
from tuner.fleet.task_queue import TaskQueue
from tuner.lowering.workload_of import workload_of
from tuner.measuring.measurer import Measurer
from tuner.measuring.messages import Timing
from tuner.measuring.request import Limits, MeasureRequest
from tuner.targets.resolution import resolve_target
from tuner.tuning.session import SessionSettings, start_session

pytestmark = pytest.mark.tvm

op = relax.op

LIMITS = Limits(build_timeout_s=60, run_timeout_s=10, timing=Timing(budget_s=0.01, max_samples=5))
REFERENCES = ("tvm", "blas", *(f"{MODULE}:{name}" for name in ("crashing", "hanging", "wrong")))


def request(backend: str, *, width: int = 8, check: bool = True) -> MeasureRequest:
    module = partition_module(backend, [(4, width), (width,)], lambda x, y: op.nn.relu(op.add(x, y)))
    return MeasureRequest(workload=workload_of(part_of(module)), module=module, backend=backend, check=check)


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with LocalFleet() as started:
        for _ in range(2):
            started.start_device_worker("--threads", "1")
        tasks = TaskQueue(started.address)
        wait_until(lambda: len(tasks.workers()) == 2)
        tasks.close()
        yield started


def found(fleet: LocalFleet, *, target: str = "cpu", threads: int | None = None) -> FleetTarget:
    tasks = TaskQueue(fleet.address)
    try:
        return find_machines(tasks, target, num_threads=threads, backends=REFERENCES)
    finally:
        tasks.close()


def measurer(fleet: LocalFleet, store: RecordStore) -> Measurer:
    tasks = TaskQueue(fleet.address)
    machines = find_machines(tasks, "cpu", num_threads=None, backends=REFERENCES)
    backends = backends_for(REFERENCES, machines.target)
    pool = FleetPool(tasks, machines, backends, limits=LIMITS, seed=0)
    return Measurer(store, machines.target, backends, limits=LIMITS, pool=pool)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    with open_store(str(tmp_path / "records.db")) as opened:
        yield opened


def test_its_machines_are_those_of_the_target_with_its_threads(fleet: LocalFleet) -> None:
    machines = found(fleet)
    assert machines.num_machines == 2
    assert machines.target == resolve_target("cpu", num_threads=1)
    assert machines.device == environment_of(machines.target)
    with pytest.raises(TunerError, match="measures with 1 threads, not 7"):
        found(fleet, threads=7)
    with pytest.raises(TunerError, match=r"none of the 2 workers .* measures for 'cuda'"):
        found(fleet, target="cuda")


def test_each_candidate_has_one_record_with_the_machines_environment(
    fleet: LocalFleet, store: RecordStore
) -> None:
    with measurer(fleet, store) as measuring:
        requests = [
            request("tvm"),
            request("crashing", check=False),
            request("hanging", check=False),
            *(request("wrong", width=width) for width in (8, 16, 24)),
            *(request("tvm", width=width) for width in (16, 24)),
            request("tvm"),
        ]
        records = measuring.measure_many(requests)
        assert [each.measurement.status for each in records] == [
            Status.OK,
            Status.ERROR,
            Status.TIMEOUT,
            *[Status.ERROR] * 3,
            *[Status.OK] * 3,
        ]
        assert "SIGSEGV" in records[1].measurement.message
        assert all(record.measurement.message.startswith("wrong numbers") for record in records[3:6])
        assert records[0].measurement.relative_error == 0.0
        for record in records:
            backend = next(each for each in measuring.backends if each.name == record.measurement.backend)
            assert record.measurement.environment == environment_of(measuring.target, backend)
        assert store.stats().measurements == 8
        assert measuring.measure_many(requests) == records


def test_programs_race_run_and_are_compared_on_a_machine(fleet: LocalFleet, store: RecordStore) -> None:
    shapes = [(8, 16), (16, 8)]
    mix = partition_module("blas", shapes, lambda x, w: op.matmul(x, w))
    right = function_module(shapes, lambda x, w: op.matmul(x, w))
    arrays = [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in shapes]
    with measurer(fleet, store) as measuring:
        (product,) = measuring.run(mix, arrays)
        np.testing.assert_allclose(product, arrays[0] @ arrays[1], rtol=1e-5, atol=1e-5)
        assert measuring.compare(mix, right).relative_error < 1e-5
        wrong = function_module(shapes, lambda x, w: op.negative(op.matmul(x, w)))
        assert measuring.compare(mix, wrong).relative_error > 1
        workload = workload_of(part_of(mix), "model")
        rivals = [
            MeasureRequest(
                workload=workload,
                module=request("tvm", width=width).module,
                backend="mix",
                settings=str(width),
            )
            for width in (64, 1 << 18)
        ]
        result, records = measuring.race(rivals)
        assert result.survivors == (0,)
        assert measuring.race(rivals) == (result, records)


def test_two_tuners_measure_a_candidate_once(fleet: LocalFleet, tmp_path: Path) -> None:
    """Both ask for the same eight, in opposite orders, and share one file of records."""
    requests = [request("tvm", width=width, check=False) for width in range(32, 40)]

    def tune(order: Sequence[MeasureRequest]) -> Sequence[Record]:
        with open_store(str(tmp_path / "shared.db")) as store, measurer(fleet, store) as measuring:
            return measuring.measure_many(order)

    with ThreadPoolExecutor(2) as tuners:
        first, second = tuners.map(tune, (requests, requests[::-1]))
    assert {record.record_id for record in first} == {record.record_id for record in second}
    with open_store(str(tmp_path / "shared.db")) as store:
        assert store.stats().measurements == len(requests)


@pytest.mark.slow  # test_task_queue.py kills workers, too
def test_killed_workers_cost_no_record(fleet: LocalFleet, store: RecordStore) -> None:
    """One is killed after each few records, which other workers go on with."""
    ended = threading.Event()

    def kill() -> None:
        with open_store(store.location) as seen:
            for number in range(3):
                while seen.stats().measurements <= 4 * number:
                    if ended.wait(0.05):
                        return
                for process in fleet.worker_processes()[:1]:
                    process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with measurer(fleet, store) as measuring:
            records = measuring.measure_many(
                [request("tvm", width=width, check=False) for width in range(64, 80)]
            )
    finally:
        ended.set()
        killer.join()
    assert {record.measurement.status for record in records} == {Status.OK}
    assert store.stats().measurements == len(records) == 16
    # What killed processes left behind does not stay: it is in folders that go with the workers.
    tasks = TaskQueue(fleet.address)
    folders = [Path(answer.decode()) for answer in tasks.client.run(temporary_folder).values()]
    tasks.close()
    assert any("tessel-fleet-" in str(folder) for folder in folders)


def test_a_session_measures_through_it(fleet: LocalFleet, tmp_path: Path) -> None:
    settings = SessionSettings(backend_names=("tvm", "blas"), fleet=fleet.address)
    with start_session("cpu", settings, records_url=str(tmp_path / "records.db")) as session:
        assert session.target.num_threads == 1
        record = session.measurer.measure_function(request("tvm").workload, request("tvm").module, "tvm")
        assert record.measurement.environment == environment_of(session.target, session.backends[0])
        assert session.store.stats().measurements == 4  # three probes of the device too
    for refused, message in (
        (SessionSettings(trials=4, proposer="draft", fleet=fleet.address), "learn from records only where"),
        (SessionSettings(trials=4, database="folder", fleet=fleet.address), "names a folder of this machine"),
    ):
        with (
            pytest.raises(ValueError, match=message),
            start_session("cpu", refused, records_url=str(tmp_path / "records.db")),
        ):
            pass


@pytest.mark.slow
def test_kernels_are_tuned_on_its_machines_once(
    fleet: LocalFleet, store: RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one machine tunes, the tuner keeps and sends along: neither machine tunes it again."""
    monkeypatch.chdir(tmp_path)  # where this tuner's own database is
    settings = SessionSettings(trials=2, backend_names=("tvm", "metaschedule"), fleet=fleet.address)
    module = partition_module("metaschedule", [(32, 32), (32, 64)], lambda x, w: op.matmul(x, w))
    workload = workload_of(part_of(module))
    with start_session("cpu", settings, records_url=str(tmp_path / "shared.db")) as session:
        first = session.measurer.measure_function(workload, module, "metaschedule", settings="trials=2")
        assert first.measurement.status is Status.OK, first.measurement.message
        (kernels,) = tmp_path.rglob("database_workload.json")
        (kernel,) = read_kernels(kernels.parent).values()
        for number in range(4):  # on either machine
            again = session.measurer.measure_function(
                workload, module, "metaschedule", settings=f"trials=2,{number}"
            )
            assert again.measurement.status is Status.OK
        assert list(read_kernels(kernels.parent).values()) == [kernel]
        assert len((kernels.parent / "database_tuning_record.json").read_text().splitlines()) == 1


def test_its_status_counts_what_was_measured(fleet: LocalFleet, store: RecordStore) -> None:
    def measured() -> int:
        return sum(machine.measured for machine in fleet_status(fleet.address).machines)

    before = measured()
    with measurer(fleet, store) as measuring:
        measuring.measure_many([request("tvm", width=width, check=False) for width in range(100, 106)])
    wait_until(lambda: measured() >= before + 6)
    status = fleet_status(fleet.address)
    assert [machine.num_threads for machine in status.machines] == [1, 1]
    assert all({"tvm", "blas"} <= set(machine.backends) for machine in status.machines)


@pytest.mark.slow  # a third machine starts
def test_machines_that_are_not_alike_are_not_mixed(fleet: LocalFleet) -> None:
    other = fleet.start_device_worker("--threads", "2")
    tasks = TaskQueue(fleet.address)
    wait_until(lambda: len(tasks.workers()) == 3)
    try:
        with pytest.raises(TunerError, match="machines that are not alike"):
            found(fleet)
        assert found(fleet, threads=1).num_machines == 2
    finally:
        other.terminate()
        assert other.wait(timeout=300) == 0
        wait_until(lambda: len(tasks.workers()) == 2)
        tasks.close()


@pytest.mark.parametrize(
    ("scheduler", "host", "message"),
    [
        ("10.0.0.5:8786", "127.0.0.1", "no scheduler's address"),
        ("tcp://10.0.0.5", "127.0.0.1", "no scheduler's address"),
        ("tcp://10.0.0.5:port", "127.0.0.1", "no scheduler's address"),
        ("tcp://10.0.0.5:8786", "127.0.0.1", "could not reach a worker that listens at 127.0.0.1"),
    ],
)
def test_an_address_that_cannot_serve_is_refused(scheduler: str, host: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_reachable(scheduler, host)
