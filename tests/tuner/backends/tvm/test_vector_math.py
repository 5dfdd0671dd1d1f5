"""Polynomials agree with NumPy and SciPy over the whole range, and leave other types alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
from tvm import relax

from tests.partition_samples import function_module, kernels_of
from tests.run_module import run_module
from tuner.backends.tvm.native import fuse_function
from tuner.backends.tvm.vector_math import vectorise_math
from tuner.lowering.lower import build_module
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm


def run_unary(operator: object, values: np.ndarray) -> np.ndarray:
    target = resolve_target("cpu", num_threads=1)
    fused = fuse_function(function_module([values.shape], operator)["main"])  # type: ignore[arg-type] # an operator
    for variable, kernel in fused.functions_items():
        if variable.name_hint != "main":
            fused.update_func(variable, vectorise_math(kernel))
    return run_module(build_module(fused, target), [values], target)[0]


def test_exponentials_are_right_to_single_precision() -> None:
    values = np.linspace(-86, 87, 20_001, dtype=np.float32)
    exact = np.exp(values.astype(np.float64))
    assert np.max(np.abs(run_unary(relax.op.exp, values) - exact) / exact) < 3e-7


def test_exponentials_beyond_the_range_stay_finite_and_vanish() -> None:
    far = run_unary(relax.op.exp, np.array([-1e30, -200.0, 200.0, 1e30], dtype=np.float32))
    assert np.isfinite(far).all()
    assert (far[:2] < 1e-37).all()
    assert (far[2:] > 1e38).all()


@pytest.mark.parametrize(
    ("operator", "exact"), [(relax.op.erf, scipy.special.erf), (relax.op.tanh, np.tanh)], ids=["erf", "tanh"]
)
def test_error_functions_and_tangents_are_right_to_five_in_ten_million(operator: object, exact: Any) -> None:
    near = np.logspace(-30, 1.5, 10_000, dtype=np.float32)
    values = np.concatenate([-near, near, np.linspace(-10, 10, 20_001, dtype=np.float32) + np.float32(1e-5)])
    expected = exact(values.astype(np.float64))
    assert np.max(np.abs(run_unary(operator, values) - expected) / np.abs(expected)) < 5e-7


@pytest.mark.parametrize("operator", [relax.op.erf, relax.op.tanh], ids=["erf", "tanh"])
def test_error_functions_and_tangents_end_at_one(operator: object) -> None:
    far = run_unary(operator, np.array([-np.inf, -1e30, 0.0, 1e30, np.inf, 0, 0, 0], dtype=np.float32))
    np.testing.assert_allclose(far, [-1, -1, 0, 1, 1, 0, 0, 0], atol=5e-7)


def test_double_precision_is_left_alone() -> None:
    module = function_module([(8,)], relax.op.exp, ["float64"])
    (kernel,) = kernels_of(fuse_function(module["main"]))
    assert "T.exp" in vectorise_math(kernel).script()
