"""A GPU's features, against elements that are counted one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from draft_samples import CACHES, gpu_space

from cost_model.draft.decision_features import decision_features
from cost_model.draft.decision_space import (
    Access,
    DecisionSpace,
    Loop,
    ThreadsDecision,
    TileDecision,
    TiledKernel,
)
from cost_model.draft.gpu_decision_features import (
    GPU_FEATURE_NAMES,
    gpu_decision_features,
    within_limits,
)


def features_of(space: DecisionSpace, rows: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(GPU_FEATURE_NAMES, gpu_decision_features(space, rows).T, strict=True))


def test_what_a_block_copies_and_a_thread_computes_is_counted() -> None:
    space = gpu_space(8, 12, 6)
    rows = space.sample(20, np.random.default_rng(0))
    found = features_of(space, rows)
    for place, row in enumerate(rows):
        _, decisions = space.decisions_of(row)
        i, j, k = decisions[:3]
        assert isinstance(i, tuple)
        assert isinstance(j, tuple)
        assert isinstance(k, tuple)
        # Of the first block, in the first step of the outer reduction: which elements are read.
        inside = itertools.product(range(8 // i[0]), range(12 // j[0]), range(6 // k[0]))
        left, right = zip(*(((a, c), (c, b)) for a, b, c in inside), strict=True)
        assert 2 ** found["read0_shared_bytes"][place] == pytest.approx(4 * len(set(left)))
        assert 2 ** found["read1_shared_bytes"][place] == pytest.approx(4 * len(set(right)))
        assert 2 ** found["blocks"][place] == pytest.approx(i[0] * j[0])
        assert 2 ** found["threads"][place] == pytest.approx(i[2] * j[2])
        assert 2 ** found["results_a_thread"][place] == pytest.approx(96 / (i[0] * j[0] * i[2] * j[2]))
        assert 2 ** found["copies"][place] == pytest.approx(k[0])
        threads = i[2] * j[2]
        shared = 4 * (len(set(left)) + len(set(right)))
        is_allowed = 32 <= threads <= 1024 and i[1] * j[1] <= 8 and shared <= 48 << 10
        assert within_limits(space, row[None])[0] == is_allowed


def test_a_row_that_is_spread_over_threads_has_as_many() -> None:
    loops = (Loop(48, is_reduction=False), Loop(96, is_reduction=True))
    accesses = (Access(4, ((1, 0), (0, 1)), False), Access(4, ((1, 0),), True))
    space = DecisionSpace(TiledKernel(loops, accesses, 1), (ThreadsDecision((4, 64)),), (0,))
    rows = np.asarray([[0, 0], [0, 1]])
    found = features_of(space, rows)
    assert found["threads"].tolist() == [2, 6]
    assert found["warp_fill"].tolist() == [4 / 32, 1]
    assert 2 ** found["blocks"][0] == pytest.approx(48)
    assert found["iterations_a_thread"][1] == pytest.approx(math.log2(2 * 96 / 64))
    assert within_limits(space, rows).all()


def test_a_gpus_features_are_its_own_and_so_are_its_levels() -> None:
    space = gpu_space(8, 12, 6)
    rows = space.sample(3, np.random.default_rng(0))
    assert np.array_equal(decision_features(space, rows, CACHES), gpu_decision_features(space, rows))
    with pytest.raises(ValueError, match="SSSRRSRS splits it in 5"):
        DecisionSpace(space.kernel, (TileDecision(0, 4, 64), *space.kinds[1:]), (0,))
