"""Every proposer has its trials measured by the same builder and runner, and curves only ever fall."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `language`")
pytest.importorskip("transformers", reason="needs the extra `language`")

from kernel_spaces import space_of

from benchmarks.trials.in_process import builder_and_runner
from tuner.language.evaluation import (
    PROPOSERS,
    Measuring,
    Proposer,
    Run,
    mean_best_us,
    run_proposer,
    trial_counts,
)
from tuner.language.network import Network, NetworkShape

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


# Evolution takes many seconds before its first trial, so it is left to the slow tests.
@pytest.mark.parametrize(
    "proposer",
    [pytest.param(each, marks=[pytest.mark.slow] * (each == "evolutionary")) for each in PROPOSERS],
)
def test_a_proposer_measures_as_many_trials_as_asked_for(tmp_path: Path, proposer: Proposer) -> None:
    builder, runner = builder_and_runner()
    told: list[tuple[int, int]] = []
    run = run_proposer(
        proposer,
        Network(NetworkShape(layers=1, width=16, heads=2)),
        space_of("dense:4x8x8"),
        trials=3,
        seed=0,
        measuring=Measuring(builder=builder, runner=runner, work_dir=tmp_path),
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert (run.kernel, run.proposer, run.num_legal) == ("dense:4x8x8", proposer, 3)
    assert len(run.latencies_us) == 3
    assert all(0 < each < math.inf for each in run.latencies_us)
    assert told[-1] == (3, 3)


def test_curves_are_medians_over_seeds_and_geometric_means_over_kernels() -> None:
    def run(kernel: str, seed: int, *latencies_us: float) -> Run:
        return Run(kernel=kernel, proposer="random", seed=seed, latencies_us=latencies_us, num_legal=2)

    runs = [run("a", 0, 8.0, 2.0), run("a", 1, 6.0, 3.0), run("a", 2, math.inf, 9.0), run("b", 0, 2.0, 4.0)]
    assert mean_best_us(runs, "random", (1, 2)) == pytest.approx(((8.0 * 2.0) ** 0.5, (3.0 * 2.0) ** 0.5))
    assert trial_counts(12) == (1, 2, 4, 8, 12)
    assert trial_counts(1) == (1,)
