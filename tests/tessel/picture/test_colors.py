"""Colours: kinds stay apart in greyscale and for colour-blind readers, and numbers have contrast.

The simulations are those of Machado et al. (2009) at full severity, on linear RGB; lightness and differences
are CIE L*a*b*'s. The formulas here share no code with the product.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from tessel.picture.colors import COLOR_BY_KIND, block_styles, ink_on, luminance
from tessel.placement import BlockKind
from tessel.shapes import make_shape

SIMULATIONS = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}
KINDS_OF_ONE_SCHEDULE = (
    (BlockKind.FORWARD, BlockKind.BACKWARD),
    (BlockKind.FORWARD, BlockKind.BACKWARD_INPUT, BlockKind.BACKWARD_WEIGHT),
)


def linear(color: str) -> np.ndarray:
    parts = np.array(to_rgb(color))
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("simulation", SIMULATIONS)
@pytest.mark.parametrize("kinds", KINDS_OF_ONE_SCHEDULE, ids=len)
def test_kinds_of_a_schedule_are_told_apart(kinds: tuple[BlockKind, ...], simulation: str) -> None:
    seen = {kind: lab(SIMULATIONS[simulation] @ linear(COLOR_BY_KIND[kind])) for kind in kinds}
    for first, second in itertools.combinations(kinds, 2):
        assert np.linalg.norm(seen[first] - seen[second]) > 15, (first, second)


@pytest.mark.parametrize("kinds", KINDS_OF_ONE_SCHEDULE, ids=len)
def test_kinds_of_a_schedule_differ_in_lightness(kinds: tuple[BlockKind, ...]) -> None:
    lightness = [lab(linear(COLOR_BY_KIND[kind]))[0] for kind in kinds]
    assert min(abs(first - second) for first, second in itertools.combinations(lightness, 2)) >= 12


@pytest.mark.parametrize("shape", ["vshape", "zbv", "nnshape"])
def test_numbers_on_bars_have_contrast(shape: str) -> None:
    for style in block_styles(make_shape(shape, 4, split_backward=True)).values():
        for white in style.white:
            shade = [part + (1 - part) * white for part in to_rgb(style.color)]
            ink, ground = luminance(to_rgb(ink_on(shade))), luminance(shade)
            assert (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05) >= 4.5, style


def test_dark_bars_have_white_numbers() -> None:
    assert [ink_on(to_rgb(color)) for color in ("black", "#0B3D60", "#F0E442", "white")] == [
        "white",
        "white",
        "black",
        "black",
    ]
    assert luminance((1, 1, 1)) == pytest.approx(1)
    assert luminance(to_rgb("#777777")) == pytest.approx(
        0.1845, abs=1e-3
    )  # worked by hand from WCAG's formula
