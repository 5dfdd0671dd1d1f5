"""Evolution finds what exhaustive search finds, stays legal, and picks candidates that differ."""

from __future__ import annotations

import numpy as np
import pytest
from draft_samples import CACHES, convolution_space, dense_space, made_up_latencies
from hypothesis import given
from hypothesis import strategies as st

from cost_model.draft.decision_features import decision_features
from cost_model.draft.decision_space import DecisionSpace, Rows
from cost_model.draft.evolution import Scored, evolve, mutate, pick_diverse


def speed(space: DecisionSpace, rows: Rows) -> np.ndarray:
    return -np.log(made_up_latencies(space, rows))


def test_a_small_space_is_scored_whole() -> None:
    space = dense_space(4, 6, 2)
    found = evolve(space, lambda rows: speed(space, rows), np.random.default_rng(0))
    assert len(found) == space.num_candidates == len(np.unique(found.rows, axis=0))
    assert (np.diff(found.scores) <= 0).all()


@pytest.mark.parametrize("shape", [(12, 48, 16), (14, 98, 30)])
def test_evolution_finds_the_best_of_all(shape: tuple[int, int, int]) -> None:
    space = dense_space(*shape)
    everything = evolve(space, lambda rows: speed(space, rows), np.random.default_rng(0), candidates=10**6)
    assert len(everything) == space.num_candidates
    told = []

    def score(rows: Rows) -> np.ndarray:
        told.append(len(rows))
        return speed(space, rows)

    found = evolve(space, score, np.random.default_rng(1), candidates=4000)
    assert sum(told) == len(found) <= 4000 < space.num_candidates / 5
    assert found.scores[0] == pytest.approx(everything.scores[0], abs=0.02)
    random = speed(space, space.sample(4000, np.random.default_rng(2))).max()
    assert found.scores[0] >= random


@given(st.integers(0, 2**32 - 1))
def test_a_mutation_is_legal_and_changes_one_decision_at_most(seed: int) -> None:
    space = convolution_space(8, 14, 6, 3, 2)
    rng = np.random.default_rng(seed)
    rows = space.sample(20, rng)
    changed = mutate(space, rows, rng)
    assert ((changed >= 0) & (changed < np.asarray(space.sizes))).all()
    assert ((changed != rows).sum(axis=1) <= 1).all()
    assert (changed != rows).any()


def test_most_mutations_change_something_and_some_move_one_prime() -> None:
    space = dense_space(64, 512, 256)
    rng = np.random.default_rng(0)
    rows = space.sample(300, rng)
    changed = mutate(space, rows, rng)
    assert (changed != rows).any(axis=1).mean() > 0.7
    moves = 0
    for before, after in zip(rows, changed, strict=True):
        for position in range(3):
            ratio = space.tables[position][after[position + 1]] / space.tables[position][before[position + 1]]
            moves += sorted(ratio[ratio != 1]) == [0.5, 2.0]
    assert moves > 60


def test_evolution_beats_as_many_random_candidates() -> None:
    space = dense_space(96, 720, 504)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        found = evolve(space, lambda rows: speed(space, rows), rng, candidates=2000)
        assert found.scores[0] > speed(space, space.sample(4000, rng)).max()


def test_a_start_is_kept_and_equal_seeds_find_equal_candidates() -> None:
    space = dense_space(64, 512, 256)
    start = space.sample(3, np.random.default_rng(5))
    found, again = (
        evolve(space, lambda rows: speed(space, rows), np.random.default_rng(0), candidates=1000, start=start)
        for _ in range(2)
    )
    assert (found.rows == again.rows).all()
    known = set(map(bytes, found.rows))
    assert all(bytes(row) in known for row in start)


def test_a_batch_begins_with_the_best_and_leaves_out_what_is_like_it() -> None:
    space = dense_space(64, 512, 256)
    first, other = space.sample(2, np.random.default_rng(0))
    near = np.repeat(first[None, :], 6, axis=0)
    near[:, 0] = [0, 1, 2, 0, 1, 2]
    near[3:, 4] = (near[3:, 4] + 1) % 4
    rows = np.concatenate([near, other[None, :]])
    scores = np.asarray([0.0, -0.01, -0.02, -0.03, -0.04, -0.05, -0.3])
    features = decision_features(space, rows, CACHES)
    picked = pick_diverse(Scored(rows, scores), features, 3, penalty=0.9)
    assert picked[0] == 0
    assert 6 in picked
    assert list(pick_diverse(Scored(rows, scores), features, 3, penalty=0.0)) == [0, 1, 2]
    assert not len(pick_diverse(Scored(rows[:0], scores[:0]), features[:0], 3))
