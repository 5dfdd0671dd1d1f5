"""Schedules are written, ranked, and taken by TVM; equal arguments give equal ones."""

from __future__ import annotations

import numpy as np
import pytest
from draft_samples import CACHES, made_up_latencies
from kernel_spaces import space_of

from cost_model.draft.draft_model import DraftTrials
from cost_model.language.network import Network, NetworkShape, initial_weights
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.proposers import Knowledge
from tuner.language.generation import generate

pytestmark = pytest.mark.tvm

SHAPE = NetworkShape(layers=1, width=16, heads=2)
NETWORK = Network(SHAPE, initial_weights(SHAPE, 0))


@pytest.mark.parametrize("name", ["dense:13x48x64,relu", "convolution:8x14x12x3x2", "product:2x10x16x49"])
def test_tvm_takes_what_is_written(name: str) -> None:
    kernel = space_of(name)
    candidates = candidates_of(kernel.module, kernel.tuned_for)
    found = generate("new", candidates, Knowledge((), CACHES, NETWORK), 5, seed=1)
    assert len(found.schedules) == 5
    assert found.num_distinct <= found.num_written == 64
    # Only where a block is computed may be repaired, and only a convolution's padding is computed elsewhere.
    assert found.legal_ratio == 1 or name.startswith("convolution")
    assert all(each.log_speed is None for each in found.schedules)
    likelihoods = [each.log_probability for each in found.schedules]
    assert likelihoods == sorted(likelihoods, reverse=True)


def test_the_draft_model_ranks_where_it_knows_enough() -> None:
    kernel = space_of("dense:24x72x112")
    candidates = candidates_of(kernel.module, kernel.tuned_for)
    (space,) = candidates.spaces
    rows = np.unique(space.sample(60, np.random.default_rng(0)), axis=0)
    trials = DraftTrials("other", space, rows, made_up_latencies(space, rows))
    knowledge = Knowledge((trials,), CACHES, NETWORK)
    runs = [generate("new", candidates, knowledge, 4) for _ in range(2)]
    speeds = [each.log_speed for each in runs[0].schedules]
    assert None not in speeds
    assert speeds == sorted(speeds, reverse=True)
    assert [each.decisions for each in runs[0].schedules] == [each.decisions for each in runs[1].schedules]
    with pytest.raises(ValueError, match="no network"):
        generate("new", candidates, Knowledge((trials,), CACHES), 4)
