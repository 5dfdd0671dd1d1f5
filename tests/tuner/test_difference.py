"""The comparison of tensors: whatever is wrong is found, and named."""

import math

import numpy as np
import pytest

from tuner.difference import NONE, Difference, largest_difference, worst

GOOD = {"a": np.array([1.0, -2.0], "float32"), "b": np.array([[3.0]], "float32")}


def _with(**changed):
    return {**GOOD, **changed}


@pytest.mark.parametrize(
    ("found", "tensor", "reason"),
    [
        ({"a": GOOD["a"]}, "b", "is missing"),
        (_with(c=GOOD["b"]), "c", "is not expected"),
        (_with(b=np.array([[np.nan]])), "b", "holds NaN at 1 of 1"),
        (_with(a=np.array([np.nan, np.nan])), "a", "holds NaN at 2 of 2"),
        (_with(a=np.array([np.inf, -2.0], "float32")), "a", "infinite"),
        (_with(a=GOOD["a"][None]), "a", r"shape \(1, 2\) instead of \(2,\)"),
        (_with(a=GOOD["a"].astype("float64")), "a", "type float64 instead of float32"),
    ],
)
def test_what_cannot_be_compared_is_infinitely_far_off(found, tensor: str, reason: str) -> None:
    difference = largest_difference(GOOD, found, checks_types=True)
    assert difference.error == math.inf
    assert difference.tensor == tensor
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(str(difference))


def test_nan_that_is_expected_is_an_error_too() -> None:
    nan = {"a": np.array([np.nan])}
    assert largest_difference(nan, nan).error == math.inf
    assert "should hold NaN" in str(largest_difference(nan, {"a": np.array([1.0])}))


def test_the_largest_difference_is_relative_and_named() -> None:
    difference = largest_difference(GOOD, _with(a=np.array([1.0, -2.5], "float32")))
    assert difference == Difference(0.25, "a")
    assert str(difference) == "a differs by 2.5e-01 of the largest value"
    assert largest_difference(GOOD, GOOD) == NONE


def test_infinities_must_be_the_same() -> None:
    masked = {"a": np.array([-np.inf, 1.0])}
    assert largest_difference(masked, masked) == NONE
    assert largest_difference(masked, {"a": np.array([np.inf, 1.0])}).error == math.inf
    assert largest_difference(masked, {"a": np.array([-1e9, 1.0])}).error == math.inf


def test_rounding_errors_of_what_should_be_zero_do_not_count() -> None:
    expected = {"large": np.array([1000.0]), "zero": np.array([1e-9])}
    found = {"large": np.array([1000.0]), "zero": np.array([-1e-9])}
    assert largest_difference(expected, found).error < 1e-8
    assert largest_difference(expected, found, negligible=0.0).error == 2.0


def test_worst_keeps_the_first_of_equals_and_drops_nothing() -> None:
    assert worst([]) == NONE
    first, second = Difference(math.inf, "x", "why"), Difference(math.inf, "y", "why")
    assert worst([Difference(0.5, "z"), first, second]) is first


def test_truth_values_and_empty_tensors_are_compared() -> None:
    assert largest_difference({"m": np.array([True])}, {"m": np.array([False])}).error == 1.0
    assert largest_difference({"m": np.zeros((0, 3))}, {"m": np.zeros((0, 3))}) == NONE
