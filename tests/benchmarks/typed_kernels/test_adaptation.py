"""A short sweep makes a new device known, and the kernels chosen for it are near to all others."""

import numpy as np
import pytest

from benchmarks.typed_kernels.adaptation import adapt, choose_kernels
from cost_model.gpu.typed.analytic import analytic_us, start_of
from cost_model.gpu.typed.kernels import Kernels, Product
from cost_model.gpu.typed.model import shipped_model
from cost_model.gpu.typed.sheets import find_sheet


def candidates(count: int, seed: int = 0) -> Kernels:
    rng = np.random.default_rng(seed)
    extents = np.exp2(rng.integers(10, 27, (count, 3)) / 2).astype(int)
    return Kernels.of_one_kind([Product(*map(int, each)) for each in extents])


def farthest(kernels: Kernels, chosen: np.ndarray) -> float:
    """Return the mean distance of all kernels to the nearest one chosen, in doublings of extents."""
    points = np.stack([np.log2(kernels.numbers[name].astype(float)) for name in kernels.numbers], axis=1)
    return float(np.linalg.norm(points[:, None] - points[chosen], axis=2).min(axis=1).mean())


def test_chosen_kernels_are_nearer_to_all_others_than_drawn_ones() -> None:
    kernels, sheet = candidates(300), find_sheet("b200")
    chosen = choose_kernels(kernels, 40, sheet, np.random.default_rng(0))
    assert len(set(chosen.tolist())) == 40
    drawn = [np.random.default_rng(seed).permutation(300)[:40] for seed in range(5)]
    assert farthest(kernels, chosen) < 0.95 * min(farthest(kernels, each) for each in drawn)
    assert choose_kernels(kernels, 40, sheet, np.random.default_rng(0)).tolist() == chosen.tolist()


def test_a_sweep_finds_a_device_that_is_unlike_all_others() -> None:
    """Twice as slow a memory, and a bend that no parameter has: 100 kernels halve what is off, and more."""
    kernels, sheet, model = candidates(400), find_sheet("b200"), shipped_model()
    odd = start_of("product") + np.log([3.0, 1.5, 1.0, 0.6, 0.5, 1.0])
    bend = 1 + 0.2 * np.sin(np.log2(kernels.numbers["inner"].astype(float)))
    measured = analytic_us(kernels, sheet, odd) * bend
    before = np.abs(np.log(model.predict(kernels, sheet).latency_us / measured)).mean()
    chosen = choose_kernels(kernels, 100, sheet, np.random.default_rng(0))
    rest = np.setdiff1d(np.arange(400), chosen)
    adapted = adapt(model, kernels.some(chosen), sheet, measured[chosen])
    after = np.abs(np.log(adapted.predict_us(kernels.some(rest)) / measured[rest])).mean()
    assert after < min(0.12, before / 2)


def test_one_kernel_is_enough_to_be_asked() -> None:
    kernels, sheet = candidates(3), find_sheet("h100")
    found = adapt(shipped_model(), kernels.some(np.array([0])), sheet, np.array([100.0]))
    assert found.predict_us(kernels)[0] == pytest.approx(100, rel=0.3)
