"""Polynomials agree with NumPy and SciPy over the whole range, and leave other types alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import function_module, kernels_of
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


def relu6(x: Any) -> Any:
    return relax.op.clip(x, 0.0, 6.0)


def softmax(x: Any) -> Any:
    return relax.op.nn.softmax(x)


def exp2(x: Any) -> Any:
    return relax.op.power(relax.const(2, "float32"), x)


def test_exponentials_are_right_to_single_precision() -> None:
    values = np.linspace(-86, 87, 20_001, dtype=np.float32)
    exact = np.exp(values.astype(np.float64))
    assert np.max(np.abs(run_unary(relax.op.exp, values) - exact) / exact) < 3e-7


def test_exponentials_beyond_the_range_are_infinite_or_vanish() -> None:
    far = np.array([-np.inf, -1e30, -200.0, 88.8, 100.0, np.inf, np.nan, 88.7], dtype=np.float32)
    found = run_unary(relax.op.exp, far)
    np.testing.assert_array_equal(found[:6], [0, 0, 0, np.inf, np.inf, np.inf])
    assert np.isnan(found[6])
    np.testing.assert_allclose(found[7], np.exp(np.float64(np.float32(88.7))), rtol=3e-7)


EVERYWHERE = np.concatenate([np.logspace(-44, 38.5, 20_000), [1.0, 0.5, 2.0, 1.0000001, 0.9999999]])
"""From the smallest denormal to the largest number."""


@pytest.mark.parametrize(
    ("operator", "exact", "values"),
    [
        (relax.op.log, np.log, EVERYWHERE),
        (relax.op.log, np.log, np.linspace(0.5, 2, 20_001)),
        (relax.op.sigmoid, scipy.special.expit, np.linspace(-86, 100, 20_001)),
        (relax.op.sigmoid, scipy.special.expit, np.logspace(-44, 38.5, 2_000)),
        (exp2, np.exp2, np.linspace(-125, 127.99, 20_001)),
        (relax.op.rsqrt, lambda x: 1 / np.sqrt(x), np.logspace(-37, 38.5, 20_000)),
    ],
)
def test_logarithms_and_the_like_are_right_to_single_precision(
    operator: Any, exact: Any, values: np.ndarray
) -> None:
    single = values.astype(np.float32)
    with np.errstate(divide="ignore"):
        expected = exact(single.astype(np.float64))
    found = run_unary(operator, single)
    np.testing.assert_allclose(found, expected, rtol=4e-7, atol=1e-44)


def test_logarithms_and_the_like_have_torch_s_ends() -> None:
    far = np.array([0.0, -0.0, -1.0, -np.inf, np.inf, np.nan, -1e-40, -5.0], dtype=np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run_unary(relax.op.log, far), np.log(far))
    ends = np.array([-np.inf, -1e30, -200.0, 128.0, 200.0, np.inf, np.nan, 0.0], dtype=np.float32)
    np.testing.assert_array_equal(run_unary(exp2, ends), [0, 0, 0, np.inf, np.inf, np.inf, np.nan, 1])
    np.testing.assert_array_equal(run_unary(relax.op.sigmoid, ends), [0, 0, 0, 1, 1, 1, np.nan, 0.5])


@pytest.mark.parametrize(
    "operator",
    [
        *(relax.op.exp, relax.op.erf, relax.op.tanh, relax.op.nn.relu, relu6, softmax),
        *(relax.op.sigmoid, relax.op.nn.silu, exp2),
    ],
)
def test_what_is_not_a_number_is_passed_on(operator: Any) -> None:
    values = np.array([1.0, np.nan, -1.0, 2.0, 0.5, 3.0, -2.0, 0.0], dtype=np.float32)
    found = run_unary(operator, values)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values) | (operator is softmax))


def test_a_softmax_of_minus_infinities_is_not_a_number() -> None:
    assert np.isnan(run_unary(softmax, np.full(8, -np.inf, dtype=np.float32))).all()


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
