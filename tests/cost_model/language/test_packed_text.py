"""Packed kernels' decisions are written one after the other, each among what a legal candidate has."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.draft.packed_families import PackedFamily
from cost_model.draft.packed_space import (
    PackedSpace,
    attention_space,
    depthwise_space,
    direct_space,
    product_space,
    rowwise_space,
    winograd_space,
)
from cost_model.language.examples import Lesson, example_of
from cost_model.language.lessons import context_of
from cost_model.language.network import Network, NetworkShape, initial_weights
from cost_model.language.packed_text import PackedGrammar
from cost_model.language.text import (
    KERNEL_FEATURES,
    NUM_ROLES,
    NUM_SEGMENTS,
    OPTION_WIDTH,
    PACKED_DECISIONS,
    Context,
)
from tests.samples.draft_samples import made_up_trials

SPACES: dict[str, PackedSpace] = {
    "attention": attention_space(heads=8, depth=64, queries=77, keys=50),
    "product": product_space(49, 96, 200),
    "direct": direct_space(lines=14, length=14, channels=20, filters=44, window=(3, 3), stride=1),
    "depthwise": depthwise_space(lines=27, length=27, channels=88, window=(3, 3), stride=1),
    "winograd": winograd_space(images=1, height=14, width=14, channels=32, filters=64),
    "rowwise": rowwise_space(lines=14, length=14, channels=24, window=(1, 1), wide=144, result=14, narrow=24),
    "rowwise without a third": rowwise_space(
        lines=14, length=14, channels=24, window=(1, 1), wide=144, result=14, narrow=0
    ),
}


def test_there_is_a_role_for_every_decision_of_every_family() -> None:
    assert {str(space.family) for space in SPACES.values()} == {str(family) for family in PackedFamily}
    assert {kind.name for space in SPACES.values() for kind in space.kinds} == set(PACKED_DECISIONS)


@pytest.mark.parametrize("name", SPACES)
def test_every_candidate_is_written_and_read_again(name: str) -> None:
    space, rng = SPACES[name], np.random.default_rng(0)
    grammar = PackedGrammar(space)
    for row in space.sample(50, rng):
        values = grammar.values(row)
        assert grammar.row(values).tolist() == row.tolist()
        for index, step in enumerate(grammar.steps):
            assert values[index] in [each.value for each in grammar.options(step, values[:index])]


@pytest.mark.parametrize("name", SPACES)
def test_whatever_is_offered_leads_to_a_legal_candidate_and_nothing_else_does(name: str) -> None:
    space, rng = SPACES[name], np.random.default_rng(1)
    grammar = PackedGrammar(space)
    for _ in range(30):
        values: list[int] = []
        for step in grammar.steps:
            options = grammar.options(step, values)
            offered = {each.value for each in options}
            # By trying all: a number is offered where some legal candidate goes on with it.
            goes_on = {
                each[len(values)]
                for each in map(grammar.values, space.rows[:: max(1, len(space.rows) // 400)])
                if list(each[: len(values)]) == values
            }
            assert goes_on <= offered
            values.append(options[int(rng.integers(len(options)))].value)
        assert space.is_legal(grammar.row(values)[None])[0]


@pytest.mark.parametrize("name", SPACES)
def test_features_have_their_shapes_and_tell_options_apart(name: str) -> None:
    space = SPACES[name]
    grammar = PackedGrammar(space)
    rows = space.sample(3, np.random.default_rng(0))
    tokens = grammar.prompt(Context(rows[:2], (0.5, 1.0), rows[2:]))
    assert len(tokens) == 1 + len(space.kernel.loops) + 3 * (1 + len(grammar.steps))
    assert tokens.roles.max() < NUM_ROLES
    assert tokens.segments.max() < NUM_SEGMENTS
    assert len(grammar.kernel_features()) <= KERNEL_FEATURES
    for step in grammar.steps:
        options = grammar.options(step, [])
        features = np.stack([each.features for each in options])
        assert features.shape == (len(options), OPTION_WIDTH)
        assert len(np.unique(features, axis=0)) == len(options)


def test_an_untrained_network_writes_legal_candidates_of_every_family() -> None:
    network = Network(NetworkShape(), initial_weights(NetworkShape(), 0))
    assert network.shape.num_parameters < 500_000
    for space in SPACES.values():
        context = context_of(space, [], space.rows[:0])
        found = network.write(space, context, 32, rng=np.random.default_rng(0))
        assert space.is_legal(found.rows).all()
        assert len(found.rows) > 8
        likeliest = network.log_probability(space, context, found.rows[0])
        assert likeliest == pytest.approx(found.log_probabilities[0], rel=1e-4)


def test_answers_are_among_the_options_of_an_example() -> None:
    space = SPACES["product"]
    rows = space.sample(4, np.random.default_rng(0))
    known = made_up_trials("other", SPACES["direct"], 4, 0)
    example = example_of(Lesson(space, context_of(space, [known], rows[:1]), rows, np.full(4, 0.25)))
    answers, steps = example.targets.shape
    for answer in range(answers):
        for step in range(steps):
            assert example.is_legal[answer, step, example.targets[answer, step]]
