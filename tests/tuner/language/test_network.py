"""Answers that share a prompt weigh as they would alone, and a tiny network learns a handful by heart."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `language`")
pytest.importorskip("transformers", reason="needs the extra `language`")

import torch
from kernel_spaces import space_of

from tuner.errors import TunerError
from tuner.language.examples import batch_of, examples_of, text_of
from tuner.language.generation import generate
from tuner.language.network import Network, NetworkShape
from tuner.language.sketches import Proposal
from tuner.language.training import (
    best_texts,
    fit,
    mean_loss,
    random_spaces,
    sampled_texts,
    split_kernels,
)

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

TINY = NetworkShape(layers=1, width=32, heads=2)
DENSE, PRODUCT = "dense:6x34x60,relu", "product:2x8x12x16"


def samples(name: str, count: int, seed: int = 0) -> list[Proposal]:
    rng = np.random.default_rng(seed)
    return [space_of(name).sample(rng) for _ in range(count)]


def test_texts_behind_a_shared_prompt_count_as_they_would_alone() -> None:
    network = Network(TINY, seed=3)
    texts = {text_of(space_of(name), each): 1.0 for name in (DENSE, PRODUCT) for each in samples(name, 6)}
    shared = examples_of(texts)
    assert len(shared) < len(texts)
    with torch.inference_mode():
        total, weight = network.loss(batch_of(shared))
        alone = [network.loss(batch_of(examples_of({text: 1.0}))) for text in texts]
    assert weight == sum(each[1] for each in alone)
    assert total.item() == pytest.approx(sum(each[0].item() for each in alone), rel=1e-5)


def test_a_text_too_long_for_the_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.language.examples.MAX_POSITIONS", 100)
    with pytest.raises(ValueError, match="a network reads 100; leave the kernel out"):
        text_of(space_of(DENSE), samples(DENSE, 1)[0])


def test_every_schedule_of_an_untrained_network_is_legal_distinct_and_repeatable() -> None:
    network, space = Network(TINY, seed=1), space_of("convolution:4x7x6x3x1")
    first, again = (generate(network, space, 8, seed=5) for _ in range(2))
    assert first == again
    assert len(set(first.proposals)) == 8
    assert all(space.schedule(each) is not None for each in first.proposals)
    assert generate(network, space, 8, seed=6) != first
    known = first.proposals[:4]
    assert not set(known) & set(generate(network, space, 8, seed=5, known=known).proposals)


def test_a_small_space_runs_out() -> None:
    space = space_of("dense:1x2x1")
    found = generate(Network(TINY), space, 10_000, seed=0)
    assert len(set(found.proposals)) == len(found.proposals) < 10_000
    assert found.distinct_ratio < 1


def test_a_tiny_network_learns_a_handful_of_schedules_by_heart() -> None:
    network = Network(TINY, seed=0)
    space = space_of(PRODUCT)
    texts = {text_of(space, each): 1.0 for each in samples(PRODUCT, 3)}
    before = mean_loss(network, examples_of(texts))
    steps = list(fit(network, texts, epochs=200, learning_rate=1e-2, seed=0))
    assert (steps[-1].completed, steps[-1].total) == (len(steps), len(steps))
    assert mean_loss(network, examples_of(texts)) < 0.15 < before
    likeliest = generate(network, space, 6, seed=0).proposals[:3]
    assert set(likeliest) == set(samples(PRODUCT, 3))


def test_the_same_seed_trains_the_same_weights() -> None:
    texts = sampled_texts(space_of(PRODUCT), 8, np.random.default_rng(0))

    def trained(seed: int) -> torch.Tensor:
        network = Network(TINY, seed=seed)
        list(fit(network, texts, epochs=2, learning_rate=1e-2, seed=seed))
        return network.model.transformer.wte.weight

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_what_is_kept_apart_decides_which_weights_remain() -> None:
    network = Network(TINY, seed=0)
    texts = {text_of(space_of(PRODUCT), each): 1.0 for each in samples(PRODUCT, 2)}
    apart = {text_of(space_of(DENSE), each): 1.0 for each in samples(DENSE, 8)}
    before = mean_loss(network, examples_of(apart))
    list(fit(network, texts, epochs=60, learning_rate=5e-2, seed=0, kept_apart=apart))
    assert mean_loss(network, examples_of(apart)) <= before


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    network = Network(TINY)
    with torch.no_grad():
        network.model.transformer.wte.weight.fill_(float("nan"))
    texts = sampled_texts(space_of(PRODUCT), 2, np.random.default_rng(0))
    with pytest.raises(TunerError, match="the loss is nan"):
        list(fit(network, texts, epochs=1, learning_rate=1e-3, seed=0))


def test_the_best_share_of_trials_is_learnt_and_failures_are_not() -> None:
    space, found = space_of(DENSE), list(dict.fromkeys(samples(DENSE, 12)))
    trials: dict[Proposal, float | None] = {each: 10.0 + number for number, each in enumerate(found)}
    trials[found[0]] = None
    assert list(best_texts(space, trials, 0.0)) == [text_of(space, found[1])]
    assert list(best_texts(space, trials, 0.2)) == [text_of(space, each) for each in found[1:3]]
    assert sum(best_texts(space, trials, 0.5).values()) == pytest.approx(1)
    assert best_texts(space, {found[0]: None}, 0.5) == {}


def test_kernels_are_kept_apart_only_where_there_are_enough() -> None:
    assert split_kernels("abcdefghijk") == (tuple("abcdefghijk"), ())
    learnt, apart = split_kernels("abcdefghijkl")
    assert (apart, len(learnt)) == (("f", "l"), 10)


def test_random_kernels_are_of_the_families_asked_for_and_differ() -> None:
    tuned_for = space_of(DENSE).tuned_for
    found = [
        each.name for each in random_spaces(["dense", "product"], 3, tuned_for, np.random.default_rng(0))
    ]
    assert len(set(found)) == len(found) > 4
    assert {name.partition(":")[0] for name in found} == {"dense", "product"}


def test_a_network_of_no_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="are no network"):
        NetworkShape(layers=1, width=30, heads=4)
    with pytest.raises(ValueError, match="give at least 1, above 0"):
        generate(Network(TINY), space_of(DENSE), 0)
