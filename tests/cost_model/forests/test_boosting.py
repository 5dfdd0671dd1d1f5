"""Threads neither change a model nor spin, and training takes only cores that are idle."""

from __future__ import annotations

import os

import numpy as np
import pytest

from cost_model.forests.boosting import (
    idle_cores,
    num_idle_cores,
    pseudo_huber,
    train_forest,
    waiting_passively,
)


def test_the_trees_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(3000, 40)).astype(np.float32)
    labels = features[:, 0] * features[:, 1] + rng.normal(size=3000)
    parameters = {
        "objective": "reg:pseudohubererror", "max_depth": 8, "subsample": 0.8, "colsample_bytree": 0.5,
        "tree_method": "hist", "max_bin": 128,
    }  # fmt: skip
    forests = {
        bytes(train_forest(parameters, 10, features, labels, seed=3, num_threads=n).save_raw("json"))
        for n in (1, 2, 3)
    }
    assert len(forests) == 1


@pytest.mark.parametrize("slope", [0.2, 0.5, 1.0])
def test_leaves_stay_within_the_labels_where_most_are_far_from_the_first_guess(slope: float) -> None:
    """With steps of any size these forests answer -3 or 26 where labels are 0 and 4, or 0 and 8."""
    rng = np.random.default_rng(0)
    features = rng.uniform(size=(30_000, 2)).astype(np.float32)
    for far in (4.0, 8.0):
        labels = np.where(features[:, 0] > 0.25, far, 0.0) + rng.normal(0, 0.1, 30_000)
        parameters = {**pseudo_huber(slope), "eta": 0.3, "max_depth": 4, "min_child_weight": 5.0}
        found = train_forest(parameters, 40, features, labels, seed=0, num_threads=1).inplace_predict(
            features
        )
        assert labels.min() - 0.5 <= found.min() <= 0.5
        assert far - 0.5 <= found.max() <= labels.max() + 0.5


def test_waiting_is_set_only_while_openmp_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with waiting_passively():
        assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_WAIT_POLICY" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with waiting_passively():
        assert os.environ["OMP_WAIT_POLICY"] == "active"
    assert os.environ["OMP_WAIT_POLICY"] == "active"


@pytest.mark.parametrize(
    ("usable", "others", "cores"), [(8, [0, 0, 0], 8), (8, [1, 3, 2], 5), (2, [9, 9, 9], 1), (4, [-1], 4)]
)
def test_training_takes_the_cores_that_are_left(usable: int, others: list[int], cores: int) -> None:
    assert idle_cores(usable, others) == cores
    assert num_idle_cores() >= 1
