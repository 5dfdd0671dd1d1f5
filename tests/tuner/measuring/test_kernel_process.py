"""Kernels are timed in turn in one process; one that fails or crashes is no harm to later ones."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from records.measurement import NOT_BY_PROGRAM
from tuner.backends.cpu.kernels.clamp import RELU
from tuner.backends.cpu.tuned.families import kernel_of
from tuner.measuring.kernel_process import KernelProcess, WeightPool, _timer
from tuner.targets.resolution import resolve_target, tvm_target

pytestmark = pytest.mark.tvm


def _calling(name: str, *arguments: int) -> Any:
    """Return a kernel that calls a C function."""
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("main")
        script.arg("data", script.buffer((4,), "float32"))
        with script.sblock("root"):
            script.evaluate(tirx.call_extern("int32", name, *arguments))
    return builder.get()


def test_each_kernel_has_as_many_samples_as_rounds() -> None:
    kernel = kernel_of("product:16x32x32", RELU).function()
    large = kernel_of("product:64x256x256", RELU).function()
    with KernelProcess(resolve_target("cpu", num_threads=1)) as process:
        small_us, large_us = process.time([kernel, large], rounds=3)
    assert isinstance(small_us, tuple)
    assert isinstance(large_us, tuple)
    assert len(small_us) == len(large_us) == 3
    assert 0 < min(small_us) < min(large_us)


def test_a_kernel_that_crashes_fails_alone_and_the_next_call_goes_on() -> None:
    kernel = kernel_of("product:16x32x32", RELU).function()
    with KernelProcess(resolve_target("cpu", num_threads=1)) as process:
        good, crashed = process.time([kernel, _calling("abort")], rounds=1)
        assert isinstance(good, tuple)
        assert isinstance(crashed, str)
        (again,) = process.time([kernel], rounds=1)
    assert isinstance(again, tuple)


def test_a_kernel_that_cannot_be_built_fails_alone() -> None:
    kernel = kernel_of("product:16x32x32", RELU).function()
    with KernelProcess(resolve_target("cpu", num_threads=1)) as process:
        good, bad = process.time([kernel, _calling("there_is_no_such_function")], rounds=1)
    assert isinstance(good, tuple)
    assert isinstance(bad, str)


def test_a_process_that_is_killed_says_nothing_of_the_kernel() -> None:
    """As where the system's kernel ends it for memory."""
    with KernelProcess(resolve_target("cpu", num_threads=1)) as process:
        killed, crashed = process.time([_calling("raise", int(signal.SIGKILL)), _calling("abort")], rounds=1)
    assert str(killed).startswith(NOT_BY_PROGRAM)
    assert not str(crashed).startswith(NOT_BY_PROGRAM)


def _packed(name: str) -> list[Any]:
    return [each for each in kernel_of(name, RELU).function().params if each.name.startswith("packed")]


def _address(tensor: Any) -> int:
    return np.from_dlpack(tensor).ctypes.data


def test_weights_are_read_again_when_the_others_have_been() -> None:
    small, large = _packed("product:16x32x32"), _packed("product:16x64x96")
    pool = WeightPool(1 << 18, 0)
    readers = pool.reader(small), pool.reader(large)
    read: list[tuple[int, int]] = []
    for turn in range(40):
        for (packed,) in readers[turn % 2](1 + turn % 7):
            address = _address(packed)
            assert address % 64 == 0
            read.append((address, 4 * math.prod(packed.shape)))
    for place, (address, size) in enumerate(read):
        between = 0
        for earlier, length in reversed(read[:place]):
            if earlier < address + size and address < earlier + length:
                assert between >= 1 << 17, "but for gaps where one kernel follows the other"
                break
            between += length
    assert sum(size for _, size in read) > 2 << 18, "all were read more than once"


def test_a_kernel_alone_reads_the_same_weights() -> None:
    (one,), (other,) = WeightPool(0, 4 * 64 * 96).reader(_packed("product:16x64x96"))(2)
    assert _address(one) == _address(other)
    assert 0.0 <= one.numpy().min() < one.numpy().max() <= 1.0


def test_several_weights_of_a_kernel_lie_beside_each_other() -> None:
    packed = _packed("rowwise:1x14x14x16x96x1x1x1x1x0x0x3x3x1x1x1x1x16x1")
    first, second = WeightPool(1 << 20, 0).reader(packed)(2)
    assert [tuple(each.shape) for each in first] == [tuple(map(int, each.shape)) for each in packed]
    addresses = [_address(each) for each in (*first, *second)]
    assert addresses == sorted(set(addresses))
    assert WeightPool(1 << 20, 0).reader([])(3) == [(), (), ()]


def test_kernels_are_timed_among_weights() -> None:
    kernels = [kernel_of(name, RELU).function() for name in ("product:1x512x512", "attention:1x2x32x37x37")]
    with KernelProcess(resolve_target("cpu", num_threads=1)) as process:
        for found in process.time(kernels, rounds=2, weight_bytes=1 << 24):
            assert isinstance(found, tuple)
            assert len(found) == 2


def test_each_run_is_given_the_next_weights() -> None:
    given: list[int] = []

    class Pool:
        def reader(self, arguments: Any) -> Callable[[int], list[tuple[Any, ...]]]:
            inner = WeightPool(1 << 20, 0).reader(arguments)

            def read(num_runs: int) -> list[tuple[Any, ...]]:
                given.append(num_runs)
                return inner(num_runs)

            return read

    module = tvm.IRModule(
        {"main": kernel_of("product:16x32x32", RELU).function().with_attr("global_symbol", "main")}
    )
    run = _timer(module, tvm_target(resolve_target("cpu", num_threads=1)), Pool(), counts_own_time=True)
    assert run(3) > 0
    assert run(5) > 0
    assert given == [3, 5]
