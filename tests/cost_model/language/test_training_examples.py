"""Lessons hold what is fast, and prompts never hold the kernel's own trials as those of a neighbour."""

from __future__ import annotations

import numpy as np
from draft_samples import CACHES, dense_space, made_up_latencies, made_up_trials

from cost_model.draft.draft_model import train_draft_model
from cost_model.language.examples import example_of
from cost_model.language.text import Grammar
from cost_model.language.training_examples import (
    ANSWERS,
    NEAR_BEST,
    context_of,
    distil,
    measured_examples,
    training_example_of,
)

KNOWN = [
    made_up_trials(f"kernel {rows}", dense_space(rows, columns, 64), 60, rows)
    for rows, columns in ((8, 96), (16, 64), (49, 48), (32, 80))
]


def test_what_is_distilled_is_fast_by_what_the_draft_model_learnt() -> None:
    model = train_draft_model(KNOWN, caches=CACHES)
    space = dense_space(24, 72, 112)
    taught = distil("new", space, model, np.random.default_rng(0))
    assert len(np.unique(taught.good, axis=0)) == len(taught.good) == ANSWERS
    assert np.isclose(taught.weights.sum(), 1)
    drawn = made_up_latencies(space, space.sample(400, np.random.default_rng(1)))
    assert np.median(made_up_latencies(space, taught.good)) < np.quantile(drawn, 0.02)
    assert np.median(made_up_latencies(space, taught.good)) < np.median(
        made_up_latencies(space, taught.worse)
    )


def test_measured_lessons_are_near_the_best_of_their_kernel() -> None:
    found = measured_examples(KNOWN)
    assert [each.task for each in found] == [each.task for each in KNOWN]
    for taught, trials in zip(found, KNOWN, strict=True):
        assert max(made_up_latencies(taught.space, taught.good)) <= NEAR_BEST * trials.best_us * (1 + 1e-9)
        assert min(made_up_latencies(taught.space, taught.worse)) > NEAR_BEST * trials.best_us


def test_a_prompt_leaves_out_the_kernel_itself_as_a_neighbour() -> None:
    taught = measured_examples(KNOWN)[0]
    whole = context_of(taught.space, KNOWN[1:], taught.worse[:0])
    rng = np.random.default_rng(0)
    training_examples = [training_example_of(taught, KNOWN, rng) for _ in range(30)]
    assert {len(each.context.own) for each in training_examples} == {0, 1, 2}
    assert len({len(each.context.neighbours) for each in training_examples}) > 2
    assert all(
        min(each.context.distances, default=np.inf) >= whole.distances[0] for each in training_examples
    )


def test_an_example_says_what_could_have_been_written() -> None:
    taught = measured_examples(KNOWN)[2]
    candidates = training_example_of(taught, KNOWN, np.random.default_rng(3))
    example, grammar = example_of(candidates), Grammar(taught.space)
    for answer, row in enumerate(candidates.rows):
        values = grammar.values(row)
        for index, step in enumerate(grammar.steps):
            options = grammar.options(step, values[:index])
            assert example.is_legal[answer, index].sum() == len(options)
            place = example.targets[answer, index]
            (wanted,) = (option for option in options if option.value == values[index])
            assert np.array_equal(example.options[place], wanted.features)
            assert example.option_roles[place] == step.role
