"""Trials of one kernel by one proposer, for `tessel language evaluate` and `benchmarks.proposers`.

All are measured by the same builder and runner through the same search strategy. Evolution is MetaSchedule's,
steered by its XGBoost model from the first 16 trials on (TVM's own default waits for 100). Checked in
tests/tuner/language/test_evaluation.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from tuner.backends.metaschedule.backend import TrialSettings, proposed_trials, tune_kernel
from tuner.backends.metaschedule.proposers import EVOLUTIONARY, Knowledge
from tuner.backends.metaschedule.trials import task_name
from tuner.graph.relax_types import IRModule

_WARM_UP_TRIALS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The trials of one kernel by one proposer with one seed.

    Attributes:
        proposer: who chose the trials.
        seed: of what was drawn.
        latencies_us: of each trial in order; None where it failed.
        seconds: that the run took in all.
        num_known: trials of other kernels that the proposer began with.
    """

    kernel: str
    proposer: str
    seed: int
    latencies_us: tuple[float | None, ...]
    seconds: float = 0.0
    num_known: int = 0

    def best_us(self, trials: int) -> float:
        """Return the lowest latency among the first so many trials; infinite if there is none."""
        return min((each for each in self.latencies_us[:trials] if each is not None), default=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How trials are built, measured and recorded.

    Attributes:
        tuned_for: TVM's target.
        work_dir: for TVM's logs.
        callbacks: told of every batch, such as `KeepTrials`.
    """

    tuned_for: Any
    builder: Any
    runner: Any
    work_dir: Path
    callbacks: tuple[Any, ...] = ()


def measure_trials(
    module: IRModule,
    proposer: str,
    knowledge: Knowledge,
    *,
    trials: int,
    seed: int,
    measuring: Measuring,
    on_trial: Callable[[int], None] = lambda done: None,
) -> tuple[tuple[float | None, ...], Any]:
    """Return the latencies of a kernel's trials in order, None for failures, and TVM's database of them.

    Args:
        module: whose `main` is the kernel.
        proposer: who chooses the trials.
        knowledge: what it begins with; evolution begins with nothing.
        trials: how many; fewer where a small space holds no more.
        seed: of what is drawn, at least 0.
        measuring: builder and runner.
        on_trial: told after each batch how many trials are done.
    """
    latencies: list[float | None] = []
    database = meta_schedule.database.MemoryDatabase()
    is_evolution = proposer == EVOLUTIONARY
    np.random.seed(seed)  # TVM's model draws from numpy's own generator
    tune_kernel(
        module,
        measuring.tuned_for,
        TrialSettings(
            trials=trials,
            work_dir=measuring.work_dir,
            builder=measuring.builder,
            runner=measuring.runner,
            seed=seed + 1,
            strategy=EVOLUTIONARY
            if is_evolution
            else proposed_trials(proposer, task_name(module), knowledge, seed=seed),
        ),
        database=database,
        cost_model=meta_schedule.cost_model.XGBModel(num_tuning_cores=1, num_warmup_samples=_WARM_UP_TRIALS)
        if is_evolution
        else None,
        callbacks=[_Watch(latencies, lambda: on_trial(len(latencies))), *measuring.callbacks],
    )
    return tuple(latencies), database


def trial_counts(trials: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … up to the number of trials, and that number."""
    powers = [1 << power for power in range(trials.bit_length()) if 1 << power <= trials]
    return tuple(dict.fromkeys([*powers, trials]))


def mean_best_us(runs: Sequence[Run], proposer: str, counts: Sequence[int]) -> tuple[float, ...]:
    """Return the best latency after each number of trials: median over seeds, geometric mean over kernels."""
    by_kernel: dict[str, list[Run]] = {}
    for run in runs:
        if run.proposer == proposer:
            by_kernel.setdefault(run.kernel, []).append(run)
    return tuple(
        statistics.geometric_mean(
            statistics.median(run.best_us(count) for run in found) for found in by_kernel.values()
        )
        for count in counts
    )


@derived_object
class _Watch(meta_schedule.measure_callback.PyMeasureCallback):
    """Collects the latencies of trials in order."""

    def __init__(self, latencies_us: list[float | None], on_batch: Callable[[], None]) -> None:
        super().__init__()
        self.latencies_us = latencies_us
        self.on_batch = on_batch

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        """Take a batch."""
        for result in runner_results:
            seconds = [float(each) for each in (result.run_secs or ())]
            self.latencies_us.append(statistics.median(seconds) * 1e6 if seconds else None)
        self.on_batch()
