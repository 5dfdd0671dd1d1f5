"""Kernels of plain loops get a GPU's threads, compute what they did, and share out what is independent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.harness.run_module import one_after_the_other, run_module
from tuner.backends.tvm.gpu_loops import has_threads, share_out
from tuner.backends.tvm.native import fuse_function
from tuner.backends.tvm.schedule import schedule_kernels
from tuner.graph.relax_types import IRModule
from tuner.lowering.gpu_code import compile_for_gpu
from tuner.lowering.lower import build_module
from tuner.targets.cuda_compiler import compiler_obstacle
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op
H200 = "nvidia/nvidia-h200"


def module_of(make: Callable[..., Any], *arrays: np.ndarray) -> IRModule:
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"input{number}", relax.TensorType(array.shape, str(array.dtype)))
        for number, array in enumerate(arrays)
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(make(*inputs)))
        builder.emit_func_output(result)
    return builder.get()


def kernel_of(module: IRModule) -> tirx.PrimFunc:
    legal = relax.transform.LegalizeOps()(module)
    (kernel,) = [function for _, function in legal.functions_items() if isinstance(function, tirx.PrimFunc)]
    return kernel


def launches(kernel: tirx.PrimFunc) -> list[int]:
    """Return how many threads each launch has, in order."""
    extents: dict[str, list[int]] = {"blockIdx.x": [], "threadIdx.x": []}

    def visit(loop: Any) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            extents[str(loop.thread_binding.thread_tag)].append(int(loop.extent))

    tvm_ffi.structural_walk(kernel.body, (tirx.For, visit))
    return [blocks * threads for blocks, threads in zip(*extents.values(), strict=True)]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def numbers(below: int, count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(below, size=count)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], list[int]]] = {
    # The zeros first, an element a thread; then a column a thread, whatever is looked up.
    "rows": (
        lambda g, x, i: op.grad.take_backward(g, x, i, axis=0),
        (normal(32, 48), normal(9, 48), numbers(9, 32)),
        [512, 48],
    ),
    "middle axis": (
        lambda g, x, i: op.grad.take_backward(g, x, i, axis=1),
        (normal(5, 32, 40), normal(5, 7, 40), numbers(7, 32)),
        [1408, 256],
    ),
    "last axis": (
        lambda g, x, i: op.grad.take_backward(g, x, i, axis=1),
        (normal(6, 32), normal(6, 11), numbers(11, 32)),
        [66, 6],
    ),
    # Two of the values may go to one element, so that only the copy before them is shared out.
    "values added up": (
        lambda x, i, v: op.index_put(x, (i,), v, accumulate=True),
        (normal(300), numbers(5, 64), normal(64)),
        [384, 1],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_computes_the_same_by_threads_in_any_order(case: str) -> None:
    make, arrays, expected_threads = CASES[case]
    module = module_of(make, *arrays)
    kernel = kernel_of(module)
    assert not has_threads(kernel)
    shared = share_out(kernel)
    assert launches(shared) == expected_threads
    legal = relax.transform.LegalizeOps()(module)
    (name,) = [variable for variable, each in legal.functions_items() if isinstance(each, tirx.PrimFunc)]
    turned = legal.clone()
    turned.update_func(name, one_after_the_other(shared))
    target = resolve_target("cpu", num_threads=1)
    (expected,) = run_module(build_module(module, target), list(arrays), target)
    (found,) = run_module(build_module(turned, target), list(arrays), target)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert not np.array_equal(found, np.zeros_like(found))


def test_every_kernel_of_a_fused_function_has_threads() -> None:
    make, arrays, _ = CASES["rows"]
    module = module_of(
        lambda g, x, i: op.add(make(g, x, i), x),
        *arrays,
    )
    scheduled = schedule_kernels(fuse_function(module["main"]), resolve_target(H200))
    kernels = [function for _, function in scheduled.functions_items() if isinstance(function, tirx.PrimFunc)]
    assert kernels
    assert all(map(has_threads, kernels))


@pytest.mark.skipif(compiler_obstacle() is not None, reason=str(compiler_obstacle()))
@pytest.mark.parametrize("case", ["rows", "values added up"])
def test_the_threads_kernels_compile(case: str) -> None:
    make, arrays, expected_threads = CASES[case]
    code = compile_for_gpu(module_of(make, *arrays), resolve_target(H200))
    assert len(code.kernels) == len(expected_threads)


@pytest.mark.skipif(compiler_obstacle() is not None, reason=str(compiler_obstacle()))
def test_a_reduction_that_tvm_cannot_share_out_gets_plain_loops() -> None:
    """The place of a maximum, whose gradient a mask follows: TVM has no reducer for the two."""
    arrays = (normal(1, 8, 8, 8), normal(1, 8, 16, 16))

    def masked(gradient: Any, data: Any) -> Any:
        back = op.grad.max_pool2d_backward(
            gradient, data, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)
        )
        return op.where(op.greater(data, relax.const(0.0)), back, op.zeros_like(data))

    legal = relax.transform.LegalizeOps()(fused(module_of(masked, *arrays)))
    assert compile_for_gpu(legal, resolve_target(H200)).kernels


def fused(module: IRModule) -> IRModule:
    """Return the module with operators fused as TVM does by itself."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    return tvm.transform.Sequential(passes)(module)
