"""Torch and numpy predict the same; training lowers the loss; the best weights are kept."""

from __future__ import annotations

import numpy as np
import pytest
from draft_samples import convolution_space, dense_space, made_up_latencies, made_up_trials

pytest.importorskip("torch", reason="needs the extra `language`")

import torch

from cost_model.language.examples import Example, TrainingExample, example_of
from cost_model.language.network import Network, NetworkShape, initial_weights
from cost_model.language.text import Grammar
from cost_model.language.training_examples import context_of, measured_examples, training_example_of
from tuner.errors import TunerError
from tuner.language.training import TrainedNetwork, fit, mean_loss

pytestmark = pytest.mark.torch

SHAPE = NetworkShape(layers=2, width=32, heads=4)
KNOWN = [made_up_trials(f"kernel {rows}", dense_space(rows, 96, 64), 80, rows) for rows in (8, 16, 49, 32)]


def new_network(seed: int = 0) -> Network:
    return Network(SHAPE, initial_weights(SHAPE, seed))


def training_examples(rng: np.random.Generator) -> list[Example]:
    return [example_of(training_example_of(each, KNOWN, rng)) for each in measured_examples(KNOWN)]


@pytest.mark.parametrize("space", [dense_space(24, 72, 112), convolution_space(10, 14, 24, 3, 2)])
def test_torch_and_numpy_agree(space) -> None:
    network = new_network()
    trained = TrainedNetwork(network)
    context = context_of(space, KNOWN, space.sample(2, np.random.default_rng(0)))
    for row in space.sample(5, np.random.default_rng(1)):
        loss = trained(example_of(TrainingExample(space, context, row[None], np.ones(1)))).item()
        likelihood = network.log_probability(space, context, row)
        assert loss == pytest.approx(-likelihood / len(Grammar(space).steps), rel=1e-4)
    assert all(
        np.array_equal(trained.network().weights[name], network.weights[name]) for name in SHAPE.tensors
    )


def test_training_teaches_what_is_fast_and_repeats_itself() -> None:
    network = new_network()
    runs = [list(fit(network, training_examples, epochs=25, learning_rate=5e-3, seed=0)) for _ in range(2)]
    assert [each.loss for each in runs[0]] == [each.loss for each in runs[1]]
    assert runs[0][-1].completed == runs[0][-1].total == 25
    learnt = runs[0][-1].network
    assert learnt is not None
    assert mean_loss(TrainedNetwork(learnt), training_examples(np.random.default_rng(9))) < 0.8 * mean_loss(
        TrainedNetwork(network), training_examples(np.random.default_rng(9))
    )
    space = dense_space(24, 96, 64)
    nothing = context_of(space, KNOWN, space.sample(0, np.random.default_rng(0)))
    medians = [
        np.median(made_up_latencies(space, each.write(space, nothing, 64, rng=np.random.default_rng(0)).rows))
        for each in (network, learnt)
    ]
    assert medians[1] < 0.6 * medians[0]


def test_weights_that_do_worse_on_kernels_held_out_are_not_kept() -> None:
    apart = training_examples(np.random.default_rng(5))
    for example in apart:
        example.targets[:] = np.argmax(
            example.is_legal, axis=2
        )  # the least factors, which training never asks for
    steps = list(fit(new_network(), training_examples, epochs=12, learning_rate=5e-3, seed=0, held_out=apart))
    ends = [step for step in steps if step.held_out_loss is not None]
    best = min(ends, key=lambda step: step.held_out_loss)
    assert ends[-1].network is best.network
    assert ends[-1].held_out_loss > best.held_out_loss


def test_a_loss_that_is_no_number_ends_training() -> None:
    weights = initial_weights(SHAPE, 0)
    weights["asking"][:] = np.nan
    with pytest.raises(TunerError, match="smaller --learning-rate"):
        list(fit(Network(SHAPE, weights), training_examples, epochs=1, learning_rate=1e-3, seed=0))


torch.set_num_threads(1)
