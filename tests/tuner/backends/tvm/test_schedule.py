"""Kernels without a schedule get one, are marked as finished, and compute what they did."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from tests.harness.run_module import run_module
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
