"""Of what a machine of a fleet says that cannot be, nothing becomes a latency or a program's failure."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tvm import relax

from records import RecordStore, Status, open_store
from records.measurement import NOT_BY_PROGRAM
from tests.harness.local_fleet import LocalFleet, wait_until
from tests.samples.partition_samples import function_module, part_of, partition_module
from tests.tuner.fleet.lying_worker import LIE, STALL
from tuner.backends.registry import backends_for
from tuner.errors import TunerError
from tuner.fleet import task_queue
from tuner.fleet.documents import Answer, Answered, Measured, RaceEnded, Result
from tuner.fleet.fleet_pool import TASK_S, FleetPool, find_machines, task_time_s
from tuner.fleet.task_queue import TaskQueue
from tuner.lowering.workload_of import workload_of
from tuner.measuring.measurer import Measurer
from tuner.measuring.messages import ArrayInfo, Done, Failed, Ran, Reply, Timed, Timing
from tuner.measuring.race import RaceResult
from tuner.measuring.request import Limits, MeasureRequest

pytestmark = pytest.mark.tvm

BACKENDS = ("tvm",)

LIMITS = Limits(build_timeout_s=60, run_timeout_s=60, timing=Timing(budget_s=0.01, max_samples=5))


class Liar:
    """What the one machine of a fleet answers."""

    def __init__(self, fleet: LocalFleet, path: Path) -> None:
        self.fleet = fleet
        self.path = path

    def says(self, answer: Any) -> None:
        self.path.write_bytes(msgspec.msgpack.encode(answer))


@pytest.fixture(scope="module")
def liar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Liar]:
    path = tmp_path_factory.mktemp("liar") / "lie"
    with LocalFleet() as fleet:
        variables = {LIE: str(path), "DASK_DISTRIBUTED__WORKER__PRELOAD": "tests.tuner.fleet.lying_worker"}
        fleet.start_device_worker("--threads", "1", "--backends", "tvm", **variables)
        tasks = TaskQueue(fleet.address)
        wait_until(lambda: len(tasks.workers()) == 1)
        tasks.close()
        yield Liar(fleet, path)


@pytest.fixture
def measuring(liar: Liar, tmp_path: Path) -> Iterator[Measurer]:
    with open_store(str(tmp_path / "records.db")) as store, measurer(liar, store) as opened:
        yield opened
    liar.path.unlink(missing_ok=True)


def measurer(liar: Liar, store: RecordStore, clock: Callable[[], float] = time.monotonic) -> Measurer:
    tasks = TaskQueue(liar.fleet.address, clock=clock)
    machines = find_machines(tasks, "cpu", num_threads=None, backends=BACKENDS)
    backends = backends_for(BACKENDS, machines.target)
    return Measurer(
        store, machines.target, backends, pool=FleetPool(tasks, machines, backends, limits=LIMITS, seed=0)
    )


def request(width: int = 8) -> MeasureRequest:
    module = partition_module("tvm", [(4, width), (width,)], lambda x, y: relax.op.add(x, y))
    return MeasureRequest(workload=workload_of(part_of(module)), module=module, backend="tvm")


def encoded(result: Result, asked: str = "") -> list[bytes]:
    return [msgspec.msgpack.encode(Answer(asked=asked, result=result))]


def slow(*values: Any) -> Any:
    """Return a case that only `-m slow` tries: a sample of the others is tried always."""
    return pytest.param(*values, marks=pytest.mark.slow)


def measured(
    *samples: float, error: float = 0.0, peak: int = 0, built: Reply | None = None, at: float = 1e9
) -> list[bytes]:
    timed = Timed(samples_us=samples, peak_memory_bytes=peak)
    return encoded(Measured(built=built or Done(error), timed=timed, measured_at=at))


@pytest.mark.parametrize(
    "answer",
    [
        measured(math.nan),
        measured(1.0, error=-1.0),
        encoded(Measured(built=Ran(()), timed=None, measured_at=1e9)),
        slow(measured(1.0, -1.0)),
        slow(measured(math.inf)),
        slow(measured()),
        slow(measured(1.0, error=math.nan)),
        slow(measured(1.0, peak=2**64 - 1)),
        slow(measured(1.0, at=math.nan)),
        slow(measured(*[1 / 3] * 8_000_000)),
        slow(encoded(Measured(built=Done(), timed=Failed(Status.OK, "fine"), measured_at=1e9))),
        slow(encoded(Measured(built=Done(), timed=None, measured_at=1e9))),
    ],
    ids=lambda answer: None,
)
def test_an_outcome_that_cannot_be_is_no_latency_and_no_failure_of_the_program(
    answer: list[bytes], liar: Liar, measuring: Measurer
) -> None:
    liar.says(answer)
    (record,) = measuring.measure_many([request()])
    assert record.measurement.status is Status.ERROR
    assert record.measurement.message.startswith(NOT_BY_PROGRAM)
    liar.path.unlink()  # it measures again where it tells the truth
    with measurer(liar, measuring.store) as again:
        assert again.measure_many([request()])[0].measurement.status is Status.OK


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [b"\x80\x04."],
        encoded(Answered(reply=Done())),
        *(slow(each) for each in (7, "text", {}, [], [None], ["text"], [b""], [b"\xc1"])),
    ],
)
def test_an_answer_of_another_type_ends_the_measuring_with_one_line(
    answer: Any, liar: Liar, measuring: Measurer
) -> None:
    liar.says(answer)
    with pytest.raises(TunerError, match=r"a machine of the fleet .*(answer|understand)"):
        measuring.measure_many([request()])
    assert measuring.store.stats().measurements == 0


def test_the_latency_of_another_program_than_was_asked_for_is_refused(
    liar: Liar, measuring: Measurer
) -> None:
    timed = Timed(samples_us=(1.0,), peak_memory_bytes=0)
    result = Measured(built=Done(0.0), timed=timed, measured_at=1e9)
    liar.says(encoded(result, asked="tessel-candidate-of-another"))
    with pytest.raises(TunerError, match="answers request 'tessel-candidate-of-another', and was asked"):
        measuring.measure_many([request()])
    assert measuring.store.stats().measurements == 0


@pytest.mark.parametrize(
    ("samples", "survivors"),
    [
        (((math.nan,), (1.0,)), (0,)),
        (((1.0,), (2.0,)), (7,)),
        slow(((-1.0,), (1.0,)), (0,)),
        slow(((), ()), (0,)),
        slow(((1.0,),), (0,)),
        slow(((1.0,), (2.0,)), ()),
    ],
)
def test_a_race_that_cannot_be_is_refused(
    samples: tuple[tuple[float, ...], ...], survivors: tuple[int, ...], liar: Liar, measuring: Measurer
) -> None:
    liar.says(encoded(RaceEnded(result=RaceResult(samples=samples, survivors=survivors))))
    with pytest.raises(TunerError, match="a machine of the fleet"):
        measuring.race([request(8), request(16)])
    assert measuring.store.stats().measurements == 0


@pytest.mark.parametrize(
    "answer",
    [
        [*encoded(Answered(reply=Ran((ArrayInfo((4, 8), "float32"),)))), b"short"],
        [*encoded(Answered(reply=Ran((ArrayInfo((1,), "object"),)))), b"12345678"],
        slow([*encoded(Answered(reply=Ran((ArrayInfo((1,), "no type"),)))), b"1"]),
        slow(encoded(Answered(reply=Ran((ArrayInfo((1,), "float32"),))))),
    ],
    ids=lambda answer: None,
)
def test_results_that_do_not_fit_what_is_said_of_them_are_refused(
    answer: list[bytes], liar: Liar, measuring: Measurer
) -> None:
    liar.says(answer)
    with pytest.raises(TunerError, match="a machine of the fleet"):
        measuring.run(function_module([(4, 8)], lambda x: relax.op.add(x, x)), [])


@pytest.mark.parametrize(("task_s", "tick_s"), [pytest.param(None, 500, marks=pytest.mark.slow), ("5", 10)])
def test_a_candidate_that_a_machine_never_ends_is_given_up_and_is_no_failure_of_the_program(
    task_s: str | None, tick_s: int, liar: Liar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_queue, "_POLL_S", 0.1)
    if task_s is not None:
        monkeypatch.setenv(TASK_S, task_s)
    has_begun, ticks = liar.path.with_name("begun"), itertools.count(0, tick_s)
    liar.says(STALL)
    with (
        open_store(str(tmp_path / "records.db")) as store,
        measurer(liar, store, clock=lambda: float(next(ticks)) if has_begun.exists() else 0.0) as measuring,
    ):
        try:
            with pytest.raises(
                TunerError, match=r"1 machines of the fleet .* did not end what they were asked"
            ):
                measuring.measure_many([request()])
        finally:
            liar.path.unlink()
            wait_until(lambda: not has_begun.exists())
        assert store.stats().measurements == 0
    assert next(ticks) < 40 * tick_s


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan", ""])
def test_a_time_for_tasks_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TunerError, match=f"{TASK_S} is '{text}', which is no time; give seconds"):
        task_time_s(text)


def test_a_machine_that_never_answers_is_left_out(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes are stopped: connections stay open, and nothing comes."""
    monkeypatch.setattr(task_queue, "ANSWER_S", 3.0)
    (worker,) = liar.fleet.worker_processes()
    tasks = TaskQueue(liar.fleet.address)
    worker.suspend()
    try:
        with pytest.raises(TunerError, match="no worker"):
            find_machines(tasks, "cpu", num_threads=None, backends=BACKENDS)
    finally:
        worker.resume()
        tasks.close()
