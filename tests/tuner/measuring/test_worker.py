"""Sampling stops when it should, inputs repeat, errors are relative, and messages survive the wire."""

from __future__ import annotations

import itertools
import os
import resource
import socket
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from tvm import relax

from records import Status
from tests.samples.partition_samples import partition_module
from tuner.graph.relax_types import NUM_INPUTS_ATTRIBUTE, WEIGHTS_ATTRIBUTE
from tuner.measuring.messages import (
    ArrayInfo,
    Build,
    Done,
    Failed,
    Start,
    Time,
    Timed,
    Timing,
    receive_arrays,
    receive_reply,
    receive_request,
    send,
    send_arrays,
)
from tuner.measuring.module_json import json_of
from tuner.measuring.worker.inputs import (
    POSITIVE,
    DrawnInputs,
    input_specs,
    own_intervals,
    random_inputs,
    value_types,
)
from tuner.measuring.worker.runtimes import LoadedProgram
from tuner.measuring.worker.sampling import Sample, take_samples
from tuner.measuring.worker.server import Racer, Worker
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm


def test_a_steady_program_is_sampled_as_little_as_allowed() -> None:
    assert take_samples(lambda number: Sample(100.0, False), Timing(min_samples=5)) == (100.0,) * 5


def test_a_noisy_program_is_sampled_until_the_budget_ends() -> None:
    latencies = itertools.cycle([1000.0, 2000.0, 4000.0])
    timing = Timing(budget_s=0.05, sample_s=0.001)
    samples = take_samples(lambda number: Sample(next(latencies), False), timing)
    assert 7 <= len(samples) <= 100
    assert 0.05e6 <= sum(samples) <= 0.06e6


def test_a_program_that_varies_a_little_is_sampled_until_its_median_is_known() -> None:
    """Normal samples with a deviation of 5 % tell it to 2 % when there are (1.96 x 1.25 x 5 / 2)^2 = 38."""
    counts, medians = [], []
    for seed in range(200):
        latencies = iter(np.random.default_rng(seed).normal(1000.0, 50.0, 200))
        samples = take_samples(lambda _, found=latencies: Sample(next(found), False), Timing(sample_s=0.001))
        counts.append(len(samples))
        medians.append(float(np.median(samples)))
    assert 25 < np.mean(counts) < 50
    # Stopping when the quartiles happen to be close costs some of the 95 %.
    assert np.mean(np.abs(np.divide(medians, 1000.0) - 1) < 0.02) > 0.85


def test_disturbed_samples_are_left_out_where_enough_others_are_left() -> None:
    found = itertools.cycle([Sample(1000.0, False), Sample(9000.0, True)])
    assert set(take_samples(lambda number: next(found), Timing(budget_s=0.05))) == {1000.0}


def test_a_program_that_is_always_disturbed_is_sampled_three_times_as_long() -> None:
    samples = take_samples(lambda number: Sample(5000.0, True), Timing(budget_s=0.05))
    assert 0.15e6 <= sum(samples) <= 0.16e6


def test_a_short_program_is_executed_many_times_in_each_sample() -> None:
    numbers: list[int] = []

    def run(number: int) -> Sample:
        numbers.append(number)
        return Sample(2.0, False)

    take_samples(run, Timing(sample_s=0.002))
    assert numbers[0] == 1
    assert set(numbers[1:]) == {1000}


def test_a_program_of_seconds_is_not_repeated_for_ever() -> None:
    assert len(take_samples(lambda number: Sample(5e6, False), Timing(budget_s=0.1))) == 1


def test_same_seed_same_inputs() -> None:
    specs = [((3, 4), "float32"), ((5,), "int64"), ((2,), "bool"), ((), "float16")]
    first, second, other = (random_inputs(specs, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert [(array.shape, str(array.dtype)) for array in first] == specs
    assert set(first[1]) <= {0, 1}, "indices are valid for any axis of two and more"


def test_the_coarsest_type_within_a_program_counts() -> None:
    def rounded(x: Any) -> Any:
        return relax.op.astype(relax.op.astype(x, "bfloat16"), "float32")

    assert value_types(partition_module("tvm", [(4, 4)], rounded)) == {"float32", "bfloat16"}
    assert value_types(partition_module("tvm", [(4, 4)], relax.op.nn.relu)) == {"float32"}


def test_inputs_are_drawn_once_while_the_programs_that_follow_take_them() -> None:
    placed: list[np.ndarray] = []

    def place(array: np.ndarray) -> np.ndarray:
        placed.append(array)
        return array

    table, row, other = ((64, 4), "float32"), ((4,), "float32"), ((8, 4), "float32")
    drawn = DrawnInputs(place, max_bytes=8 * 4 * 4)
    first = drawn.get([table, row, row], 1)
    assert all(np.array_equal(a, b) for a, b in zip(first, random_inputs([table, row, row], 1), strict=True))
    assert not np.array_equal(first[1], first[2]), "inputs of one shape would cancel each other"
    assert [id(array) for array in drawn.get([row, table], 1)] == [id(first[1]), id(first[0])]
    assert len(placed) == 3
    drawn.get([other], 1)
    drawn.get([other, table], 1)
    assert len(placed) == 5, "the table was too large to keep for others, and is drawn again"
    assert drawn.get([other], 2)[0] is not drawn.get([other], 1)[0]


def test_a_long_program_is_sampled_three_times() -> None:
    assert len(take_samples(lambda number: Sample(100_000.0, False), Timing())) == 3
    assert len(take_samples(lambda number: Sample(40_000.0, False), Timing())) == 7


def test_no_sample_writes_to_memory_for_the_first_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The machine keeps a result until the next one stands, so that two executions write to new memory."""
    target = resolve_target("cpu", num_threads=1)
    worker = Worker(Start(target=target, backends=("tvm",), memory_limit_bytes=None, folder=str(tmp_path)))
    faults: list[int] = []

    class Counted:
        def __init__(self, program: LoadedProgram) -> None:
            self.bound, self.mean_us, self.results = program.bound, program.mean_us, program.results
            self._once_us = program.once_us

        def once_us(self, arguments: Sequence[Any]) -> float:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            latency_us = self._once_us(arguments)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            return latency_us

    load = worker.place.load
    monkeypatch.setattr(worker.place, "load", lambda executable: Counted(load(executable)))
    module = partition_module("tvm", [(16, 1024, 1024)], lambda x: relax.op.add(x, x))
    assert isinstance(worker.build(Build(key=1, module_json=json_of(module), check=False, seed=0)), Done)
    timed = worker.time(Time(key=1, seed=0, timing=Timing()))
    assert isinstance(timed, Timed)
    pages = 64 * 2**20 // resource.getpagesize()
    assert len(faults) >= 2 + len(timed.samples_us)  # disturbed samples are left out
    assert faults[1] > pages / 2, "the second execution writes to new memory no more: leave it out"
    assert max(faults[2:]) < pages / 10


def test_inputs_lie_in_their_interval() -> None:
    (values,) = random_inputs([((1000,), "float32")], 0, (0.1, 1.0))
    assert values.min() >= 0.1
    assert values.max() <= 1.0


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    """Two ends as the tuner makes them: of a socket pair, which carries both ways."""
    here, there = (Connection(end.detach()) for end in socket.socketpair())
    with here, there:
        yield here, there


@pytest.mark.parametrize(
    "message",
    [
        Build(key=1, module_json="{}", check=True, seed=2),
        Time(key=1, seed=2, timing=Timing()),
    ],
)
def test_requests_survive_the_wire(message: Build | Time, ends: tuple[Connection, Connection]) -> None:
    send(ends[0], message)
    assert receive_request(ends[1]) == message


@pytest.mark.parametrize(
    "message",
    [Done(0.5), Timed(samples_us=(1.0, 2.0), peak_memory_bytes=None), Failed(Status.TIMEOUT, "too slow")],
)
def test_replies_survive_the_wire(
    message: Done | Timed | Failed, ends: tuple[Connection, Connection]
) -> None:
    send(ends[1], message)
    assert receive_reply(ends[0]) == message


def test_arrays_of_any_shape_survive_the_wire(ends: tuple[Connection, Connection]) -> None:
    arrays = [np.float16(2.5).reshape(()), np.arange(6).reshape(2, 3).T, np.zeros((0, 4), bool)]
    send_arrays(ends[0], arrays)
    found = receive_arrays(ends[1], [ArrayInfo(array.shape, str(array.dtype)) for array in arrays])
    for array, other in zip(arrays, found, strict=True):
        assert (other.dtype, other.shape) == (array.dtype, array.shape)
        assert np.array_equal(array, other)


def test_arrays_larger_than_any_buffer_cross_behind_a_message(ends: tuple[Connection, Connection]) -> None:
    arrays = [np.random.default_rng(0).random((3, 1 << 20)), np.arange(5, dtype=ml_dtypes.bfloat16)]

    def send_all() -> None:
        send(ends[1], Done(0.5))
        send_arrays(ends[1], arrays)
        send(ends[1], Done(0.25))

    sender = threading.Thread(target=send_all)
    sender.start()
    assert receive_reply(ends[0]) == Done(0.5)
    found = receive_arrays(ends[0], [ArrayInfo(array.shape, str(array.dtype)) for array in arrays])
    assert receive_reply(ends[0]) == Done(0.25)
    sender.join()
    for array, other in zip(arrays, found, strict=True):
        assert other.dtype == array.dtype
        assert np.array_equal(array, other)
        assert not other.flags.writeable


def test_an_end_amid_an_array_is_told(ends: tuple[Connection, Connection]) -> None:
    send_arrays(ends[0], [np.zeros(3)])
    ends[0].close()
    with pytest.raises(EOFError):
        receive_arrays(ends[1], [ArrayInfo((4,), "float64")])


def test_an_end_between_messages_or_amid_one_is_told(ends: tuple[Connection, Connection]) -> None:
    here, there = ends
    os.write(here.fileno(), b"\x00\x00\x00\x09part")
    here.close()
    with pytest.raises(OSError, match="end of file"):
        receive_reply(there)
    with pytest.raises(EOFError):
        receive_reply(there)


def test_what_is_pickled_is_refused(ends: tuple[Connection, Connection]) -> None:
    ends[0].send(Done())
    with pytest.raises(msgspec.DecodeError):
        receive_reply(ends[1])


def test_variances_are_drawn_positive_and_weights_of_a_model_small() -> None:
    shapes = [(1, 8, 4, 4), (8, 8, 3, 3), (8,), (8,), (8,), (8,)]
    module = partition_module(
        "tvm",
        shapes,
        lambda x, w, g, b, m, v: relax.op.clip(
            relax.TupleGetItem(
                relax.op.nn.batch_norm(relax.op.nn.conv2d(x, w, padding=1), g, b, m, v, axis=1), 0
            ),
            0.0,
            6.0,
        ),
    )
    assert own_intervals(module) == {5: POSITIVE}
    inputs = random_inputs(input_specs(module), seed=0, own=own_intervals(module))
    assert inputs[5].min() > 0 > inputs[4].min()
    module["main"] = module["main"].with_attr(NUM_INPUTS_ATTRIBUTE, 1)
    low, high = own_intervals(module)[1]
    assert high == -low == pytest.approx((3 / 72) ** 0.5)
    assert set(own_intervals(module)) == {1, 5}


def test_weights_that_a_partition_marks_are_drawn_small() -> None:
    module = partition_module("tvm", [(4, 48), (48, 8)], lambda x, w: relax.op.matmul(x, w))
    assert own_intervals(module) == {}
    module["part"] = module["part"].with_attr(WEIGHTS_ATTRIBUTE, [1])
    assert own_intervals(module) == {1: (-0.25, 0.25)}


@pytest.mark.parametrize(("latency_us", "untimed"), [(20.0, [8]), (900.0, [4]), (1500.0, [2]), (5000.0, [])])
def test_a_program_in_a_race_refills_the_caches_before_it_is_timed(
    latency_us: float, untimed: list[int]
) -> None:
    ran: list[int] = []

    def run(number: int) -> Sample:
        ran.append(number)
        return Sample(latency_us, is_disturbed=False)

    racer = Racer.of(run, sample_s=0.0005)
    ran.clear()
    assert racer.sample_us() == latency_us
    assert ran == [*untimed, racer.number]
