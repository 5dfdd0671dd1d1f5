"""What is written of a candidate reads back as the same candidate, and only legal values are offered."""

from __future__ import annotations

import numpy as np
import pytest
from draft_samples import convolution_space, dense_space, gpu_space, made_up_trials
from hypothesis import given
from hypothesis import strategies as st

from cost_model.draft.decision_space import DecisionSpace
from cost_model.draft.gpu_decision_features import within_limits
from cost_model.language.text import MAX_NEIGHBOURS, NUM_ROLES, NUM_SEGMENTS, Grammar
from cost_model.language.training_examples import context_of

SPACES = [
    dense_space(24, 72, 112),
    dense_space(1, 49, 768),
    convolution_space(10, 14, 24, 3, 2),
    gpu_space(24, 72, 112),
]


@pytest.mark.parametrize("space", SPACES)
@given(seed=st.integers(0, 10**6))
def test_a_candidate_reads_back(space: DecisionSpace, seed: int) -> None:
    (row,) = space.sample(1, np.random.default_rng(seed))
    grammar = Grammar(space)
    assert np.array_equal(grammar.row(grammar.values(row)), row)


@pytest.mark.parametrize("space", SPACES)
def test_whatever_is_offered_is_legal_and_every_candidate_can_be_written(space: DecisionSpace) -> None:
    grammar, rng = Grammar(space), np.random.default_rng(0)
    for _ in range(50):
        values: list[int] = []
        for step in grammar.steps:
            offered = grammar.options(step, values)
            values.append(offered[int(rng.integers(len(offered)))].value)
        row = grammar.row(values)
        if space.is_for_gpu:
            _, (i, j, *_) = space.decisions_of(row)
            assert i[1] * j[1] <= 8
            assert 32 <= i[2] * j[2] <= 1024
        assert np.all(row >= 0)
        assert np.all(row < space.sizes)
    drawn = space.sample(50, rng)
    for row in drawn[within_limits(space, drawn)] if space.is_for_gpu else drawn:
        values = []
        for step, value in zip(grammar.steps, grammar.values(row), strict=True):
            assert value in [option.value for option in grammar.options(step, values)]
            values.append(value)


def test_nothing_is_written_of_loops_that_have_nothing_to_decide() -> None:
    whole, flat = (Grammar(dense_space(rows, 48, 64)) for rows in (16, 1))
    assert len(whole.steps) - len(flat.steps) == 3


def test_options_are_told_apart() -> None:
    for space in SPACES[2:]:
        grammar = Grammar(space)
        values = grammar.values(space.sample(1, np.random.default_rng(1))[0])
        for index, step in enumerate(grammar.steps):
            features = [option.features.tobytes() for option in grammar.options(step, values[:index])]
            assert len(set(features)) == len(features)


def test_every_part_of_a_gpus_tiles_has_a_role_of_its_own() -> None:
    roles = [step.role for step in Grammar(SPACES[3]).steps]
    assert len(set(roles)) == len(roles)
    assert max(roles) < NUM_ROLES


def test_a_prompt_holds_the_kernel_its_neighbours_and_its_own_trials() -> None:
    space = SPACES[0]
    others = [made_up_trials(f"other {rows}", dense_space(rows, 64, 96), 30, rows) for rows in (8, 16, 32)]
    grammar = Grammar(space)
    alone = grammar.prompt(context_of(space, [], space.sample(0, np.random.default_rng(0))))
    assert len(alone) == 1 + len(space.kernel.loops)
    context = context_of(space, others, space.sample(5, np.random.default_rng(0)))
    assert len(context.neighbours) == len(context.distances) == MAX_NEIGHBOURS
    prompt = grammar.prompt(context)
    assert len(prompt) == len(alone) + (MAX_NEIGHBOURS + 2) * (1 + len(grammar.steps))
    assert prompt.roles.max() < NUM_ROLES
    assert sorted(set(prompt.segments.tolist())) == [0, *range(2, NUM_SEGMENTS)]
    assert np.isfinite(prompt.features).all()
