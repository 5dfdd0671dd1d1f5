"""A budget is spent to the last trial and no further, and goes where the model spends its time."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_spaces import cpu, space_of

from benchmarks.trials.in_process import builder_and_runner
from records import open_store
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule
from tuner.backends.metaschedule.draft_trials import load_draft_trials
from tuner.backends.metaschedule.trial_budget import DealtKernel, WeightedKernel, deal_trials
from tuner.backends.metaschedule.trials import task_name
from tuner.backends.metaschedule.untuned import is_untuned

pytestmark = pytest.mark.tvm


def dealt(
    backend: MetaSchedule, budget: int, kernels: dict[str, int], batches: list[int]
) -> tuple[DealtKernel, ...]:
    builder, runner = builder_and_runner()
    return deal_trials(
        [WeightedKernel(space_of(name).module, count) for name, count in kernels.items()],
        budget,
        backend,
        cpu(),
        builder=builder,
        runner=runner,
        on_batch=batches.append,
    )


def test_a_kernel_that_a_model_runs_often_gets_what_the_others_leave(tmp_path: Path) -> None:
    url = str(tmp_path / "records.db")
    backend = MetaSchedule(trials=1, database=str(tmp_path), records=url, proposer="random")
    batches: list[int] = []
    # The same operations in two shapes, of which one runs a thousand times as often.
    often, seldom = dealt(backend, 18, {"dense:8x48x16": 1, "dense:16x48x8": 1000}, batches)
    assert (often.count, seldom.count) == (1000, 1)
    assert seldom.trials == 4, "one batch each, and no more for what hardly counts"
    assert often.trials == 14
    assert batches == [4, 8, 12, 16, 18]
    assert 0 < often.best_us <= often.first_us
    database = backend.open_database(cpu())
    kept = database.get_all_tuning_records()
    assert [is_untuned(each) for each in kept].count(False) == 18
    assert len(kept) == 20, "the untuned schedule of each kernel stands beside its trials"
    with open_store(url) as store:
        known = load_draft_trials(store, cpu(), environment_of(cpu(), backend))
    assert {each.task: len(each.rows) for each in known} == {
        task_name(space_of("dense:8x48x16").module): 4,
        task_name(space_of("dense:16x48x8").module): 14,
    }


def test_what_the_database_holds_is_part_of_the_budget(tmp_path: Path) -> None:
    backend = MetaSchedule(trials=1, database=str(tmp_path), proposer="random")
    batches: list[int] = []
    dealt(backend, 4, {"dense:8x48x16": 1}, batches)
    assert dealt(backend, 4, {"dense:8x48x16": 1}, batches) == ()
    (more,) = dealt(backend, 6, {"dense:8x48x16": 1}, batches)
    assert more.trials == 2
    assert batches == [4, 2]
