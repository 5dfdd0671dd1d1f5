"""Every outcome becomes a record, nothing is measured twice, and the search outlives any candidate."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from tvm import relax

from records import Match, Measurement, RecordStore, Status, open_store
from tests.harness.local_fleet import wait_until
from tests.samples.partition_samples import function_module, part_of, partition_module
from tests.tuner.measuring.memory_group import limited_memory
from tests.tuner.misbehaving_backends import MODULE
from tuner.backends.registry import backends_for
from tuner.errors import TunerError
from tuner.lowering.workload_of import workload_of
from tuner.measuring.measurer import MeasureProgress, Measurer, _is_answer
from tuner.measuring.messages import Timing
from tuner.measuring.request import Limits, MeasureRequest
from tuner.measuring.worker_pool import WorkerPool
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

op = relax.op

ROOT = Path(__file__).parents[3]
NAMES = ("crashing", "hanging", "wrong", "greedy", "raising", "unlowerable")
LIMITS = Limits(build_timeout_s=90, run_timeout_s=10, timing=Timing(budget_s=0.01, max_samples=5))


def request(backend: str, *, width: int = 8, check: bool = True) -> MeasureRequest:
    module = partition_module(backend, [(4, width), (width,)], lambda x, y: op.nn.relu(op.add(x, y)))
    return MeasureRequest(workload=workload_of(part_of(module)), module=module, backend=backend, check=check)


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    with open_store(str(tmp_path / "records.db")) as opened:
        yield opened


@pytest.fixture
def hangs_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is there once a build hangs in a process that starts from now on."""
    monkeypatch.setenv("HANGS_AT", str(tmp_path / "hangs"))
    return tmp_path / "hangs"


@pytest.fixture(scope="module")
def measurer(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    references = ["tvm", "blas", *(f"{MODULE}:{name}" for name in NAMES)]
    path = tmp_path_factory.mktemp("records") / "records.db"
    with (
        open_store(str(path)) as opened,
        Measurer(opened, target, backends_for(references, target), limits=LIMITS) as measurer,
    ):
        yield measurer


def outcome(measurer: Measurer, backend: str, *, width: int, check: bool = True) -> Measurement:
    (record,) = measurer.measure_many([request(backend, width=width, check=check)])
    return record.measurement


def test_a_measurement_has_samples_its_error_and_its_environment(measurer: Measurer) -> None:
    measurement = outcome(measurer, "tvm", width=8)
    assert measurement.status is Status.OK
    assert len(measurement.samples_us) >= 5
    assert 0 < min(measurement.samples_us) < 1e4
    assert measurement.relative_error == 0.0
    assert measurement.environment == measurer.environment("tvm")
    assert measurement.environment.num_threads == 1


def test_what_the_records_have_is_not_measured_again(measurer: Measurer) -> None:
    before = measurer.new_measurements
    first = measurer.measure_many([request("tvm", width=16), request("tvm", width=16)])
    assert first[0] == first[1]
    assert measurer.new_measurements == before + 1
    reused = measurer.reused_measurements
    assert measurer.measure_many([request("tvm", width=16)])[0] == first[0]
    assert (measurer.new_measurements, measurer.reused_measurements) == (before + 1, reused + 1)


@pytest.mark.parametrize(
    ("backend", "status", "message"),
    [
        ("crashing", Status.ERROR, "SIGSEGV"),
        ("hanging", Status.TIMEOUT, "10 s"),
        ("greedy", Status.ERROR, "allocate"),
        ("raising", Status.ERROR, "not this shape"),
        ("unlowerable", Status.ERROR, "has no code"),
    ],
)
def test_a_failure_becomes_a_record_and_the_next_program_is_measured(
    backend: str, status: Status, message: str, measurer: Measurer
) -> None:
    failed = outcome(measurer, backend, width=24, check=False)
    assert failed.status is status
    assert message in failed.message
    assert not failed.samples_us
    assert outcome(measurer, "tvm", width=32 + len(backend)).status is Status.OK


@pytest.mark.parametrize(
    "broken",
    ["library", *(pytest.param(each, marks=pytest.mark.slow) for each in ("killed", "tool", "memory"))],
)
def test_a_failure_of_the_machine_is_measured_again_when_it_is_fixed(
    broken: str, target: Target, store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure() -> tuple[Measurement, int]:
        backends = backends_for([f"{MODULE}:needy"], target)
        with Measurer(store, target, backends, limits=LIMITS) as measuring:
            first, again = (outcome(measuring, "needy", width=8, check=False) for _ in range(2))
            assert first == again, "one run tries a program once"
            return first, measuring.new_measurements

    monkeypatch.setenv("BROKEN", broken)
    failed, num_new = measure()
    assert (failed.status, num_new) == (Status.ERROR, 1)
    assert failed.message.startswith("not by the program: ")
    monkeypatch.delenv("BROKEN")
    fixed, num_new = measure()
    assert (fixed.status, num_new) == (Status.OK, 1)
    assert measure() == (fixed, 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_what_the_kernel_kills_in_a_full_control_group_is_one_line_and_is_measured_again(
    target: Target, store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = backends_for([f"{MODULE}:needy", "tvm"], target)
    with limited_memory(1 << 26) as group:
        monkeypatch.setenv("BROKEN", "group")
        monkeypatch.setenv("GROUP", str(group.folder))
        with Measurer(store, target, backends, limits=LIMITS) as measuring:
            killed = outcome(measuring, "needy", width=8, check=False)
            assert outcome(measuring, "tvm", width=8).status is Status.OK
        assert group.num_killed == 1
    assert killed.message == (
        "not by the program: the process was killed during time, most likely because the machine was short "
        "of memory"
    )
    monkeypatch.delenv("BROKEN")
    for num_new in (1, 0):
        with Measurer(store, target, backends, limits=LIMITS) as measuring:
            assert outcome(measuring, "needy", width=8, check=False).status is Status.OK
            assert measuring.new_measurements == num_new


@pytest.mark.parametrize(
    "backend",
    [
        "crashing",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("wrong", "raising", "unlowerable")),
    ],
)
def test_a_failure_of_the_program_is_not_measured_again(
    backend: str, target: Target, store: RecordStore
) -> None:
    for num_new in (1, 0):
        backends = backends_for([f"{MODULE}:{backend}"], target)
        with Measurer(store, target, backends, limits=LIMITS) as measuring:
            assert outcome(measuring, backend, width=8).status is Status.ERROR
            assert measuring.new_measurements == num_new


def test_wrong_numbers_are_an_error_for_the_whole_kind(measurer: Measurer) -> None:
    small, large = measurer.measure_many([request("wrong", width=8), request("wrong", width=64)])
    for record in (small, large):
        assert record.measurement.status is Status.ERROR
        assert record.measurement.message.startswith("wrong numbers")


def test_a_mix_is_checked_against_the_reference_it_is_given(measurer: Measurer) -> None:
    shapes = [(8, 16), (16, 8)]
    mix = partition_module("blas", shapes, lambda x, w: op.matmul(x, w))
    right = function_module(shapes, lambda x, w: op.matmul(x, w))
    wrong = function_module(shapes, lambda x, w: op.negative(op.matmul(x, w)))
    workload = workload_of(part_of(mix), "model")
    good = measurer.measure_function(workload, mix, "mix", settings="one", check=True, reference=right)
    bad = measurer.measure_function(workload, mix, "mix", settings="two", check=True, reference=wrong)
    assert good.measurement.relative_error is not None
    assert good.measurement.relative_error < 1e-5
    assert bad.measurement.message.startswith("wrong numbers")


def test_programs_race_in_one_process_and_a_recorded_race_is_not_run_again(measurer: Measurer) -> None:
    workload = request("tvm", width=64).workload
    fast, slow = (
        MeasureRequest(
            workload=workload,
            module=request("tvm", width=width).module,
            backend="mix",
            settings=f"partition={width}",
            races=True,
        )
        for width in (64, 1 << 18)
    )
    measurer.measure_many([fast])  # which is built by then; the other one is built for the race
    before = measurer.new_measurements
    result, records = measurer.race([slow, fast])
    assert measurer.new_measurements == before + 2
    assert result.survivors == (1,)
    assert result.ratio(1, 0).low > 1
    assert result.samples == tuple(record.measurement.samples_us for record in records)
    slow_rounds, fast_rounds = map(len, result.samples)
    assert slow_rounds < fast_rounds, "the slow one is far behind"
    assert fast_rounds >= 15
    assert all(record.measurement.environment == measurer.environment("mix") for record in records)
    assert {record.measurement.backend for record in records} == {"race"}
    assert measurer.race([slow, fast]) == (result, records)
    assert measurer.new_measurements == before + 2


def test_who_cannot_race_is_an_error_and_the_next_race_is_run(measurer: Measurer) -> None:
    def entrant(backend: str, settings: str) -> MeasureRequest:
        made = request(backend, width=40)
        return MeasureRequest(workload=made.workload, module=made.module, backend="mix", settings=settings)

    with pytest.raises(TunerError, match=r"could not run in turn: .*SIGSEGV"):
        measurer.race([entrant("tvm", "one"), entrant("crashing", "two")])
    with pytest.raises(TunerError, match=r"could not be built for a race: .*has no code"):
        measurer.race([entrant("tvm", "one"), entrant("unlowerable", "two")])
    result, _ = measurer.race([entrant("tvm", "one"), entrant("tvm", "two")])
    assert result.num_rounds >= 15


def test_results_and_differences_come_back_from_the_worker(measurer: Measurer) -> None:
    module = function_module([(4, 6)], lambda x: op.split(op.nn.relu(x), 2, axis=1))
    value = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    left, right = measurer.run(module, [value])
    np.testing.assert_array_equal(np.concatenate([left, right], axis=1), np.maximum(value, 0))
    other = function_module([(4, 6)], lambda x: op.split(op.negative(x), 2, axis=1))
    assert measurer.compare(module, module).relative_error == 0.0
    assert not measurer.compare(module, other).is_within(0.5)
    no_numbers = function_module([(4,)], lambda x: op.sqrt(op.subtract(x, relax.const(2.0))))
    found = measurer.compare(no_numbers, no_numbers)
    assert found.tensor == "output 0"
    assert "in the reference as well: the model itself makes it" in found.fault


def test_products_may_be_numpys_where_no_partition_holds_them(measurer: Measurer) -> None:
    module = function_module([(3, 4), (5, 4)], lambda x, w: op.nn.relu(op.matmul(x, op.permute_dims(w))))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in ((3, 4), (5, 4)))
    expected = np.maximum(x @ w.T, 0)
    for calls_blas in (False, True, False):  # the same module, of which both programs are kept
        (found,) = measurer.run(module, [x, w], calls_blas=calls_blas)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_run_is_an_error_with_its_reason(measurer: Measurer) -> None:
    with pytest.raises(TunerError, match="has no code"):
        measurer.run(request("unlowerable").module, [np.zeros((4, 8), np.float32), np.zeros(8, np.float32)])


def test_several_builders_measure_the_same_programs(store: RecordStore, target: Target) -> None:
    seen: list[MeasureProgress] = []
    widths = range(8, 8 + 3)
    backends = backends_for(["tvm", f"{MODULE}:crashing"], target)
    two = WorkerPool(target, backends, limits=LIMITS, seed=0, size=2)
    with Measurer(store, target, backends, limits=LIMITS, pool=two, on_progress=seen.append) as measurer:
        requests = [request("tvm", width=width) for width in widths]
        requests.insert(2, request("crashing", check=False))
        records = measurer.measure_many(requests)
    statuses = [record.measurement.status for record in records]
    assert statuses == [Status.OK, Status.OK, Status.ERROR, Status.OK]
    assert [progress.completed for progress in seen] == list(range(1, 5))
    assert {progress.total for progress in seen} == {4}


@pytest.mark.slow  # two workers start
def test_a_program_that_was_measured_runs_where_it_was_built(store: RecordStore, target: Target) -> None:
    """Its worker may hold it still; what nobody built runs in one of its own, beside what others run."""
    backends = backends_for(["tvm", f"{MODULE}:process"], target)
    pool = WorkerPool(target, backends, limits=LIMITS, seed=0, size=2)
    requests = [request("process", width=width, check=False) for width in (8, 16, 24)]
    with Measurer(store, target, backends, limits=LIMITS, pool=pool) as measurer:
        measurer.measure_many(requests[:2])
        processes = []
        for each, width in zip(requests, (8, 16, 24), strict=True):
            arrays = [np.zeros((4, width), np.float32), np.zeros(width, np.float32)]
            (result,) = measurer.run(each.module, arrays)
            processes.append(int(result.flat[0]))
    assert len(set(processes)) == 3


def test_what_threads_run_is_ended_when_the_user_interrupts(
    store: RecordStore, target: Target, hangs_at: Path
) -> None:
    backends = backends_for(["tvm", f"{MODULE}:sleepy"], target)
    pool = WorkerPool(target, backends, limits=LIMITS, seed=0, size=2)
    asked = request("sleepy", width=8, check=False)
    failures: list[TunerError] = []

    def run() -> None:
        try:
            measurer.run(asked.module, [np.zeros((4, 8), np.float32), np.zeros(8, np.float32)])
        except TunerError as error:
            failures.append(error)

    with Measurer(store, target, backends, limits=LIMITS, pool=pool) as measurer:
        measurer.run(
            request("tvm", width=8).module, [np.zeros((4, 8), np.float32), np.zeros(8, np.float32)]
        )  # The worker is up.
        thread = threading.Thread(target=run)
        thread.start()
        wait_until(hangs_at.exists)
        measurer.interrupt()
        thread.join(300)
        assert not thread.is_alive()
    assert len(failures) == 1


@pytest.mark.parametrize("status", Status)
def test_what_runs_wherever_anything_does_is_measured_again_where_it_failed(status: Status) -> None:
    record = SimpleNamespace(measurement=SimpleNamespace(status=status))
    asked = request("tvm")
    assert _is_answer(record, asked)
    assert _is_answer(record, dataclasses.replace(asked, runs_anywhere=True)) == (status is Status.OK)


def test_other_threads_other_records(measurer: Measurer) -> None:
    one = request("tvm", width=8)
    measurer.measure_many([one])
    other = resolve_target("cpu", num_threads=2)
    with Measurer(measurer.store, other, measurer.backends, limits=LIMITS) as second:
        assert measurer.find(one.workload, "tvm") is not None
        assert second.find(one.workload, "tvm") is None


def test_jobs_are_positive(target: Target) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        WorkerPool(target, (), limits=LIMITS, seed=0, size=0)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Have SIGINT raise `KeyboardInterrupt`, as at a terminal; a job in the background ignores it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_interruption_ends_at_once_and_keeps_what_was_measured(
    jobs: int, store: RecordStore, target: Target, hangs_at: Path
) -> None:
    """Ctrl-C in the middle of a build that hangs."""
    backends = backends_for(["tvm", f"{MODULE}:sleepy"], target)

    def interrupt() -> None:
        wait_until(hangs_at.exists)
        os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=interrupt, daemon=True)
    pool = WorkerPool(target, backends, limits=LIMITS, seed=0, size=jobs)
    with Measurer(store, target, backends, limits=LIMITS, pool=pool) as measurer:
        measurer.measure_many([request("tvm")])
        user.start()
        with pytest.raises(KeyboardInterrupt):
            measurer.measure_many([request("sleepy", width=width, check=False) for width in (8, 16, 24)])
        assert measurer.find(request("tvm").workload, "tvm") is not None


def test_other_environments_records_are_used_again_only_where_the_match_says_so(
    target: Target, store: RecordStore
) -> None:
    asked = request("tvm")
    backends = backends_for(["tvm"], target)
    with Measurer(store, target, backends, limits=LIMITS) as exact:
        here = exact.environment("tvm")
    known = Measurement(
        workload_fingerprint=asked.workload.fingerprint,
        backend="tvm",
        target=target.text,
        environment=here,
        status=Status.OK,
        samples_us=(7.0,),
    )

    def is_found(match: Match, **changes: object) -> bool:
        """Say whether a record of a changed measurement, kept alone, answers the request."""
        environment_changes = changes.pop("environment", {})
        changed = msgspec.structs.replace(
            known, environment=msgspec.structs.replace(here, **environment_changes), **changes
        )
        with open_store(
            f"{store.location}-{match}-{len(list(Path(store.location).parent.iterdir()))}"
        ) as alone:
            alone.append(asked.workload, changed)
            with Measurer(alone, target, backends, limits=LIMITS, match=match) as measurer:
                return measurer.find(asked.workload, "tvm") is not None

    older = {"environment": {"versions": (("apache-tvm", "0.1"),)}}
    threads = {"environment": {"num_threads": here.num_threads + 1}}
    assert [is_found(match, **older) for match in Match] == [False, True, True]
    assert [is_found(match, **threads) for match in Match] == [False, False, True]
    for other in ({"target": "{}"}, {"environment": {"device_model": "another"}}):
        assert not any(is_found(match, **other) for match in Match)


SHARE = """
import sys
from records import open_store
from tests.tuner.measuring.test_measurer import LIMITS, request
from tuner.backends.registry import backends_for
from tuner.measuring.measurer import Measurer
from tuner.targets.resolution import resolve_target

target = resolve_target("cpu", num_threads=1)
with open_store(sys.argv[1]) as store:
    with Measurer(store, target, backends_for(["tvm"], target), limits=LIMITS) as measurer:
        requests = [request("tvm", width=width, check=False) for width in range(8, 40, 8)]
        print("ready", flush=True)
        sys.stdin.readline()
        records = measurer.measure_many(requests)
        measurer.race(requests[:1] * 2)
        print(measurer.new_measurements, [record.record_id for record in records])
"""


@pytest.mark.slow  # as tests/tuner/fleet/test_fleet.py does with one file and two tuners
def test_two_processes_with_one_file_measure_everything_once(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    tuners = [
        subprocess.Popen(
            [sys.executable, "-c", SHARE, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(2)
    ]
    for tuner in tuners:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "ready\n"
    for tuner in tuners:
        assert tuner.stdin is not None
        tuner.stdin.write("go\n")
        tuner.stdin.flush()
    said = [tuner.communicate()[0].split(maxsplit=1) for tuner in tuners]
    assert said[0][1] == said[1][1]
    with open_store(str(path)) as store:
        num_records = store.stats().measurements
    assert num_records == 4 + 2, "four programs, and two entrants of a race"
    assert sum(int(number) for number, _ in said) == num_records
    assert os.listdir(tmp_path) == ["records.db"]


@pytest.mark.slow  # tests/records/database/test_claims.py has claims
def test_what_a_process_that_hangs_has_claimed_is_measured_all_the_same(
    store: RecordStore, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measurer, "_patience_s", lambda self, request: 0.2)
    with (
        Measurer(store, target, backends_for(["tvm"], target), limits=LIMITS) as measurer,
        open_store(store.location) as other,
    ):
        wanted = request("tvm", check=False)
        assert other.claims.take(measurer._claim_key(wanted))
        assert measurer.measure_many([wanted])[0].measurement.status is Status.OK
        assert measurer.new_measurements == 1
