"""Footprints and trips equal what counting the elements that a nest touches finds; all figures are finite."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from draft_samples import CACHES, convolution_space, dense_space
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_model.draft.decision_features import FEATURE_NAMES, Caches, decision_features
from cost_model.draft.decision_space import DecisionSpace, TileDecision

COLUMN = {name: index for index, name in enumerate(FEATURE_NAMES)}


def touched_bytes(space: DecisionSpace, row: np.ndarray, depth: int, access_index: int) -> int:
    """Count the elements of a tensor that the innermost loops touch, by running them."""
    _, decisions = space.decisions_of(row)
    first_spatial, first_reduction = {1: (1, 0), 2: (2, 0), 3: (2, 1), 4: (3, 1), 5: (3, 2)}[depth]
    extents = [1] * len(space.kernel.loops)
    for kind, decision in zip(space.kinds, decisions, strict=True):
        if isinstance(kind, TileDecision) and isinstance(decision, tuple):
            first = first_reduction if space.kernel.loops[kind.loop].is_reduction else first_spatial
            extents[kind.loop] = int(np.prod(decision[first:]))
    access = space.kernel.accesses[access_index]
    elements = {
        tuple(sum(step * place for step, place in zip(steps, places, strict=True)) for steps in access.steps)
        for places in itertools.product(*map(range, extents))
    }
    return len(elements) * access.element_bytes


@pytest.mark.parametrize("space", [dense_space(6, 8, 4), convolution_space(4, 6, 2, 3, 1)])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_footprints_are_those_that_counting_finds(space: DecisionSpace, seed: int) -> None:
    rows = space.sample(1, np.random.default_rng(seed))
    features = decision_features(space, rows, CACHES)[0]
    for depth in range(1, 6):
        total = 0
        for index in range(3):
            expected = touched_bytes(space, rows[0], depth, index)
            assert 2 ** features[COLUMN[f"depth{depth}_access{index}_bytes"]] == pytest.approx(
                expected, rel=1e-4
            )
            total += expected
        assert 2 ** features[COLUMN[f"depth{depth}_bytes"]] == pytest.approx(total, rel=1e-4)


def test_a_tile_by_hand() -> None:
    space = dense_space(12, 128, 64)
    row = space.row_of(1, ((1, 2, 1, 6), (4, 1, 1, 32), (16, 4), 2))
    assert row is not None
    found = dict(zip(FEATURE_NAMES, decision_features(space, row[None, :], CACHES)[0], strict=True))
    assert found["vector_fill"] == 1
    assert 2 ** found["accumulators"] == pytest.approx(6 * 2)  # six rows of two vectors
    assert [found[f"access{index}_vector_step"] for index in range(3)] == [0, 1, 1]  # broadcast, contiguous
    assert 2 ** found["body_with_inner_reduction"] == pytest.approx(6 * 2 * 4)
    assert 2 ** found["parallel_extent"] == pytest.approx(4)
    assert found["parallel_balance"] == 1
    assert (found["epilogue_level"], 2 ** found["epilogue_bytes"]) == (1, pytest.approx(12 * 32 * 4))
    # All three tensors are 41 KiB, more than the first cache; inside the first spatial level, 13 KiB fit.
    assert found["l1_fitting_depth"] == 1
    moved = 4 * (12 * 64 + 64 * 32 + 12 * 32) * 4
    assert 2 ** found["l1_traffic"] == pytest.approx(moved / (2 * 12 * 128 * 64), rel=1e-5)
    assert found["l2_fitting_depth"] == 0


def test_a_vector_that_is_not_full_leaves_a_remainder() -> None:
    space = dense_space(4, 98, 8)
    row = space.row_of(0, ((4, 1, 1, 1), (2, 1, 1, 49), (8, 1), 0))
    assert row is not None
    found = dict(zip(FEATURE_NAMES, decision_features(space, row[None, :], CACHES)[0], strict=True))
    assert (found["vector_fill"], found["vector_remainder"]) == (pytest.approx(49 / 64), 1)


def test_where_a_block_is_computed_says_what_is_computed_again() -> None:
    space = convolution_space(4, 6, 2, 3, 1)
    tiles = ((4, 1, 1, 1), (6, 1, 1, 1), (6, 1, 1, 1), (2, 1), (3, 1), (3, 1))
    rows = [space.row_of(0, (*tiles, 0, location)) for location in (-2, -1, 0, 3)]
    found = decision_features(space, np.stack([row for row in rows if row is not None]), CACHES)
    levels = found[:, COLUMN["location_level"]]
    assert list(levels) == [-2, -1, 1, 2]
    again = 2 ** found[:, COLUMN["location_recomputation"]]
    # Of 2 channels of 8 × 8, each of 4 × 6 × 6 outer iterations takes 2 × 3 × 3.
    assert again == pytest.approx([1, 1, 144 * 18 / 128, 144 * 18 / 128], rel=1e-5)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_figure_is_finite_and_depends_on_its_own_candidate_alone(seed: int) -> None:
    space = convolution_space(4, 6, 2, 3, 2)
    rows = space.sample(7, np.random.default_rng(seed))
    together = decision_features(space, rows, CACHES)
    assert together.shape == (7, len(FEATURE_NAMES))
    assert np.isfinite(together).all()
    apart = np.concatenate([decision_features(space, row[None, :], CACHES) for row in rows])
    assert (together == apart).all()


def test_caches_that_are_no_hierarchy_are_refused() -> None:
    with pytest.raises(ValueError, match="sizes grow"):
        Caches(l1_bytes=2**20, l2_bytes=2**15)
