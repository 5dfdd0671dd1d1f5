"""The draft model ranks TVM's own candidates from the first one on, and learns from every batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from draft_samples import CACHES, made_up_latencies
from kernel_spaces import space_of
from scipy.stats import spearmanr
from tvm.s_tir import meta_schedule

from benchmarks.trials.in_process import builder_and_runner
from cost_model.draft.draft_model import MIN_TRIALS, DraftTrials
from tuner.backends.metaschedule.backend import EVOLUTIONARY, MetaSchedule, TrialSettings, tune_kernel
from tuner.backends.metaschedule.candidates import Candidate, candidates_of
from tuner.backends.metaschedule.draft_cost_model import DraftCostModel
from tuner.backends.metaschedule.proposers import Knowledge

pytestmark = pytest.mark.tvm


def drawn(name: str, count: int) -> list[Candidate]:
    kernel = space_of(name)
    candidates = candidates_of(kernel.module, kernel.tuned_for)
    rng = np.random.default_rng(1)
    found = [candidates.sample(rng) for _ in range(count)]
    return [each for each in found if each is not None and each.row is not None]


def measure_candidates(found: list[Candidate]) -> list[object]:
    return [meta_schedule.MeasureCandidate(each.schedule, []) for each in found]


def test_candidates_are_ranked_by_trials_of_other_kernels_and_then_by_their_own() -> None:
    other, kernel = space_of("dense:16x64x96"), space_of("dense:24x72x112")
    (known,) = candidates_of(other.module, other.tuned_for).spaces
    rows = np.unique(known.sample(150, np.random.default_rng(0)), axis=0)
    trials = DraftTrials("other", known, rows, made_up_latencies(known, rows))
    (space,) = candidates_of(kernel.module, kernel.tuned_for).spaces
    found = drawn("dense:24x72x112", 60)
    speeds = [-each for each in made_up_latencies(space, np.stack([each.row for each in found]))]
    candidates = measure_candidates(found)
    context = meta_schedule.TuneContext(mod=kernel.module, target=kernel.tuned_for)
    model = DraftCostModel("new", kernel.module, Knowledge((trials,), CACHES, "any"))
    assert spearmanr(model.predict(context, candidates), speeds).statistic > 0.5
    alone = DraftCostModel("new", kernel.module, Knowledge((), CACHES, "any"))
    assert alone.model is None
    results = [meta_schedule.runner.RunnerResult([-speed / 1e6], None) for speed in speeds[: MIN_TRIALS + 1]]
    results[0] = meta_schedule.runner.RunnerResult(None, "it failed")
    alone.update(context, candidates[: MIN_TRIALS + 1], results)
    assert alone.model is not None
    rest = slice(MIN_TRIALS + 1, None)
    assert spearmanr(alone.predict(context, candidates[rest]), speeds[rest]).statistic > 0.3


@pytest.mark.slow
def test_evolution_asks_it(tmp_path: Path) -> None:
    kernel = space_of("dense:4x8x12")
    builder, runner = builder_and_runner()
    database = meta_schedule.database.MemoryDatabase()
    tune_kernel(
        kernel.module,
        kernel.tuned_for,
        TrialSettings(trials=4, work_dir=tmp_path, builder=builder, runner=runner, strategy=EVOLUTIONARY),
        database=database,
        cost_model=DraftCostModel("new", kernel.module, Knowledge((), CACHES, "any")),
    )
    assert database.query_tuning_record(kernel.module, kernel.tuned_for, "main") is not None


def test_it_learns_from_records_only() -> None:
    with pytest.raises(ValueError, match="`draft` learns from records, but none are named"):
        MetaSchedule(trials=4, cost_model="draft")
    assert "cost_model=draft" in MetaSchedule(trials=4, cost_model="draft", records="a.db").settings
