"""Schedules are ordered by what trials of other kernels taught, and better with the kernel's own."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from cost_model import CostModelError
from cost_model.schedule_model import MIN_TRIALS, Trials, train_schedule_model


def make_trials(task: str, num_trials: int, *, scale_us: float, sign: float = 1.0) -> Trials:
    """Make schedules whose latency grows with the largest of one feature, times the kernel's size."""
    rng = np.random.default_rng(len(task) + int(scale_us))
    features = tuple(rng.random((int(rng.integers(1, 4)), 6), dtype=np.float32) for _ in range(num_trials))
    latencies = tuple(scale_us * float(np.exp(sign * 2 * each[:, 2].max())) for each in features)
    return Trials(task, features, latencies)


def rank_correlation(found: np.ndarray, trials: Trials) -> float:
    return float(scipy.stats.spearmanr(found, -np.asarray(trials.latencies_us)).statistic)


def test_other_kernels_teach_which_schedules_are_fast() -> None:
    known = [make_trials("a", 60, scale_us=10.0), make_trials("b", 60, scale_us=4000.0)]
    unseen = make_trials("unseen", 50, scale_us=300.0)
    assert rank_correlation(train_schedule_model(known).score(unseen.features), unseen) > 0.8


def test_its_own_trials_correct_what_others_taught() -> None:
    others = [make_trials(name, 60, scale_us=10.0) for name in "abcd"]
    whole = make_trials("odd", 90, scale_us=300.0, sign=-1.0)
    for each in whole.features:
        each[:, 5] += 10  # as a kernel's size shows in its features
    own = Trials("odd", whole.features[:40], whole.latencies_us[:40])
    rest = Trials("odd", whole.features[40:], whole.latencies_us[40:])
    before = train_schedule_model(others, current="odd").score(rest.features)
    after = train_schedule_model([*others, own], current="odd").score(rest.features)
    assert rank_correlation(before, rest) < -0.5
    assert rank_correlation(after, rest) > 0.3


def test_equal_trials_and_seed_give_equal_scores() -> None:
    known = [make_trials("a", 40, scale_us=10.0)]
    first, again = (train_schedule_model(known, seed=3).score(known[0].features) for _ in range(2))
    assert np.array_equal(first, again)


def test_no_schedules_have_no_scores() -> None:
    assert train_schedule_model([make_trials("a", 40, scale_us=1.0)]).score([]).shape == (0,)


def test_too_few_trials_are_refused() -> None:
    with pytest.raises(CostModelError, match=f"at least {MIN_TRIALS}"):
        train_schedule_model([make_trials("a", MIN_TRIALS - 1, scale_us=1.0)])
