"""Kernels are timed in turn in one process; one that fails or crashes is no harm to later ones."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from tuner.backends.cpu.kernels.clamp import RELU
from tuner.backends.cpu.tuned.families import kernel_of
from tuner.measuring.kernel_process import KernelProcess
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm


def _calling(name: str) -> Any:
    """Return a kernel that calls a C function."""
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("main")
        script.arg("data", script.buffer((4,), "float32"))
        with script.sblock("root"):
            script.evaluate(tirx.call_extern("int32", name))
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
