"""Runs by every proposer are of as many real trials as were asked for, and are summed up by medians."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from draft_samples import CACHES
from kernel_spaces import space_of

from benchmarks.trials.in_process import builder_and_runner
from cost_model.language.network import Network, NetworkShape, initial_weights
from tuner.backends.metaschedule.proposers import LANGUAGE, NEIGHBOUR, RANDOM, Knowledge
from tuner.language.evaluation import Measuring, Run, mean_best_us, measure_trials, trial_counts

pytestmark = pytest.mark.tvm

SHAPE = NetworkShape(layers=1, width=16, heads=2)


@pytest.mark.parametrize("proposer", [LANGUAGE, NEIGHBOUR, RANDOM])
def test_trials_are_measured_and_equal_ones_once(proposer: str, tmp_path: Path) -> None:
    kernel = space_of("dense:4x8x12")
    kept = tmp_path / "samples.jsonl"
    told: list[int] = []
    for _ in range(2):
        builder, runner = builder_and_runner("thread", kept)
        measuring = Measuring(
            tuned_for=kernel.tuned_for, builder=builder, runner=runner, work_dir=tmp_path / "logs"
        )
        found, database = measure_trials(
            kernel.module,
            proposer,
            Knowledge((), CACHES, Network(SHAPE, initial_weights(SHAPE, 0))),
            trials=3,
            seed=0,
            measuring=measuring,
            on_trial=told.append,
        )
        assert len(found) == 3
        assert all(each is not None and each > 0 for each in found)
        assert database.query_tuning_record(kernel.module, kernel.tuned_for, "main") is not None
    # The second run proposes the same trials, and its samples are those of the first.
    assert len(kept.read_text().splitlines()) == 3
    assert told == [3, 3]


def test_curves_are_medians_over_seeds_and_means_over_kernels() -> None:
    runs = [
        Run(kernel="a", proposer="x", seed=seed, latencies_us=latencies)
        for seed, latencies in enumerate([(8.0, 2.0), (4.0, None), (None, 4.0)])
    ]
    runs.append(Run(kernel="b", proposer="x", seed=0, latencies_us=(1.0, 1.0)))
    assert mean_best_us(runs, "x", (1, 2)) == pytest.approx((math.sqrt(8), 2.0))
    assert runs[2].best_us(1) == math.inf
    assert trial_counts(6) == (1, 2, 4, 6)
