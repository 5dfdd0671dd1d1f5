"""Trials run in one process that stays, with threads of its own; one that crashes it fails alone."""

from __future__ import annotations

import os

import numpy as np
import pytest
from kernel_spaces import space_of

from tuner.backends.metaschedule import trial_worker
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.language.trials import measure_schedules

pytestmark = pytest.mark.tvm


@pytest.mark.slow
def test_trials_are_measured_in_a_process_that_may_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = space_of("dense:4x8x12")
    candidates = candidates_of(kernel.module, kernel.tuned_for)
    rng = np.random.default_rng(0)
    drawn = [each.schedule for each in (candidates.sample(rng) for _ in range(3)) if each is not None]
    builder, runner = trial_worker.builder_and_runner(3)

    def measure(schedules: list[object]) -> list[float | None]:
        return measure_schedules(kernel.module, kernel.tuned_for, schedules, builder=builder, runner=runner)

    assert all(each is not None and each > 0 for each in measure(drawn[:2]))
    with monkeypatch.context() as patch:
        # A lambda travels to the process by value, where this module cannot be imported.
        patch.setattr(
            trial_worker, "build_and_time", lambda module, target: [float(os.environ["TVM_NUM_THREADS"])]
        )
        assert measure(drawn[:1]) == [3e6]
        patch.setattr(trial_worker, "build_and_time", lambda module, target: os._exit(11))
        assert measure(drawn[:1]) == [None]
    (last,) = measure(drawn[2:])
    assert last is not None
