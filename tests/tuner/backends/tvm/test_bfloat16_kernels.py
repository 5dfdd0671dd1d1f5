"""Fused kernels that read bfloat16, or round to it, compute what torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

pytest.importorskip("torch")

import torch

from tests.harness.run_module import run_module
from tests.samples.partition_samples import partition_module
from tuner.backends.registry import make_backend
from tuner.backends.tvm import vector_math
from tuner.lowering.lower import build_module, lower_module
from tuner.targets.resolution import resolve_target

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

op = relax.op
Body = Callable[..., Any]

CASES: dict[str, tuple[Body, Callable[..., torch.Tensor], int]] = {
    "exp": (op.exp, torch.exp, 1),
    "tanh": (op.tanh, torch.tanh, 1),
    "erf": (op.erf, torch.erf, 1),
    "sigmoid": (op.sigmoid, torch.sigmoid, 1),
    "gelu": (op.nn.gelu, torch.nn.functional.gelu, 1),
    "gelu_tanh": (op.nn.gelu_tanh, lambda x: torch.nn.functional.gelu(x, approximate="tanh"), 1),
    "silu": (op.nn.silu, torch.nn.functional.silu, 1),
    "softmax": (op.nn.softmax, lambda x: torch.softmax(x, -1), 1),
    "log_softmax": (op.nn.log_softmax, lambda x: torch.log_softmax(x, -1), 1),
    "largest": (lambda x: op.max(x, axis=-1), lambda x: x.amax(-1), 1),
    "smallest": (lambda x: op.min(x, axis=-1), lambda x: x.amin(-1), 1),
    "maximum": (op.maximum, torch.maximum, 2),
    "minimum": (op.minimum, torch.minimum, 2),
    "relu": (op.nn.relu, torch.relu, 1),
    "gated": (lambda x, y: op.multiply(op.nn.silu(x), y), lambda x, y: torch.nn.functional.silu(x) * y, 2),
}


def results(body: Body, count: int, rows: int, columns: int, *, rounds: bool) -> tuple[np.ndarray, Any]:
    """Return a kernel's results, and its inputs widened."""

    def whole(*operands: Any) -> Any:
        found = body(*(op.astype(operand, "float32") for operand in operands))
        return op.astype(found, "bfloat16") if rounds else found

    target = resolve_target("cpu", num_threads=1)
    module = partition_module("tvm", [(rows, columns)] * count, whole, ["bfloat16"] * count)
    rng = np.random.default_rng(0)
    arrays = [4 * rng.standard_normal((rows, columns)).astype(ml_dtypes.bfloat16) for _ in range(count)]
    lowered = lower_module(module, [make_backend("tvm")], target)
    (found,) = run_module(build_module(lowered, target), arrays, target)
    return found, [torch.from_numpy(array.astype(np.float32)) for array in arrays]


@pytest.mark.parametrize(
    ("rounds", "columns"),
    [
        pytest.param(False, 64, id="widened"),
        pytest.param(True, 17, id="rounded, rest"),
        pytest.param(True, 64, id="rounded", marks=pytest.mark.slow),
        pytest.param(False, 17, id="widened, rest", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_a_kernel_of_bfloat16_computes_what_torch_does(case: str, columns: int, rounds: bool) -> None:
    body, reference, count = CASES[case]
    found, given = results(body, count, 6, columns, rounds=rounds)
    expected = reference(*given).numpy()
    error = np.abs(found.astype(np.float32) - expected).max() / np.abs(expected).max()
    assert error < (4e-3 if rounds else 1e-6)


def test_variables_that_stand_for_a_conversion_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the rewriting that is tested here would be needed no longer."""
    monkeypatch.setattr(vector_math, "without_variables", lambda kernel: kernel)
    found, (given,) = results(op.tanh, 1, 6, 64, rounds=False)
    assert np.abs(found - torch.tanh(given).numpy()).max() > 0.1
