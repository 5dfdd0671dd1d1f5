"""Proposers propose new legal candidates; what they know of other kernels makes the first ones fast."""

from __future__ import annotations

import math

import numpy as np
import pytest
from draft_samples import CACHES, made_up_latencies
from kernel_spaces import space_of

from cost_model.draft.draft_model import DraftTrials
from cost_model.language.network import Network, NetworkShape, initial_weights
from tuner.backends.metaschedule.candidates import KernelCandidates, candidates_of
from tuner.backends.metaschedule.proposers import (
    DRAFT,
    LANGUAGE,
    NEIGHBOUR,
    RANDOM,
    DraftProposer,
    Knowledge,
    LanguageProposer,
    RandomProposer,
    new_proposer,
)

pytestmark = pytest.mark.tvm

NAMES = ("dense:16x64x96", "dense:49x48x64", "dense:8x100x48", "dense:32x60x80")


def candidates_named(name: str) -> KernelCandidates:
    space = space_of(name)
    return candidates_of(space.module, space.tuned_for)


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    """Trials of other kernels, whose latencies follow from their tiles."""
    trials = []
    for number, name in enumerate(NAMES):
        (space,) = candidates_named(name).spaces
        rows = np.unique(space.sample(40, np.random.default_rng(number)), axis=0)
        trials.append(DraftTrials(name, space, rows, made_up_latencies(space, rows)))
    shape = NetworkShape(layers=1, width=16, heads=2)
    return Knowledge(tuple(trials), CACHES, Network(shape, initial_weights(shape, 0)))


@pytest.mark.parametrize("name", [RANDOM, NEIGHBOUR, DRAFT, pytest.param(LANGUAGE, marks=pytest.mark.slow)])
def test_candidates_are_new_and_many(name: str, knowledge: Knowledge) -> None:
    candidates = candidates_named("dense:24x72x112")
    proposer = new_proposer(name, "new", candidates, knowledge, seed=0)
    keys: list[object] = []
    for _ in range(3):
        found = proposer.propose(4)
        assert len(found) == 4
        keys += [each.key for each in found]
        rows = np.stack([each.row for each in found if each.row is not None])
        proposer.learn(found, made_up_latencies(candidates.spaces[0], rows))
    assert None not in keys
    assert len(set(keys)) == 12


@pytest.mark.parametrize("name", [NEIGHBOUR, DRAFT])
def test_what_is_known_of_others_makes_the_first_trials_fast(name: str, knowledge: Knowledge) -> None:
    candidates = candidates_named("dense:24x72x112")
    (space,) = candidates.spaces
    drawn = made_up_latencies(space, space.sample(400, np.random.default_rng(0)))
    rows = np.stack(
        [each.row for each in new_proposer(name, "new", candidates, knowledge, seed=0).propose(2)]
    )
    assert min(made_up_latencies(space, rows)) < np.quantile(drawn, 0.03)


@pytest.mark.parametrize("name", [pytest.param(DRAFT, marks=pytest.mark.slow), LANGUAGE])
def test_a_model_that_errs_does_not_choose_the_whole_first_batch(name: str, knowledge: Knowledge) -> None:
    candidates = candidates_named("dense:24x72x112")
    proposer = new_proposer(name, "new", candidates, knowledge, seed=0)
    assert isinstance(proposer, DraftProposer)
    wanted = {row.tobytes() for _, row in proposer.neighbours(4)}
    first = [each.row for each in proposer.propose(4) if each.row is not None]
    assert first[1].tobytes() in wanted
    assert sum(row.tobytes() in wanted for row in first) < 4
    proposer.learn(proposer.propose(1), [1.0])
    assert not any(each.row is not None and each.row.tobytes() in wanted for each in proposer.propose(4))


def test_a_kernels_own_trials_are_learnt_from() -> None:
    candidates = candidates_named("dense:24x72x112")
    (space,) = candidates.spaces
    proposer = DraftProposer("new", candidates, Knowledge((), CACHES), seed=0)
    assert proposer.model is None  # nothing is known, so that chance proposes
    for _ in range(3):
        found = proposer.propose(12)
        rows = np.stack([each.row for each in found if each.row is not None])
        proposer.learn(found, [*made_up_latencies(space, rows)[:-1], math.inf])
    assert proposer.model is not None
    rows = np.stack([each.row for each in proposer.propose(4) if each.row is not None])
    own = [latency for _, latency in proposer.own[0] if math.isfinite(latency)]
    assert np.median(made_up_latencies(space, rows)) < np.quantile(own, 0.25)


def test_before_a_model_can_be_trained_the_best_so_far_are_changed() -> None:
    candidates = candidates_named("dense:24x72x112")
    (space,) = candidates.spaces
    proposer = DraftProposer("new", candidates, Knowledge((), CACHES), seed=0)
    first = proposer.propose(8)
    rows = np.stack([each.row for each in first if each.row is not None])
    proposer.learn(first, made_up_latencies(space, rows))
    best = proposer.best_rows(0, 4)
    assert proposer.model is None
    later = np.stack([each.row for each in proposer.propose(8) if each.row is not None])
    changed = (later[:, None] != best[None]).sum(axis=2).min(axis=1)
    assert (changed == 1).sum() >= 4, "half are changes of the best"
    assert (changed > 1).any(), "and some are drawn"


def test_where_no_kernel_is_similar_the_language_model_has_the_draft_model_s_candidates_too(
    knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = candidates_named("dense:24x72x112")
    (space,) = candidates.spaces
    drawn = made_up_latencies(space, space.sample(400, np.random.default_rng(0)))

    def median_of_proposed(known: Knowledge) -> float:
        proposer = new_proposer(LANGUAGE, "new", candidates, known, seed=0)
        rows = np.stack([each.row for each in proposer.propose(8) if each.row is not None])
        return float(np.median(made_up_latencies(space, rows)))

    monkeypatch.setattr("tuner.backends.metaschedule.proposers._WRITTEN", 4)
    written = median_of_proposed(knowledge)
    monkeypatch.setattr(LanguageProposer, "has_similar", lambda self, space: False)
    with_drafted = median_of_proposed(knowledge)
    assert with_drafted < np.quantile(drawn, 0.02)
    assert with_drafted < 0.7 * written, "an untrained network writes anything"


def test_equal_seeds_propose_equal_candidates(knowledge: Knowledge) -> None:
    keys = [
        [
            each.key
            for each in new_proposer(DRAFT, "new", candidates_named(NAMES[0]), knowledge, seed=3).propose(3)
        ]
        for _ in range(2)
    ]
    assert keys[0] == keys[1]


def test_a_kernel_without_levels_of_tiles_is_proposed_for_at_random() -> None:
    candidates = candidates_named(NAMES[0])
    candidates.spaces = []
    assert isinstance(new_proposer(DRAFT, "new", candidates, Knowledge(), seed=0), RandomProposer)


def test_the_language_model_goes_on_from_what_was_measured(knowledge: Knowledge) -> None:
    candidates = candidates_named("dense:24x72x112")
    (space,) = candidates.spaces
    alone = Knowledge((), CACHES, knowledge.network)
    proposer = new_proposer(LANGUAGE, "new", candidates, alone, seed=0)
    assert isinstance(proposer, LanguageProposer)
    first = proposer.propose(4)  # nothing is known, so that the likeliest are proposed
    rows = np.stack([each.row for each in first if each.row is not None])
    latencies = made_up_latencies(space, rows)
    proposer.learn(first, latencies)
    assert np.array_equal(proposer.best_rows(0, 1)[0], rows[int(np.argmin(latencies))])
    with pytest.raises(ValueError, match="has no network"):
        new_proposer(LANGUAGE, "new", candidates, Knowledge(), seed=0).propose(1)


def test_an_unknown_proposer_is_refused() -> None:
    with pytest.raises(ValueError, match="'evolution' is not known"):
        new_proposer("evolution", "new", candidates_named(NAMES[0]), Knowledge(), seed=0)
