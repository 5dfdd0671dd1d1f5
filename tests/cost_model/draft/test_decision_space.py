"""Tables hold every legal tile once, and rows and decisions are two ways to write one candidate."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from draft_samples import dense_space, product_kernel
from hypothesis import given
from hypothesis import strategies as st

from cost_model.draft.decision_space import (
    DecisionSpace,
    Loop,
    TileDecision,
    TiledKernel,
    tiles_of,
)


@given(extent=st.integers(1, 96), parts=st.sampled_from([2, 4]), max_innermost=st.sampled_from([4, 16, 64]))
def test_the_tiles_of_a_loop_are_all_factorisations(extent: int, parts: int, max_innermost: int) -> None:
    divisors = [each for each in range(1, extent + 1) if extent % each == 0]
    expected = {
        tile
        for tile in itertools.product(divisors, repeat=parts)
        if math.prod(tile) == extent and tile[-1] <= max_innermost
    }
    found = [tuple(map(int, row)) for row in tiles_of(extent, parts, max_innermost)]
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_a_loop_with_too_many_tiles_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 200000 are tabulated"):
        tiles_of(2**5 * 3**4 * 5**3 * 7**2 * 11 * 13 * 17, 4, 64)


@given(st.integers(0, 2**32 - 1))
def test_rows_and_decisions_say_the_same(seed: int) -> None:
    space = dense_space(12, 40, 18)
    for row in space.sample(5, np.random.default_rng(seed)):
        sketch, decisions = space.decisions_of(row)
        again = space.row_of(sketch, decisions)
        assert again is not None
        assert (again == row).all()


def test_decisions_that_are_not_in_the_space_have_no_row() -> None:
    space = dense_space(12, 40, 18)
    sketch, decisions = space.decisions_of(space.sample(1, np.random.default_rng(0))[0])
    assert space.row_of(sketch, ((5, 1, 1, 1), *decisions[1:])) is None
    assert space.row_of(3, decisions) is None
    assert space.row_of(sketch, decisions[1:]) is None


def test_candidates_are_counted() -> None:
    space = dense_space(4, 6, 2)
    # 10 tiles of 4 and 16 of 6 in four parts, 2 of 2 in two, 4 options, 3 sketches.
    assert space.num_candidates == 3 * 10 * 16 * 2 * 4


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ((TileDecision(0, 4, 64), TileDecision(1, 4, 64)), r"loops \[0, 1\] are tiled"),
        ((TileDecision(0, 4, 64), TileDecision(1, 2, 64), TileDecision(2, 2, 64)), "SSRSRS splits it in 4"),
    ],
)
def test_a_space_that_is_not_tiled_in_levels_is_refused(kinds: tuple[TileDecision, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DecisionSpace(product_kernel(4, 4, 4), kinds, (0,))


def test_a_kernel_is_refused_without_spatial_loops_or_with_other_steps() -> None:
    accesses = product_kernel(4, 4, 4).accesses
    with pytest.raises(ValueError, match="at least one spatial loop"):
        TiledKernel((Loop(4, is_reduction=True),), accesses, 1)
    with pytest.raises(ValueError, match="one step for each of 1 loops"):
        TiledKernel((Loop(4, is_reduction=False),), accesses, 1)
    with pytest.raises(ValueError, match="has extent 0"):
        Loop(0, is_reduction=False)
