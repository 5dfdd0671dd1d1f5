"""TVM measures what a proposer proposes, keeps it as trials, and the kernel becomes the best of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_spaces import cpu, space_of
from tvm.s_tir import meta_schedule

from benchmarks.trials.in_process import builder_and_runner
from records import open_store
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import (
    MetaSchedule,
    TrialSettings,
    proposed_trials,
    tune_kernel,
)
from tuner.backends.metaschedule.draft_trials import load_draft_trials
from tuner.backends.metaschedule.proposers import Knowledge
from tuner.backends.metaschedule.trials import KeepTrials, task_name

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("proposer", ["draft", "random"])
def test_trials_are_measured_kept_and_read_again(tmp_path: Path, proposer: str) -> None:
    space, url = space_of("dense:4x8x12"), str(tmp_path / "records.db")
    environment = environment_of(cpu(), MetaSchedule())
    builder, runner = builder_and_runner()
    database = meta_schedule.database.MemoryDatabase()
    task = task_name(space.module)
    tune_kernel(
        space.module,
        space.tuned_for,
        TrialSettings(
            trials=6,
            work_dir=tmp_path / "logs",
            builder=builder,
            runner=runner,
            strategy=proposed_trials(proposer, task, Knowledge(), seed=1),
        ),
        database=database,
        callbacks=[KeepTrials(url, space.module, space.tuned_for, cpu(), environment)],
    )
    with open_store(url) as store:
        (found,) = load_draft_trials(store, cpu(), environment)
    assert found.task == task
    assert len(found.rows) == 6
    assert all(latency > 0 for latency in found.latencies_us)
    best = database.query_tuning_record(space.module, space.tuned_for, "main")
    assert best is not None
    assert min(map(float, best.run_secs)) * 1e6 <= max(found.latencies_us)


def test_the_proposer_is_part_of_what_a_backend_is() -> None:
    backend = MetaSchedule(trials=4, proposer="draft", records="sqlite:///x.db")
    assert backend.settings == "trials=4,proposer=draft"
    assert "proposer=draft" in backend.reference
    assert "proposer" not in MetaSchedule(trials=4).reference
    with pytest.raises(ValueError, match="'chance' is not known"):
        MetaSchedule(trials=4, proposer="chance")
