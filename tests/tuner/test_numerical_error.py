"""A comparison says how far tensors are apart, and names what no number can say: NaN is never no error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.numerical_error import (
    NEGLIGIBLE,
    TOLERANCES,
    Deviation,
    compare_gradients,
    compare_outputs,
    compare_tensor,
    tolerance_of,
    worst,
)

NAN, INF = float("nan"), float("inf")


@given(st.floats(1e-3, 1e3), st.floats(-0.5, 0.5))
def test_an_error_is_relative_to_the_largest_value(scale: float, error: float) -> None:
    expected = np.array([scale, 0.0, -scale / 2])
    found = expected + np.array([0.0, error * scale, 0.0])
    assert compare_tensor("x", found, expected).relative_error == pytest.approx(abs(error), abs=1e-9)


@pytest.mark.parametrize(
    ("found", "expected", "fault"),
    [
        ([1.0, NAN], [1.0, 1.0], "is NaN in 1 of 2 values, where the reference is finite"),
        ([INF, INF], [1.0, 1.0], "is infinity in 2 of 2 values, where the reference is finite"),
        ([1.0, 1.0], [1.0, INF], "is finite in 1 of 2 values, where the reference is infinity"),
        ([1.0, 1.0], [1.0, NAN], "is finite in 1 of 2 values, where the reference is NaN"),
        (
            [1.0, NAN],
            [1.0, INF],
            "is NaN in 1 of 2 values, where the reference is another kind",
        ),
        (
            [-INF, 1.0],
            [INF, 1.0],
            "is negative infinity in 1 of 2 values, where the reference is",
        ),
        (
            [1.0, NAN],
            [1.0, NAN],
            "is NaN in 1 of 2 values, in the reference as well: the model",
        ),
        ([1.0, INF], [1.0, INF], "is infinity in 1 of 2 values, in the reference as well"),
        ([1.0], [1.0, 1.0], r"has the shape (1,) in place of (2,)"),
        ([1e308], [-1e308], "differs by more than float64 can hold"),
    ],
)
def test_what_no_number_can_say_is_a_fault_with_a_name(
    found: list[float], expected: list[float], fault: str
) -> None:
    deviation = compare_tensor("x", np.array(found), np.array(expected))
    assert deviation.relative_error is None
    assert deviation.fault.startswith(fault)
    assert not deviation.is_within(INF)
    assert deviation.describe(1e-3) == deviation.fault


def test_equal_infinities_of_outputs_are_equal_and_nan_is_not() -> None:
    mask = np.array([0.0, -INF, 2.0])
    assert compare_outputs({"y": mask}, {"y": mask})[0].relative_error == 0.0
    odd = np.array([0.0, NAN, 2.0])
    assert compare_outputs({"y": odd}, {"y": odd})[0].fault
    assert compare_outputs({"y": odd}, {"y": odd}, nan_agrees=True)[0].relative_error == 0.0
    assert compare_outputs({"y": odd + 1}, {"y": odd}, nan_agrees=True)[0].relative_error == 0.5


def test_nothing_hides_behind_another_tensor() -> None:
    """Python's `max` over errors drops NaN, or all that comes after it."""
    good, bad = np.ones(3, np.float32), np.full(3, NAN, np.float32)
    for names in (("a", "b", "c"), ("c", "b", "a")):
        for broken in names:
            found = {name: bad if name == broken else good for name in names}
            most = worst(compare_gradients(found, dict.fromkeys(names, good)))
            assert most is not None
            assert most.tensor == broken


def test_missing_and_unexpected_gradients_are_faults() -> None:
    one = np.ones(2)
    found = compare_gradients({"a": one, "c": one}, {"a": one, "b": one})
    assert [(each.tensor, each.fault) for each in found if each.fault] == [
        ("b", "is missing"),
        ("c", "was made, but the reference has none"),
    ]


def test_a_gradient_of_rounding_errors_is_compared_with_a_share_of_the_largest() -> None:
    expected = {"large": np.array([1.0]), "cancelled": np.array([0.0])}
    found = {"large": np.array([1.0]), "cancelled": np.array([NEGLIGIBLE / 100])}
    assert [each.relative_error for each in compare_gradients(found, expected)] == [0.0, pytest.approx(0.01)]
    everything_zero = {"a": np.zeros(2)}
    assert compare_gradients(everything_zero, everything_zero)[0].relative_error == 0.0


def test_a_sum_that_cancels_may_be_off_by_the_references_own_rounding_errors() -> None:
    """A bias that softmax cancels has no gradient; two orders of one sum leave different rounding errors."""
    exact = {"large": np.array([1.0]), "cancelled": np.array([0.0])}
    expected = {"large": np.array([1.0], "float32"), "cancelled": np.array([3e-6], "float32")}

    def errors(large: float, cancelled: float) -> list[bool]:
        found = {"large": np.array([large], "float32"), "cancelled": np.array([cancelled], "float32")}
        deviations = compare_gradients(found, expected, exact=exact)
        return [each.is_within(TOLERANCES["float32"]) for each in deviations]

    without = compare_gradients({"large": np.ones(1), "cancelled": np.array([-3e-6])}, expected)
    assert not without[1].is_within(TOLERANCES["float32"])
    assert errors(1.0, -3e-6) == [True, True]
    assert errors(1.0, 1e-4) == [True, False]
    assert errors(1.01, -3e-6) == [False, True]
    # What differs by more than rounding, such as other dropout, is no truth.
    exact["large"] = np.array([0.5])
    assert errors(1.0, -3e-6) == [True, False]


def test_a_gradient_may_be_true_where_the_references_is_rounded_across_a_kink() -> None:
    """An input of a ReLU that a half rounds to the other side of 0: a row of the weight's gradient is off."""
    exact = {"w": np.array([1.0, 0.5])}
    expected = {"w": np.array([0.88, 0.5], "float32")}

    def error(first: float, tolerance: float | None = 3e-2) -> float | None:
        found = {"w": np.array([first, 0.5], "float32")}
        (deviation,) = compare_gradients(found, expected, exact=exact, tolerance=tolerance)
        return deviation.relative_error

    assert error(1.0) == pytest.approx(0.0)
    assert error(0.88) == pytest.approx(0.0)
    assert error(0.94) == pytest.approx(0.06, rel=1e-5)
    assert error(1.0, None) == pytest.approx(0.0)


def test_the_rounding_of_a_half_is_told_by_its_tolerance_where_gradients_are_of_float32() -> None:
    """Under autocast weights and their gradients are of float32, and what is computed is of a half."""
    exact = {"large": np.array([1.0]), "cancelled": np.array([0.0])}
    expected = {"large": np.array([1.0], "float32"), "cancelled": np.array([4e-3], "float32")}
    found = {"large": np.array([1.0], "float32"), "cancelled": np.array([-4e-3], "float32")}
    (_, plain) = compare_gradients(found, expected, exact=exact)
    (_, told) = compare_gradients(found, expected, exact=exact, tolerance=3e-2)
    assert not plain.is_within(3e-2)
    assert told.is_within(3e-2)


def test_tensors_larger_than_a_chunk_and_without_values_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.numerical_error._CHUNK", 4)
    expected = np.arange(1.0, 11.0)
    for place in range(10):
        found = expected.copy()
        found[place] += 1
        assert compare_tensor("x", found, expected).relative_error == pytest.approx(0.1)
    assert compare_tensor("x", np.zeros((0, 3)), np.zeros((0, 3))).relative_error == 0.0


def test_whole_numbers_and_truth_values_are_compared() -> None:
    assert compare_tensor("x", np.array([True]), np.array([False])).relative_error == 1e6
    assert compare_tensor("x", np.array([1, 2]), np.array([1, 4])).relative_error == 0.5


def test_the_coarsest_data_type_sets_the_tolerance() -> None:
    assert tolerance_of(["int64", "float64"]) == TOLERANCES["float64"]
    assert tolerance_of(["float32", "float16"]) == TOLERANCES["float16"]
    assert tolerance_of(["int64"]) == TOLERANCES["float32"]
    deviation = Deviation(tensor="x", relative_error=0.01)
    assert deviation.is_within(tolerance_of(["bfloat16"]))
    assert deviation.describe(tolerance_of(["float32"])) == (
        "is off by 1.0e-02 of its largest value, more than the tolerance 1e-03"
    )
