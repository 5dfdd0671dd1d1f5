"""Writing keeps to what is legal, follows its probabilities, and depends on the prompt and the seed alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from draft_samples import convolution_space, dense_space, made_up_trials

from cost_model.language.network import Network, NetworkShape, initial_weights
from cost_model.language.training_examples import context_of

SHAPE = NetworkShape(layers=2, width=16, heads=2)
NETWORK = Network(SHAPE, initial_weights(SHAPE, 0))


def test_written_candidates_are_distinct_legal_and_repeatable() -> None:
    space = convolution_space(10, 14, 24, 3, 2)
    context = context_of(space, [], space.sample(1, np.random.default_rng(0)))
    found = [NETWORK.write(space, context, 40, rng=np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert found[0].num_written == 40
    assert len(np.unique(found[0].rows, axis=0)) == len(found[0].rows) > 30
    assert np.all(found[0].rows < space.sizes)
    assert np.array_equal(found[0].rows, found[1].rows)
    assert not np.array_equal(found[0].rows, found[2].rows[: len(found[0].rows)])
    assert np.all(np.diff(found[0].log_probabilities) <= 0)


def test_probabilities_are_those_that_were_written_with_and_sum_to_one() -> None:
    space = dense_space(1, 2, 2)
    other = made_up_trials("other", dense_space(4, 2, 2), 9, 0)
    context = context_of(space, [other], space.sample(1, rng()))
    written = NETWORK.write(space, context, 60, rng=rng())
    for row, likelihood in zip(written.rows, written.log_probabilities, strict=True):
        assert NETWORK.log_probability(space, context, row) == pytest.approx(likelihood, abs=1e-4)
    everything = np.stack(np.meshgrid(*map(np.arange, space.sizes), indexing="ij"), -1)
    chances = [
        math.exp(NETWORK.log_probability(space, context, row))
        for row in everything.reshape(-1, len(space.sizes))
    ]
    assert len(chances) == space.num_candidates
    assert sum(chances) == pytest.approx(1, abs=1e-4)


def test_own_trials_change_what_is_written() -> None:
    space = dense_space(16, 64, 96)
    first, second = space.sample(2, rng())
    alone, after = (context_of(space, [], space.sample(0, rng())), context_of(space, [], first[None]))
    assert NETWORK.log_probability(space, alone, second) != NETWORK.log_probability(space, after, second)


def test_colder_writing_differs_less() -> None:
    space = dense_space(48, 64, 96)
    context = context_of(space, [], space.sample(0, rng()))
    cold, warm = (
        NETWORK.write(space, context, 60, rng=rng(), temperature=temperature).rows
        for temperature in (1e-4, 1.0)
    )
    assert len(cold) < 5
    assert len(warm) > 40


def test_sizes_are_counted_and_limited() -> None:
    assert NetworkShape().num_parameters == sum(map(math.prod, NetworkShape().tensors.values())) < 500_000
    with pytest.raises(ValueError, match="are no network"):
        NetworkShape(width=90)
    with pytest.raises(ValueError, match="at most 500,000"):
        NetworkShape(layers=12)
    with pytest.raises(ValueError, match="not of the network's shape"):
        Network(NetworkShape(), NETWORK.weights)
    space = dense_space(2, 2, 2)
    with pytest.raises(ValueError, match="at least 1, above 0"):
        NETWORK.write(space, context_of(space, [], space.sample(0, rng())), 1, rng=rng(), temperature=0)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)
