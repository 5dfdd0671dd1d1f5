"""Tiles are cut for the registers that a target has, and right for every number of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import Body, part_of, partition_module
from tuner.backends.registry import make_backend
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.targets.resolution import measuring_obstacle, resolve_target
from tuner.targets.target import Target
from tuner.targets.vector_registers import multiplies_bfloat16, vector_registers

pytestmark = pytest.mark.tvm

op = relax.op


def code_for(processor: str) -> Target:
    return Target(
        name=f"llvm -mcpu={processor}",
        kind="cpu",
        tvm_json=f'{{"kind":"llvm","mcpu":"{processor}","mtriple":"x86_64-linux-gnu"}}',
        num_threads=1,
    )


@pytest.mark.parametrize(
    ("processor", "registers"),
    [("x86-64-v4", 32), ("znver4", 32), ("haswell", 8), ("znver3", 8), ("x86-64-v2", 4)],
)
def test_registers_are_those_of_the_instruction_set(processor: str, registers: int) -> None:
    assert vector_registers(code_for(processor)) == registers


@pytest.mark.parametrize(
    ("processor", "multiplies"),
    [
        ("cooperlake", True),
        ("sapphirerapids", True),
        ("znver4", True),
        ("x86-64-v4", False),
        ("haswell", False),
    ],
)
def test_some_processors_multiply_bfloat16(processor: str, multiplies: bool) -> None:
    assert multiplies_bfloat16(code_for(processor)) == multiplies


def test_neon_holds_as_much_as_avx2() -> None:
    attributes = '{"kind":"llvm","mcpu":"cortex-a72","mtriple":"aarch64-linux-gnu"}'
    assert vector_registers(Target(name="arm", kind="cpu", tvm_json=attributes, num_threads=1)) == 8


def _attention(query: Any, key: Any, value: Any) -> Any:
    def heads(rows: Any) -> Any:
        return op.permute_dims(op.reshape(rows, (1, 21, 2, 32)), [0, 2, 1, 3])

    scores = op.matmul(heads(query), op.permute_dims(heads(key), [0, 1, 3, 2]))
    mixed = op.matmul(op.nn.softmax(op.multiply(scores, relax.const(0.2, "float32"))), heads(value))
    return op.reshape(op.permute_dims(mixed, [0, 2, 1, 3]), (1, 21, 64))


def _convolutions(x: Any, wide: Any, window: Any, apart: Any, narrow: Any, shifted: Any) -> Any:
    """One of each kernel: pixelwise, by Winograd's method, depthwise, strided."""
    y = op.nn.relu(op.nn.conv2d(op.nn.conv2d(x, wide), window, padding=1))
    y = op.nn.conv2d(op.clip(op.nn.conv2d(y, apart, padding=1, groups=48), 0.0, 6.0), narrow)
    return op.nn.conv2d(y, shifted, strides=2, padding=1)


PROGRAMS: dict[str, tuple[str, Sequence[Sequence[int]], Body]] = {
    "packed product": (
        "packed_matmul",
        [(1, 19, 24), (24, 72), (72,)],
        lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, w), b)),
    ),
    "product": ("tvm", [(39, 64), (80, 64)], lambda x, w: op.matmul(x, op.permute_dims(w))),
    "product of odd extents": ("tvm", [(2, 49, 32), (2, 32, 49)], op.matmul),
    "attention": ("attention", [(1, 21, 64)] * 3, _attention),
    "convolutions": (
        "nhwc",
        [(2, 16, 13, 13), (48, 16, 1, 1), (48, 48, 3, 3), (48, 1, 3, 3), (24, 48, 1, 1), (32, 24, 3, 3)],
        _convolutions,
    ),
}


@pytest.mark.parametrize(
    "options",
    ["-mcpu=x86-64-v2", *(pytest.param(each, marks=pytest.mark.slow) for each in ("", "-mcpu=x86-64-v3"))],
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_kernels_for_fewer_registers_compute_the_same(program: str, options: str) -> None:
    target = resolve_target(f"llvm {options}" if options else "cpu", num_threads=1)
    if measuring_obstacle(target) is not None:
        pytest.skip("this machine's processor has other instructions")
    backend_name, shapes, body = PROGRAMS[program]
    module, backend = partition_module(backend_name, shapes, body), make_backend(backend_name)
    assert backend.refusal(part_of(module), target) is None
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    (found,) = run_module(build_module(lower_module(module, [backend], target), target), inputs, target)
    (expected,) = run_module(build_reference(module, target), inputs, target)
    assert np.abs(found - expected).max() <= 3e-5 * np.abs(expected).max()
