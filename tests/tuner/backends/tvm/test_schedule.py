"""Kernels without a schedule get one, are marked as finished, and compute what they did; a rule may fail."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import dlight

from tests.harness.run_module import run_module
from tests.samples.partition_samples import function_module
from tuner.backends.tvm import cpu_schedule, schedule
from tuner.backends.tvm.native import fuse_function
from tuner.backends.tvm.schedule import OPAQUE, schedule_kernels
from tuner.lowering.lower import build_module, build_reference
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm


def softmax_of_product(rows: int, columns: int, depth: int):
    left = relax.Var("left", relax.TensorType((rows, depth), "float32"))
    right = relax.Var("right", relax.TensorType((depth, columns), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [left, right]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(left, right))
            result = builder.emit_output(relax.op.nn.softmax(product))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(("rows", "columns", "depth"), [(32, 64, 48), (7, 33, 5), (1, 1, 1)])
def test_scheduled_kernels_compute_the_same(rows: int, columns: int, depth: int) -> None:
    target = resolve_target("cpu", num_threads=1)
    module = softmax_of_product(rows, columns, depth)
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal((rows, depth)).astype("float32"),
        rng.standard_normal((depth, columns)).astype("float32"),
    ]
    (expected,) = run_module(build_reference(module, target), inputs, target)
    (found,) = run_module(build_module(module, target), inputs, target)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_kernels_are_marked_and_not_scheduled_again() -> None:
    target = resolve_target("cpu", num_threads=1)
    kernels = relax.transform.LegalizeOps()(softmax_of_product(16, 16, 16))
    once = schedule_kernels(kernels, target)
    marked = [function for _, function in once.functions_items() if isinstance(function, tirx.PrimFunc)]
    assert marked
    assert all(int(function.attrs["op_pattern"]) == OPAQUE for function in marked)
    assert schedule_kernels(once, target).script() == once.script()


UNUSUAL = {
    "instance norm": lambda x: relax.op.nn.instance_norm(
        x, relax.op.ones((8,), "float32"), relax.op.zeros((8,), "float32"), channel_axis=1, axes=[2, 3]
    ),
    "group norm": lambda x: relax.op.nn.group_norm(
        x, relax.op.ones((8,), "float32"), relax.op.zeros((8,), "float32"), 4, 1, [2, 3]
    ),
    "place of the largest": lambda x: relax.op.argmax(x, axis=3),
    "place of the largest of a column": lambda x: relax.op.argmax(x, axis=1),
    "median": lambda x: relax.op.strided_slice(relax.op.sort(x, axis=3), [3], [7], [8]),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_reductions_of_several_results_compute_what_they_did(name: str) -> None:
    target = resolve_target("cpu", num_threads=1)
    module = function_module([(2, 8, 16, 16)], UNUSUAL[name])
    values = np.random.default_rng(0).standard_normal((2, 8, 16, 16)).astype("float32")
    (expected,) = run_module(build_reference(module, target), [values], target)
    fused = schedule_kernels(fuse_function(module["main"]), target)
    (found,) = run_module(build_module(fused, target), [values], target)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def broken(*_arguments: object, **_keywords: object) -> bool:
    raise IndexError("list index out of range")


def test_a_rule_that_fails_leaves_plain_loops_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = resolve_target("cpu", num_threads=1)
    module = softmax_of_product(32, 64, 48)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype("float32") for shape in ((32, 48), (48, 64))]
    (expected,) = run_module(build_reference(module, target), inputs, target)
    monkeypatch.setattr(cpu_schedule, "result_axes", broken)
    cpu_schedule.warn_of_rule.cache_clear()
    with caplog.at_level(logging.WARNING):
        (found,) = run_module(build_module(module, target), inputs, target)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    of_product = [each.getMessage() for each in caplog.records if "_tile_product" in each.getMessage()]
    assert len(of_product) == 1
    assert "IndexError: list index out of range" in of_product[0]


def test_a_gpu_rule_that_fails_leaves_the_last_rules_loops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dlight.gpu.Matmul, "apply", broken)
    cpu_schedule.warn_of_rule.cache_clear()
    kernels = relax.transform.LegalizeOps()(softmax_of_product(32, 64, 48))
    with caplog.at_level(logging.WARNING):
        scheduled = schedule_kernels(kernels, resolve_target("nvidia/nvidia-a100"))
    text = scheduled.script()
    functions = [each for _, each in scheduled.functions_items() if isinstance(each, tvm.tirx.PrimFunc)]
    assert len(functions) == 2
    assert all("threadIdx.x" in each.script() for each in functions), text
    assert [each.levelname for each in caplog.records if "DLight" in each.getMessage()] == ["WARNING"]
    assert schedule._GPU_RULES[-1] is dlight.gpu.Fallback
