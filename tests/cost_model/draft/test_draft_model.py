"""The draft model orders candidates of kernels it has not seen; a saved one answers alike or is refused."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import scipy.stats
from draft_samples import CACHES, dense_space, made_up_latencies, made_up_trials

from cost_model.draft.draft_model import (
    DraftModel,
    DraftTrials,
    train_draft_model,
)
from cost_model.errors import CostModelError

SHAPES = [(16, 64, 64), (49, 96, 48), (8, 128, 256), (100, 48, 32), (13, 192, 96), (32, 80, 64), (7, 60, 84)]


@cache
def trials() -> tuple[DraftTrials, ...]:
    return tuple(
        made_up_trials(f"kernel {number}", dense_space(*shape), 60, number)
        for number, shape in enumerate(SHAPES)
    )


@cache
def model() -> DraftModel:
    return train_draft_model(trials(), caches=CACHES)


def test_candidates_of_an_unseen_kernel_are_ordered() -> None:
    space = dense_space(24, 112, 72)
    rows = space.sample(400, np.random.default_rng(1))
    truth = -np.log(made_up_latencies(space, rows))
    predicted = model().predict(space, rows)
    assert scipy.stats.spearmanr(predicted.mean, truth).statistic > 0.7
    first = np.argsort(-predicted.mean)[:8]
    assert truth[first].max() > np.quantile(truth, 0.98)
    # The chance that all eight are below the median is 1 in 256 at random.
    assert np.mean(truth[first]) > np.quantile(truth, 0.9)


def test_own_trials_change_what_is_predicted_of_a_kernel() -> None:
    space = dense_space(24, 112, 72)
    own = made_up_trials("own", space, 8, 5)
    # The kernel at hand contradicts all others: what was fast is slow there.
    upside_down = DraftTrials("own", space, own.rows, tuple(1e6 / each for each in own.latencies_us))
    trained = train_draft_model([*trials(), upside_down], caches=CACHES, current="own")
    before = scipy.stats.spearmanr(model().predict(space, own.rows).mean, own.latencies_us).statistic
    after = scipy.stats.spearmanr(trained.predict(space, own.rows).mean, own.latencies_us).statistic
    assert before < 0 < after


def test_failed_trials_are_the_slowest() -> None:
    space = dense_space(16, 64, 64)
    known = made_up_trials("a", space, 80, 3)
    failed = known.rows[:, 4] == 3  # everything that unrolls most
    latencies = tuple(
        math.inf if is_failed else each for each, is_failed in zip(known.latencies_us, failed, strict=True)
    )
    trained = train_draft_model([DraftTrials("a", space, known.rows, latencies)], caches=CACHES)
    predicted = trained.predict(space, known.rows).mean
    assert predicted[failed].max() < predicted[~failed].mean()


SPACE = dense_space(24, 112, 72)


def test_equal_trials_give_equal_models() -> None:
    again = train_draft_model(trials(), caches=CACHES)
    rows = SPACE.sample(50, np.random.default_rng(2))
    wanted, found = model().predict(SPACE, rows), again.predict(SPACE, rows)
    assert (found.mean == wanted.mean).all()
    assert (found.spread == wanted.spread).all()
    assert found.spread.max() > 0


def test_too_few_trials_are_refused() -> None:
    few = made_up_trials("a", SPACE, 8, 0)
    with pytest.raises(CostModelError, match="at least 32"):
        train_draft_model([few], caches=CACHES)
    with pytest.raises(ValueError, match="give one for each"):
        DraftTrials("a", SPACE, few.rows, (1.0,))
    with pytest.raises(ValueError, match="not positive"):
        DraftTrials("a", SPACE, few.rows[:1], (0.0,))
