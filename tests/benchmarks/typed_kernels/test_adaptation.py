"""A short sweep makes a new device known, and the kernels chosen for it leave the least unknown."""

import numpy as np
import pytest

from benchmarks.typed_kernels.adaptation import (
    _NOISE,
    _coordinates,
    _covariance,
    _scale,
    adapt,
    choose_kernels,
)
from cost_model.gpu.typed.analytic import analytic_us, start_of
from cost_model.gpu.typed.kernels import Kernels, Product
from cost_model.gpu.typed.model import shipped_model
from cost_model.gpu.typed.sheets import find_sheet


def candidates(count: int, seed: int = 0) -> Kernels:
    rng = np.random.default_rng(seed)
    extents = np.exp2(rng.integers(10, 27, (count, 3)) / 2).astype(int)
    return Kernels.of_one_kind([Product(*map(int, each)) for each in extents])


def left_unknown(kernels: Kernels, chosen: np.ndarray) -> float:
    """Return the mean variance of all kernels given some, by the textbook's formula."""
    coordinates = _coordinates(kernels)
    mean, deviation = _scale(coordinates)
    points = (coordinates - mean) / deviation
    known = _covariance(points[chosen], points[chosen]) + _NOISE**2 * np.eye(len(chosen))
    cross = _covariance(points, points[chosen])
    return float(
        np.mean(_covariance(points, points).diagonal() - np.sum(cross @ np.linalg.inv(known) * cross, 1))
    )


def test_chosen_kernels_leave_less_unknown_than_drawn_ones() -> None:
    kernels = candidates(300)
    chosen = choose_kernels(kernels, 40)
    assert len(set(chosen.tolist())) == 40
    drawn = [np.random.default_rng(seed).permutation(300)[:40] for seed in range(5)]
    assert left_unknown(kernels, chosen) < 0.93 * min(left_unknown(kernels, each) for each in drawn)
    assert choose_kernels(kernels, 40).tolist() == chosen.tolist()


def test_a_sweep_finds_a_device_that_is_unlike_all_others() -> None:
    """Twice as slow a memory, and a bend that no parameter has: 100 kernels halve what is off, and more."""
    kernels, sheet, model = candidates(400), find_sheet("b200"), shipped_model()
    odd = start_of("product") + np.log([3.0, 1.5, 1.0, 0.6, 0.5, 1.0])
    bend = 1 + 0.2 * np.sin(np.log2(kernels.numbers["inner"].astype(float)))
    measured = analytic_us(kernels, sheet, odd) * bend
    before = np.abs(np.log(model.predict(kernels, sheet).latency_us / measured)).mean()
    chosen = choose_kernels(kernels, 100)
    rest = np.setdiff1d(np.arange(400), chosen)
    adapted = adapt(model, kernels.some(chosen), sheet, measured[chosen])
    after = np.abs(np.log(adapted.predict_us(kernels.some(rest)) / measured[rest])).mean()
    assert after < min(0.12, before / 2)


def test_one_kernel_is_enough_to_be_asked() -> None:
    kernels, sheet = candidates(3), find_sheet("h100")
    found = adapt(shipped_model(), kernels.some(np.array([0])), sheet, np.array([100.0]))
    assert found.predict_us(kernels)[0] == pytest.approx(100, rel=0.3)
