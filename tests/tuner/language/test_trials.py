"""Schedules are built and run for real, and kept as MetaSchedule's trials are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernel_spaces import cpu, space_of

from benchmarks.trials.in_process import builder_and_runner
from records import open_store
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.draft_trials import load_draft_trials
from tuner.backends.metaschedule.trials import KeepTrials
from tuner.language.trials import measure_schedules

pytestmark = pytest.mark.tvm


def test_measured_schedules_are_records(tmp_path: Path) -> None:
    url, kernel = str(tmp_path / "records.db"), space_of("dense:4x8x12")
    candidates = candidates_of(kernel.module, kernel.tuned_for)
    rng = np.random.default_rng(0)
    drawn = [each for each in (candidates.sample(rng) for _ in range(3)) if each is not None]
    environment = environment_of(cpu(), MetaSchedule())
    builder, runner = builder_and_runner()
    latencies = measure_schedules(
        kernel.module,
        kernel.tuned_for,
        [each.schedule for each in drawn],
        builder=builder,
        runner=runner,
        keep=KeepTrials(url, kernel.module, kernel.tuned_for, cpu(), environment),
    )
    assert all(each is not None and each > 0 for each in latencies)
    with open_store(url) as store:
        (known,) = load_draft_trials(store, cpu(), environment)
    assert sorted(known.latencies_us) == pytest.approx(sorted(each for each in latencies if each), rel=1e-6)
