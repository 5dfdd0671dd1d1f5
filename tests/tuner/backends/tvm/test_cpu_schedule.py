"""A scheduled kernel computes what the unscheduled one does, and is vector code where a rule applies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics import relative_error
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import Body, function_module, kernels_of
from tuner.backends.tvm.cpu_schedule import schedule_for_cpu
from tuner.backends.tvm.native import fuse_function
from tuner.backends.tvm.schedule import schedule_kernels
from tuner.lowering.lower import build_module, build_reference
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

op = relax.op


def rotated(x: Any, c: Any) -> Any:
    """The gradient of rotary embeddings, with the heads side by side: paddings, and indices that repeat."""
    halves = op.split(op.multiply(x, c), [4], axis=3)
    paddings = ((0, 0, 0, 0, 0, 0, 4, 0), (0, 0, 0, 0, 0, 0, 0, 4))
    padded = op.add(op.nn.pad(op.negative(halves[0]), paddings[0]), op.nn.pad(halves[1], paddings[1]))
    return op.reshape(op.permute_dims(padded, [0, 2, 1, 3]), (2, 12, 32))


CASES: dict[str, tuple[Sequence[Sequence[int]], Body]] = {
    "product": ([(32, 24), (24, 48)], lambda x, w: op.matmul(x, w)),
    "product of a transposed weight": ([(32, 24), (48, 24)], lambda x, w: op.matmul(x, op.permute_dims(w))),
    "product of transposed rows": ([(24, 32), (24, 48)], lambda x, w: op.matmul(op.permute_dims(x), w)),
    "product whose columns no vector divides": (
        [(16, 24), (51, 24)],
        lambda x, w: op.matmul(x, op.permute_dims(w)),
    ),
    "product that nothing divides": ([(5, 7), (7, 11)], lambda x, w: op.matmul(x, w)),
    "product of 49 columns": ([(3, 49, 32), (3, 32, 49)], lambda x, w: op.matmul(x, w)),
    "product of 197 rows and columns": (
        [(2, 197, 16), (2, 197, 16)],
        lambda x, w: op.matmul(x, op.permute_dims(w, [0, 2, 1])),
    ),
    "product of 13 rows": (
        [(13, 48), (48, 64), (64,)],
        lambda x, w, b: op.nn.relu(op.add(op.matmul(x, w), b)),
    ),
    "product of 50 columns with an epilogue": (
        [(29, 48), (48, 50), (50,)],
        lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, w), b)),
    ),
    "product of 50 columns, normalised": (
        [(29, 48), (48, 50)],
        lambda x, w: op.nn.softmax(op.multiply(op.matmul(x, w), relax.const(0.125, "float32"))),
    ),
    "product with an epilogue": (
        [(32, 24), (24, 48), (48,)],
        lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, w), b)),
    ),
    "products of a batch": ([(3, 16, 24), (3, 24, 32)], lambda x, w: op.matmul(x, w)),
    "product of a vector": ([(1, 24), (24, 48)], lambda x, w: op.matmul(x, w)),
    "backward of a pool whose windows overlap": (
        [(1, 8, 8, 8), (1, 8, 16, 16)],
        lambda g, x: op.grad.max_pool2d_backward(g, x, (3, 3), (2, 2), (1, 1, 1, 1)),
    ),
    "convolution": ([(1, 8, 14, 14), (16, 8, 3, 3)], lambda x, w: op.nn.conv2d(x, w, padding=1)),
    "convolution in steps of two": (
        [(1, 3, 16, 16), (16, 3, 3, 3)],
        lambda x, w: op.nn.conv2d(x, w, strides=2, padding=1),
    ),
    "convolution of each channel": (
        [(1, 16, 14, 14), (16, 1, 3, 3)],
        lambda x, w: op.nn.conv2d(x, w, padding=1, groups=16),
    ),
    "convolution, bias and activation": (
        [(1, 8, 7, 7), (16, 8, 1, 1), (1, 16, 1, 1)],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w), b)),
    ),
    "softmax": ([(4, 8, 48)], lambda x: op.nn.softmax(x)),
    "softmax of an odd width": ([(8, 51)], lambda x: op.nn.log_softmax(x)),
    "layer norm": ([(8, 96), (96,), (96,)], lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1])),
    "sum of rows": ([(24, 96)], lambda x: op.sum(x, axis=1)),
    "sum of columns": ([(24, 96)], lambda x: op.sum(x, axis=0)),
    "sum of everything": ([(24, 96)], lambda x: op.sum(x)),
    "transposition": ([(48, 32)], lambda x: op.permute_dims(x)),
    "transposition of a batch": ([(2, 16, 4, 32)], lambda x: op.permute_dims(x, [0, 2, 1, 3])),
    "pooling": ([(1, 8, 16, 16)], lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1))),
    "broadcast": ([(4, 1, 32), (6, 1)], lambda x, y: op.multiply(x, y)),
    "gradient of rotary embeddings": ([(2, 4, 12, 8), (1, 1, 12, 8)], rotated),
    "sum of such a gradient": (
        [(2, 4, 12, 8), (1, 1, 12, 8)],
        lambda x, c: op.sum(rotated(x, c), axis=-1),
    ),
    "scalar": ([()], lambda x: op.exp(x)),
}


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


def error_of(module: Any, target: Target) -> float:
    scheduled = schedule_kernels(fuse_function(module["main"]), target)
    inputs = random_inputs(input_specs(module), seed=0)
    results = run_module(build_module(scheduled, target), inputs, target)
    return relative_error(results, run_module(build_reference(module, target), inputs, target))


@pytest.mark.parametrize("name", CASES)
def test_a_scheduled_kernel_computes_what_the_unscheduled_one_does(name: str, target: Target) -> None:
    shapes, body = CASES[name]
    assert error_of(function_module(shapes, body), target) < 1e-5


@settings(max_examples=8, deadline=None)
@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 80),
    depth=st.integers(1, 40),
    columns=st.integers(1, 80),
    left_transposed=st.booleans(),
    right_transposed=st.booleans(),
    biased=st.booleans(),
)
def test_products_of_any_shape_are_right(
    *,
    batch: int,
    rows: int,
    depth: int,
    columns: int,
    left_transposed: bool,
    right_transposed: bool,
    biased: bool,
) -> None:
    left = (batch, depth, rows) if left_transposed else (batch, rows, depth)
    right = (batch, columns, depth) if right_transposed else (batch, depth, columns)

    def product(x: Any, w: Any, b: Any) -> Any:
        found = op.matmul(
            op.permute_dims(x, [0, 2, 1]) if left_transposed else x,
            op.permute_dims(w, [0, 2, 1]) if right_transposed else w,
        )
        return op.nn.relu(op.add(found, b)) if biased else found

    shapes = [left, right, (columns,)] if biased else [left, right]
    body: Body = product if biased else lambda x, w: product(x, w, None)
    assert error_of(function_module(shapes, body), resolve_target("cpu", num_threads=1)) < 1e-5


def test_a_product_of_odd_extents_is_computed_in_whole_vectors_in_registers() -> None:
    shapes, body = CASES["product of 49 columns"]
    (kernel,) = kernels_of(fuse_function(function_module(shapes, body)["main"]))
    text = schedule_for_cpu(kernel).script()
    assert "in T.vectorized(T.int64(16))" in text
    assert 'scope="local"' in text
    assert "T.if_then_else(v2 < T.int64(49)" in text, "the panel has zeros beyond the columns"


def test_a_product_with_its_epilogue_is_one_nest_of_vectors_in_registers() -> None:
    shapes, body = CASES["product with an epilogue"]
    (kernel,) = kernels_of(fuse_function(function_module(shapes, body)["main"]))
    text = schedule_for_cpu(kernel).script()
    assert "T.vectorized" in text
    assert 'scope="local"' in text
    assert "T_multiply" in text
    assert text.count("matmul_intermediate =") == 0, "the product itself never goes to memory"


@settings(max_examples=8, deadline=None)
@given(
    batch=st.integers(1, 3),
    axis=st.integers(1, 2),
    kept=st.tuples(st.integers(0, 28), st.integers(1, 29)).filter(lambda ends: ends[0] < ends[1]),
    step=st.integers(1, 3),
    biased=st.booleans(),
    size=st.sampled_from((29, 32)),
)
def test_a_product_of_which_a_slice_is_kept_writes_the_slice_and_nothing_else(
    batch: int, axis: int, kept: tuple[int, int], step: int, biased: bool, size: int
) -> None:
    def body(x: Any, w: Any, b: Any) -> Any:
        product = op.matmul(x, w)
        wanted = op.add(product, b) if biased else op.multiply(b, product)
        return op.strided_slice(wanted, [axis], [kept[0]], [kept[1]], [step])

    fused = fuse_function(function_module([(batch, size, 8), (8, size), (size,)], body)["main"])
    (kernel,) = kernels_of(fused)
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape, np.float32) for shape in ((batch, size, 8), (8, size), (size,)))
    full = x @ w + b if biased else b * (x @ w)
    lines = slice(*kept, step)
    expected = full[:, lines] if axis == 1 else full[:, :, lines]
    # As much room before and behind the result as the whole product takes, in lines of TVM's alignment.
    room = -(-full.size // 16) * 16
    memory = np.from_dlpack(tvm.runtime.tensor(np.full((3, room), 7.0, np.float32)))
    result = memory[1, : expected.size].reshape(expected.shape)
    built = tvm.compile(schedule_for_cpu(kernel).with_attr("global_symbol", "main"), target="llvm")
    built["main"](*map(tvm.runtime.tensor, (x, w, b)), tvm.runtime.from_dlpack(result))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    memory[1, : expected.size] = 7.0
    assert np.all(memory == 7.0), "the kernel wrote outside of its result"


def test_a_large_kernel_is_shared_out_and_a_small_one_is_not() -> None:
    small, large = (
        kernels_of(fuse_function(function_module([shape], lambda x: op.nn.relu(x))["main"]))[0]
        for shape in ((4, 32), (512, 512))
    )
    assert "T.parallel" not in schedule_for_cpu(small).script()
    assert "T.parallel" in schedule_for_cpu(large).script()


def test_finished_kernels_are_marked_and_stay_as_they_are(target: Target) -> None:
    fused = fuse_function(function_module([(64, 64)], lambda x: op.nn.relu(x))["main"])
    once = schedule_kernels(fused, target)
    assert tvm_ffi.structural_equal(once, schedule_kernels(once, target))
    assert all(int(kernel.attrs["op_pattern"]) == 8 for kernel in kernels_of(once))
