"""Partitions are lowered by whom they name, and what no partition holds is lowered too."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import function_module, kernels_of, partition_module
from tuner.backends.registry import backends_for
from tuner.errors import UnknownNameError
from tuner.lowering.lower import build_module, build_planned, build_reference, lower_module
from tuner.lowering.machine import load_machine
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

op = relax.op


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


def test_a_partition_of_a_backend_that_is_not_given_is_named(target: Target) -> None:
    module = partition_module("blas", [(4, 4), (4, 4)], lambda x, w: op.matmul(x, w))
    with pytest.raises(UnknownNameError, match=r"part.*'blas'"):
        lower_module(module, backends_for(["tvm"], target), target)


def test_lowering_inlines_partitions_so_that_one_memory_plan_covers_all(target: Target) -> None:
    module = partition_module("tvm", [(4, 4), (4, 4)], lambda x, w: op.matmul(x, w))
    lowered = lower_module(module, backends_for(["tvm"], target), target)
    functions = [
        function for _, function in lowered.functions_items() if isinstance(function, relax.Function)
    ]
    assert len(functions) == 1
    assert len(kernels_of(lowered)) == 1


def test_operators_outside_any_partition_are_lowered_and_run(target: Target) -> None:
    module = function_module([(8, 16), (16, 8)], lambda x, w: op.nn.relu(op.matmul(x, w)))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape, dtype=np.float32) for shape in ((8, 16), (16, 8))]
    expected = np.maximum(inputs[0] @ inputs[1], 0)
    for executable in (build_module(module, target), build_reference(module, target)):
        np.testing.assert_allclose(run_module(executable, inputs, target)[0], expected, rtol=1e-4, atol=1e-5)


def test_what_a_program_is_given_is_checked_by_the_machine(target: Target) -> None:
    """Kernels do not check their arguments again."""
    module = function_module([(8, 16), (8, 16)], op.add)
    machine = load_machine(build_module(module, target), tvm.cpu())
    x = np.ones((8, 16), np.float32)

    def call(left: np.ndarray) -> np.ndarray:
        found: np.ndarray = machine["main"](tvm.runtime.from_dlpack(left), tvm.runtime.tensor(x)).numpy()
        return found

    aligned = np.frombuffer(bytearray(8 * 17 * 4 + 64), np.float32)
    begin = -aligned.ctypes.data % 64 // 4
    plain = aligned[begin : begin + 128].reshape(8, 16)
    np.testing.assert_array_equal(call(plain), plain + x)
    with pytest.raises(RuntimeError, match="not aligned"):
        call(aligned[begin + 1 : begin + 129].reshape(8, 16))
    with pytest.raises(RuntimeError, match="not contiguous"):
        call(aligned[begin : begin + 128].reshape(16, 8).T)
    with pytest.raises(ValueError, match="dtype"):
        call(plain.view(np.int32))
    with pytest.raises(RuntimeError, match="16 vs"):
        call(plain.reshape(16, 8))


def test_a_kernel_of_several_loops_builds_without_a_warning_and_is_right(
    target: Target, capfd: pytest.CaptureFixture[str]
) -> None:
    gradient, value = (relax.Var(name, relax.TensorType((3, 2), "float32")) for name in ("gradient", "value"))
    rows = relax.Var("rows", relax.TensorType((3,), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [gradient, value, rows]):
        with builder.dataflow():
            made = builder.emit_output(op.grad.take_backward(gradient, value, rows, 0))
        builder.emit_func_output(made)
    inputs = [np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((3, 2), np.float32), np.array([2, 0, 2])]
    for executable in (build_module(builder.get(), target), build_reference(builder.get(), target)):
        np.testing.assert_array_equal(
            run_module(executable, inputs, target)[0], [[2.0, 3.0], [0.0, 0.0], [4.0, 6.0]]
        )
    assert "Warning" not in capfd.readouterr().err


def test_results_in_tuples_come_flat(target: Target) -> None:
    module = function_module([(4, 6)], lambda x: op.split(x, 2, axis=1))
    results = run_module(build_module(module, target), [np.ones((4, 6), np.float32)], target)
    assert [array.shape for array in results] == [(4, 3), (4, 3)]


def test_a_gpu_kernel_is_bound_to_threads_without_a_gpu() -> None:
    h200 = resolve_target("nvidia/nvidia-h200")
    module = partition_module("tvm", [(64, 64), (64, 64)], lambda x, w: op.nn.relu(op.matmul(x, w)))
    lowered = lower_module(module, backends_for(["tvm"], h200), h200)
    assert all("threadIdx.x" in kernel.script() for kernel in kernels_of(lowered))


def test_what_is_planned_are_the_results_and_the_tensors_between(target: Target) -> None:
    module = function_module(
        [(64, 64), (64, 64)], lambda x, w: relax.op.matmul(relax.op.nn.softmax(relax.op.matmul(x, w)), w)
    )
    executable, planned_bytes = build_planned(module, target)
    tensor = 64 * 64 * 4
    assert 2 * tensor <= planned_bytes <= 4 * tensor
    (result,) = run_module(executable, random_inputs(input_specs(module), seed=0), target)
    assert result.nbytes == tensor
