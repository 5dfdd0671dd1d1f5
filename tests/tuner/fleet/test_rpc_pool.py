"""Devices behind TVM's own tracker and servers: each candidate has one record, whatever it does there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import psutil
import pytest
from tvm import relax
from tvm.script import tirx as T

from records import RecordStore, Status, open_store
from records.measurement import NOT_BY_PROGRAM
from tests.harness.local_fleet import wait_until
from tests.samples.partition_samples import function_module, part_of, partition_module
from tests.tuner.fleet.rpc_devices import KEY, RpcDevices
from tuner.backends.environment import environment_of
from tuner.backends.registry import backends_for
from tuner.errors import TunerError
from tuner.fleet.rpc_pool import RpcPool, find_device
from tuner.lowering.workload_of import workload_of
from tuner.measuring.measurer import Measurer
from tuner.measuring.messages import Timing
from tuner.measuring.request import Limits, MeasureRequest
from tuner.measuring.worker.runtimes import _ProgramThere
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op

LIMITS = Limits(build_timeout_s=60, run_timeout_s=10, timing=Timing(budget_s=0.01, max_samples=5), race_s=2)


def request(*, width: int = 8, check: bool = True) -> MeasureRequest:
    module = partition_module("tvm", [(4, width), (width,)], lambda x, y: op.nn.relu(op.add(x, y)))
    return MeasureRequest(workload=workload_of(part_of(module)), module=module, backend="tvm", check=check)


def calling(function: str, *arguments: int, label: str) -> MeasureRequest:
    """Return a program whose kernel calls a function of C's library: what crashes or hangs on any device."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")) -> None:
        T.func_attr({"op_pattern": 8})
        for i in range(4):
            with T.sblock("copy"):
                row = T.axis.spatial(4, i)
                T.evaluate(T.call_extern("int32", function, *arguments))
                y[row] = x[row]

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            variable = builder.add_func(kernel, "kernel")
            made = relax.call_tir(variable, [x], out_ty=relax.TensorType((4,), "float32"))
            result = builder.emit_output(made)
        builder.emit_func_output(result)
    workload = workload_of(part_of(request().module))
    return MeasureRequest(workload=workload, module=builder.get(), backend="tvm", settings=label)


@pytest.fixture(scope="module")
def devices() -> Iterator[RpcDevices]:
    with RpcDevices() as started:
        started.serve()
        started.wait_for(1)
        yield started


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    with open_store(str(tmp_path / "records.db")) as opened:
        yield opened


def measurer(devices: RpcDevices, store: RecordStore, *, options: str = "", size: int = 1) -> Measurer:
    found = find_device(devices.address(options))
    backends = backends_for(("tvm",), found.target)
    pool = RpcPool(found, backends, limits=LIMITS, seed=0, size=size)
    return Measurer(store, found.target, backends, limits=LIMITS, pool=pool)


def test_records_have_the_servers_environment(devices: RpcDevices, store: RecordStore) -> None:
    """The server is this machine, with one thread: its records are those that this machine would make."""
    here = resolve_target("cpu", num_threads=1)
    with measurer(devices, store, options="?target=cpu") as measuring:
        assert measuring.target.text == here.text
        records = measuring.measure_many([request(width=width) for width in (8, 16)])
        assert [record.measurement.status for record in records] == [Status.OK] * 2
        assert {record.measurement.relative_error for record in records} == {0.0, None}
        for record in records:
            assert record.measurement.environment == environment_of(here, *measuring.backends)
            assert min(record.measurement.samples_us) < 1000, "the network is no part of it"
        assert measuring.measure_many([request(width=8)]) == records[:1]


def test_crashing_hanging_and_slow_candidates_have_their_records_and_the_device_goes_on(
    devices: RpcDevices, store: RecordStore
) -> None:
    with measurer(devices, store) as measuring:
        slow, crashed, hung, good = measuring.measure_many(
            [
                calling("usleep", 5000, label="slow"),
                calling("abort", label="crashing"),
                calling("sleep", 600, label="hanging"),
                request(width=24, check=False),
            ]
        )
        assert slow.measurement.status is Status.OK
        assert 4900 < min(slow.measurement.samples_us) < 50_000
        assert crashed.measurement.status is Status.ERROR
        assert hung.measurement.status is Status.TIMEOUT
        assert good.measurement.status is Status.OK
        assert store.stats().measurements == 4


@pytest.mark.slow  # tests/tuner/measuring/test_measurer.py has one for a local pool
@pytest.mark.parametrize("compiler", ["/nothing/compiles", "/bin/false"])
def test_a_compiler_that_is_missing_or_broken_is_no_fault_of_programs(
    compiler: str, devices: RpcDevices, store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs are linked by the compiler that an environment variable names."""
    monkeypatch.setenv("CXX", compiler)
    with measurer(devices, store) as measuring:
        (failed,) = measuring.measure_many([request(width=40, check=False)])
        assert failed.measurement.message.startswith(NOT_BY_PROGRAM)
    monkeypatch.delenv("CXX")
    with measurer(devices, store) as measuring:
        (fixed,) = measuring.measure_many([request(width=40, check=False)])
        assert fixed.measurement.status is Status.OK


@pytest.mark.slow  # as on a fleet's machine, in test_fleet.py
def test_programs_race_run_and_are_compared_on_the_device(devices: RpcDevices, store: RecordStore) -> None:
    shapes = [(8, 16), (16, 8)]
    mix = partition_module("tvm", shapes, lambda x, w: op.matmul(x, w))
    arrays = [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in shapes]
    with measurer(devices, store) as measuring:
        (product,) = measuring.run(mix, arrays)
        np.testing.assert_allclose(product, arrays[0] @ arrays[1], rtol=1e-5, atol=1e-5)
        right = function_module(shapes, lambda x, w: op.matmul(x, w))
        wrong = function_module(shapes, lambda x, w: op.negative(op.matmul(x, w)))
        assert measuring.compare(mix, right, unscheduled=True).relative_error < 1e-5
        assert measuring.compare(mix, wrong).relative_error > 1
        workload = workload_of(part_of(mix), "model")
        rivals = [
            MeasureRequest(
                workload=workload, module=request(width=width).module, backend="mix", settings=str(width)
            )
            for width in (64, 1 << 18)
        ]
        result, _ = measuring.race(rivals)
        assert result.survivors == (0,)


@pytest.mark.slow
def test_a_killed_server_is_started_again_and_costs_no_record(
    devices: RpcDevices, store: RecordStore
) -> None:
    def servers() -> list[psutil.Process]:
        return [
            child
            for process in devices._processes
            for child in psutil.Process(process.pid).children()
            if "tuner.fleet.rpc_server" in child.cmdline()
        ]

    with measurer(devices, store) as measuring:
        measuring.measure_many([request(width=32, check=False)])
        (server,) = servers()
        server.kill()
        (record,) = measuring.measure_many([request(width=40, check=False)])
        assert record.measurement.status is Status.OK
    wait_until(lambda: servers() and servers() != [server])


def test_another_device_than_the_servers_is_refused(devices: RpcDevices) -> None:
    with pytest.raises(TunerError, match=r"its mcpu is cortex-a72, that of .* leave \?target= out"):
        find_device(devices.address("?target=raspberry-pi/4b-aarch64"))
    with pytest.raises(TunerError, match=r"its kind is cuda, that of .* is cpu"):
        find_device(devices.address("?target=cuda"))


@pytest.mark.slow
def test_a_stock_server_names_its_key_for_a_device(store: RecordStore) -> None:
    here = resolve_target("cpu")
    mcpu = json.loads(here.tvm_json)["mcpu"]
    with RpcDevices() as started:
        started.serve_stock()
        started.wait_for(1)
        with pytest.raises(TunerError, match="does not say what device it has; give its target"):
            find_device(started.address())
        with measurer(started, store, options=f"?target=llvm -mcpu={mcpu}") as measuring:
            (record,) = measuring.measure_many([request()])
        environment = record.measurement.environment
        assert record.measurement.status is Status.OK
        assert environment.device_model == f"{KEY} behind an RPC tracker, which does not describe itself"
        assert "apache-tvm (compiler)" in dict(environment.versions)
        assert msgspec.json.decode(record.measurement.target.encode()) == json.loads(here.tvm_json)


@pytest.mark.parametrize("says_s", [math.nan, math.inf, -1.0])
def test_a_time_that_cannot_be_is_an_error_of_the_device(says_s: float) -> None:
    machine = SimpleNamespace(
        time_evaluator=lambda *_, **__: lambda *_: SimpleNamespace(results=[says_s])  # a clock that errs
    )
    with pytest.raises(OSError, match="the device's clock"):
        _ProgramThere(machine, None).mean_us((), 1)


@pytest.mark.slow  # each has a device of its own
@pytest.mark.parametrize("says_s", ["nan", "inf", "-1"])
def test_a_clock_that_cannot_be_gives_no_latency_and_no_failure_of_the_program(
    says_s: str, store: RecordStore
) -> None:
    mcpu = json.loads(resolve_target("cpu").tvm_json)["mcpu"]
    with RpcDevices() as started:
        started.serve_with_clock(says_s)
        started.wait_for(1)
        with measurer(started, store, options=f"?target=llvm -mcpu={mcpu}") as measuring:
            (record,) = measuring.measure_many([request()])
    assert record.measurement.status is Status.ERROR
    assert record.measurement.message.startswith(NOT_BY_PROGRAM)
    assert "the device's clock" in record.measurement.message


def test_nobody_behind_the_address_is_one_line() -> None:
    with pytest.raises(
        TunerError, match=r"no device 'board' answers behind the RPC tracker at 127\.0\.0\.1:9"
    ):
        find_device("rpc://127.0.0.1:9/board")
