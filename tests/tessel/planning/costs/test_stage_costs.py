"""Running sums against sums layer by layer."""

from __future__ import annotations

import numpy as np
import pytest

from tessel.planning.costs.stage_costs import TableKey, cuts_at, largest, layer_sums
from tests.samples.plan_samples import random_profile


def test_runs_of_layers_are_sums_of_their_layers() -> None:
    profile = random_profile(np.random.default_rng(0), 7, is_split=True, is_tied=True)
    costs = profile.costs(micro_batch=1)
    sums = layer_sums(profile, TableKey(1))
    inputs = [0, *(cost.boundary_bytes for cost in costs)]
    for first in range(7):
        for after in range(first + 1, 8):
            run = costs[first:after]
            assert sums.forward[after] - sums.forward[first] == pytest.approx(sum(c.forward_us for c in run))
            halves = sum(c.backward_input_us or 0 for c in run)
            assert sums.backward_input[after] - sums.backward_input[first] == pytest.approx(halves)
            kept = sum(min(c.saved_bytes, inputs[first + i]) for i, c in enumerate(run))
            assert sums.kept[after] - sums.kept[first] == pytest.approx(kept)
    assert sums.has_backward
    assert sums.is_splittable
    cuts = cuts_at([0, 2, 3, 7])
    assert cuts == ((0, 1), (2, 2), (3, 6))
    assert largest(sums.peak, cuts).tolist() == [
        max(costs[layer].peak_bytes for layer in range(first, last + 1)) for first, last in cuts
    ]


def test_a_shared_tensor_is_held_once_on_a_device() -> None:
    profile = random_profile(np.random.default_rng(1), 5, is_tied=True)
    sums = layer_sums(profile, TableKey(1))
    shared = min(profile.tables[0].costs[0].weight_bytes, profile.tables[0].costs[4].weight_bytes)
    assert sums.twice_held([(0, 4)]) == (shared, shared)
    assert sums.twice_held([(0, 1), (4, 4)]) == (shared, shared)
    assert sums.twice_held([(0, 3)]) == (0, 0)
