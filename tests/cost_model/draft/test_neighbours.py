"""What was fast for a similar kernel is proposed first, as the legal decisions nearest to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from draft_samples import convolution_space, dense_space, made_up_latencies, made_up_trials

from cost_model.draft.draft_model import DraftTrials
from cost_model.draft.neighbours import adapt, distance, neighbour_rows


def test_a_kernel_is_near_what_has_its_extents() -> None:
    here = dense_space(64, 256, 128)
    assert distance(here, dense_space(64, 256, 128)) == 0
    assert distance(here, dense_space(128, 256, 128)) == pytest.approx(1)
    assert distance(here, dense_space(128, 128, 128)) == pytest.approx(math.sqrt(2))
    assert distance(here, convolution_space(8, 14, 6, 3, 1)) == math.inf


def test_decisions_are_carried_over_unchanged_between_equal_kernels() -> None:
    space = dense_space(64, 256, 128)
    for row in space.sample(10, np.random.default_rng(0)):
        assert (adapt(space, row, dense_space(64, 256, 128)) == row).all()


def test_inner_factors_are_kept_where_they_divide() -> None:
    source, target = dense_space(64, 256, 128), dense_space(49, 384, 100)
    row = source.row_of(2, ((4, 4, 1, 4), (2, 4, 1, 32), (32, 4), 3))
    assert row is not None
    sketch, decisions = target.decisions_of(adapt(source, row, target))
    rows, columns, inner, unroll = decisions
    assert (sketch, unroll) == (2, 3)
    assert isinstance(columns, tuple)
    assert isinstance(inner, tuple)
    assert isinstance(rows, tuple)
    assert columns[-2:] == (1, 32)
    assert inner == (25, 4)
    assert rows[-1] in (1, 7)  # 49 has no 4


def test_the_nearest_kernels_best_come_first() -> None:
    here = dense_space(60, 240, 128)
    near = made_up_trials("near", dense_space(64, 256, 128), 50, 1)
    far = made_up_trials("far", dense_space(2, 16, 2048), 50, 2)
    unlike = made_up_trials("unlike", convolution_space(8, 14, 6, 3, 1), 20, 3)
    failed = DraftTrials("failed", here, near.rows[:0], ())
    rows = neighbour_rows(here, [far, unlike, failed, near], 5)
    assert 1 <= len(rows) <= 5
    best = near.rows[int(np.argmin(near.latencies_us))]
    assert (rows[0] == adapt(near.space, best, here)).all()
    drawn = made_up_latencies(here, here.sample(200, np.random.default_rng(0)))
    assert made_up_latencies(here, rows)[0] < np.quantile(drawn, 0.2)
    assert not len(neighbour_rows(here, [unlike], 5))


def test_kernels_that_decide_differently_cannot_be_carried_over() -> None:
    space = dense_space(4, 8, 8)
    with pytest.raises(ValueError, match="different decisions"):
        adapt(space, space.sample(1, np.random.default_rng(0))[0], convolution_space(8, 14, 6, 3, 1))
