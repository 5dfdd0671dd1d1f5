"""Deviation of tensors from a reference: a relative error, or a fault that no number expresses.

Every numerical check goes through here: of a backend's kernel, of a partitioned model, of stages, of a run on
real ranks. NaN compares as neither larger nor smaller than anything, so Python's `max` and a bare `>` let it
pass; here it is a fault with a name, and an error that is a number is always finite. NumPy alone is needed.
Checked in tests/tuner/test_numerical_error.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

TOLERANCES: Mapping[str, float] = {
    "float64": 1e-6,  # TVM's and the libraries' exponentials stop short of double precision
    "float32": 1e-3,  # libraries sum in another order, and Winograd's transforms lose two of seven digits
    "float16": 3e-2,  # eleven bits lose a digit in a sum of a thousand products
    "bfloat16": 3e-2,  # eight bits, summed in float32 by all that compute with them
}
"""Largest relative error that another order of the same sums explains, by data type."""

LOSS_SHARE = 0.1
"""Share of the tolerance that a loss may use: it is a mean over rows, whose rounding errors cancel."""

LOSS_TOLERANCES: Mapping[str, float] = {"bfloat16": 8e-3}
"""Tolerance of a loss by data type where the share is less than the type can tell: a loss that is stored in
bfloat16 has eight bits, and two that round apart differ by 2⁻⁷."""

NEGLIGIBLE = 1e-3
"""A gradient this much smaller than the largest one is compared with that share of it: what should be zero,
such as the gradient of a bias that softmax cancels, is nothing but rounding errors of large terms. With
float32's tolerance that is a millionth of the largest gradient, eight units in its last place."""

ROUNDING_MULTIPLE = 10
"""How many times the reference's own rounding error, found in double precision, another order of the same
sums may be off: both are draws of one size, of which a tensor of few values shows few."""

COMPARISON = ("comparison", "2")
"""Carried by records of checks. The number rises when a comparison finds what the one before let pass, so
that what only that one passed is checked again. 2: NaN and infinity are faults."""

_LEAST_MAGNITUDE = 1e-6
"""What results smaller than this are compared with; of inputs of magnitude one they are rounding errors."""

_CHUNK = 1 << 16
"""Values converted to float64 at a time: few enough for the cache, where whole tensors would need three times
their memory."""

_KINDS = ("finite", "NaN", "infinity", "negative infinity")


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """How far one tensor is from its reference.

    Attributes:
        relative_error: largest absolute difference, over the largest magnitude in the reference or what else
            it is compared with; finite. None where there is a fault.
        fault: what is wrong if no number can say it, as the end of a sentence that begins with the tensor;
            empty if nothing is.
    """

    tensor: str
    relative_error: float | None = None
    fault: str = ""

    def is_within(self, tolerance: float) -> bool:
        """Say whether there is no fault and the error is at most so much."""
        return self.relative_error is not None and self.relative_error <= tolerance

    def describe(self, tolerance: float) -> str:
        """Return what is wrong, as the end of a sentence that begins with the tensor."""
        if self.relative_error is None:
            return self.fault
        error = f"{self.relative_error:.1e} of its largest value"
        return f"is off by {error}, more than the tolerance {tolerance:.0e}"


def tolerance_of(dtypes: Iterable[str]) -> float:
    """Return the largest relative error that results computed in these data types may have: the coarsest's.

    Data types without a tolerance (integers, truth values) have none to add; float32's is the default.
    """
    return max((TOLERANCES[dtype] for dtype in dtypes if dtype in TOLERANCES), default=TOLERANCES["float32"])


def loss_tolerance_of(dtypes: Iterable[str]) -> float:
    """Return the largest relative error that a loss computed in these data types may have."""
    given = tuple(dtypes)
    coarse = max((LOSS_TOLERANCES[dtype] for dtype in given if dtype in LOSS_TOLERANCES), default=0.0)
    return max(LOSS_SHARE * tolerance_of(given), coarse)


def compare_tensor(
    tensor: str,
    found: np.ndarray,
    expected: np.ndarray,
    *,
    least: float = _LEAST_MAGNITUDE,
    infinity_agrees: bool = False,
    nan_agrees: bool = False,
    same_types: bool = False,
) -> Deviation:
    """Compare an array with the one that it should equal.

    What is not finite in one of them alone, or is another kind of not finite, is a fault. So is what neither
    has a number for, unless it may agree: the model itself then gives no result to compare.

    Args:
        tensor: its name, for the result.
        found: any shape and data type.
        expected: the reference.
        least: least magnitude that differences are compared with, where the reference has no larger one.
        infinity_agrees: whether equal infinities in equal places are equal, as in a mask of attention.
        nan_agrees: whether NaN in equal places is, where only the places with numbers are to be compared.
        same_types: whether another data type is a fault.
    """
    if found.shape != expected.shape:
        return Deviation(tensor=tensor, fault=f"has the shape {found.shape} in place of {expected.shape}")
    if same_types and found.dtype != expected.dtype:
        return Deviation(tensor=tensor, fault=f"is of type {found.dtype} in place of {expected.dtype}")
    if not (_is_finite(found) and _is_finite(expected)):
        fault = _non_finite(found, expected, infinity_agrees=infinity_agrees, nan_agrees=nan_agrees)
        if fault:
            return Deviation(tensor=tensor, fault=fault)
    difference, largest = 0.0, 0.0
    for first, second in zip(_chunks(found), _chunks(expected), strict=True):
        finite = np.isfinite(second)
        if not finite.all():
            first, second = first[finite], second[finite]
        with np.errstate(over="ignore"):
            difference = max(difference, float(np.abs(first - second).max(initial=0.0)))
        largest = max(largest, float(np.abs(second).max(initial=0.0)))
    scale = max(largest, least) or 1.0
    if not np.isfinite(difference / scale):  # Both are finite, so this is not NaN.
        return Deviation(tensor=tensor, fault="differs by more than float64 can hold")
    return Deviation(tensor=tensor, relative_error=difference / scale)


def compare_outputs(
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    *,
    nan_agrees: bool = False,
    same_types: bool = False,
) -> tuple[Deviation, ...]:
    """Compare each output with the reference's; equal infinities are equal, a missing output is a fault."""
    return tuple(
        _absent(name, found)
        or compare_tensor(
            name,
            found[name],
            expected[name],
            infinity_agrees=True,
            nan_agrees=nan_agrees,
            same_types=same_types,
        )
        for name in expected
    ) + _unexpected(found, expected)


def compare_gradients(
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    *,
    exact: Mapping[str, np.ndarray] | None = None,
    tolerance: float | None = None,
) -> tuple[Deviation, ...]:
    """Compare each gradient with the reference's; a missing one, or one the reference lacks, is a fault.

    Differences are relative to the largest value in the gradient, or to `NEGLIGIBLE` of the largest value in
    any where that is more.

    Args:
        found: by name.
        exact: the reference's in double precision, where it was asked. A gradient is then compared with both,
            and counts by the nearer: a value that the reference rounds to the other side of a ReLU's 0 puts
            its own gradient far from the truth. Where the reference's rounding error is large beside the true
            gradient, a sum that cancels, that may be missed by `ROUNDING_MULTIPLE` of the error, unless the
            two differ by more than rounding explains.
        tolerance: largest error that rounding explains; by default that of the reference's data types. Where
            weights of float32 are multiplied in a half, it is that of the half.
    """
    largest = max(map(_largest, expected.values()), default=0.0)
    if tolerance is None:
        tolerance = tolerance_of(str(each.dtype) for each in expected.values())
    least = NEGLIGIBLE * largest
    truth = exact or {}
    roundings = _roundings(expected, truth)
    is_rounded = all(each <= tolerance * largest for each in roundings.values())

    def compare(name: str) -> Deviation:
        beside = compare_tensor(name, found[name], expected[name], least=least)
        if name not in roundings:
            return beside
        missed = min(ROUNDING_MULTIPLE * roundings[name] / tolerance, largest) if is_rounded else 0.0
        true = compare_tensor(name, found[name], truth[name], least=max(least, missed))
        return min(beside, true, key=_severity)

    return tuple(_absent(name, found) or compare(name) for name in expected) + _unexpected(found, expected)


def find_non_finite(tensor: str, found: np.ndarray) -> Deviation | None:
    """Return what is NaN or infinite in an array, which needs no reference; None where all is finite."""
    if _is_finite(found):
        return None
    kinds = zip(_KINDS[1:], _masks(found), strict=True)
    kind, mask = next((kind, mask) for kind, mask in kinds if mask.any())
    return Deviation(tensor=tensor, fault=f"is {kind} in {_count(mask)}")


def worst(deviations: Iterable[Deviation]) -> Deviation | None:
    """Return the first with a fault, else the one with the largest error; None of none."""
    return max(deviations, key=_severity, default=None)


def _severity(deviation: Deviation) -> float:
    return float("inf") if deviation.relative_error is None else deviation.relative_error


def _absent(name: str, found: Mapping[str, np.ndarray]) -> Deviation | None:
    return None if name in found else Deviation(tensor=name, fault="is missing")


def _unexpected(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> tuple[Deviation, ...]:
    return tuple(
        Deviation(tensor=name, fault="was made, but the reference has none")
        for name in found
        if name not in expected
    )


def _roundings(expected: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return how far each tensor is from its exact one, of those that have a finite one of their shape."""
    return {
        name: float(np.abs(tensor.astype(np.float64) - exact[name].astype(np.float64)).max(initial=0.0))
        for name, tensor in expected.items()
        if name in exact
        and exact[name].shape == tensor.shape
        and _is_finite(tensor)
        and _is_finite(exact[name])
    }


def _non_finite(found: np.ndarray, expected: np.ndarray, *, infinity_agrees: bool, nan_agrees: bool) -> str:
    """Return what is wrong with values that are not finite; empty if nothing is."""
    for kind, (mine, true) in enumerate(zip(_masks(found), _masks(expected), strict=True), start=1):
        odd = mine & ~true
        if odd.any():
            count = _count(odd)
            if np.isfinite(expected[odd]).any():
                return f"is {_KINDS[kind]} in {count}, where the reference is finite"
            return f"is {_KINDS[kind]} in {count}, where the reference is another kind of not finite"
    for kind, (mine, true) in enumerate(zip(_masks(found), _masks(expected), strict=True), start=1):
        if (true & ~mine).any():
            return f"is finite in {_count(true & ~mine)}, where the reference is {_KINDS[kind]}"
        agrees = nan_agrees if kind == 1 else infinity_agrees
        if true.any() and not agrees:
            return f"is {_KINDS[kind]} in {_count(true)}, in the reference as well: the model itself makes it"
    return ""


def _masks(array: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where an array is NaN, infinite and negatively infinite."""
    if array.dtype.kind in "iub":
        nowhere = np.zeros(array.shape, bool)
        return nowhere, nowhere, nowhere
    return np.isnan(array), np.isposinf(array), np.isneginf(array)


def _count(mask: np.ndarray) -> str:
    return f"{int(mask.sum())} of {mask.size} values"


def _largest(array: np.ndarray) -> float:
    """Return the largest magnitude of what is finite; 0 of nothing."""
    finite = (chunk if np.isfinite(chunk).all() else chunk[np.isfinite(chunk)] for chunk in _chunks(array))
    return max((float(np.abs(chunk).max(initial=0.0)) for chunk in finite), default=0.0)


def _is_finite(array: np.ndarray) -> bool:
    """Say whether every value is finite, as in nearly all tensors that are compared."""
    return array.dtype.kind in "iub" or all(bool(np.isfinite(chunk).all()) for chunk in _chunks(array))


def _chunks(array: np.ndarray) -> Iterable[np.ndarray]:
    """Yield an array's values as float64, flattened, so many at a time."""
    flat = array.reshape(-1)
    return (flat[start : start + _CHUNK].astype(np.float64) for start in range(0, flat.size, _CHUNK))
