"""Runs of one kernel by one proposer with one seed, and the files that keep them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from benchmarks.trials.in_process import Clock, builder_and_runner
from tuner.backends.metaschedule.backend import TrialSettings, proposed_trials, tune_kernel
from tuner.backends.metaschedule.proposers import EVOLUTIONARY, Knowledge
from tuner.backends.metaschedule.trials import task_name
from tuner.graph.relax_types import IRModule

_WARM_UP_TRIALS = 16
"""Trials after which evolution's own model orders schedules; TVM's default is 100."""


@dataclass(frozen=True, slots=True)
class Run:
    """The trials of one kernel by one proposer with one seed.

    Attributes:
        kernel: its name.
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
    seconds: float
    num_known: int

    def best_us(self, trials: int) -> float:
        """Return the lowest latency among the first so many trials; infinite if there is none."""
        return min((each for each in self.latencies_us[:trials] if each is not None), default=math.inf)


def path_of(folder: Path, kernel: str, proposer: str, seed: int, trials: int) -> Path:
    """Return the file of a run."""
    plain = "".join(letter if letter.isalnum() else "_" for letter in kernel)
    return folder / f"{plain}-{proposer}-{trials}-{seed}.json"


def save_run(path: Path, run: Run) -> None:
    """Write a run; the file appears whole."""
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(asdict(run)))
    whole.rename(path)


def load_runs(folder: Path) -> list[Run]:
    """Read every run of a folder."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json"))]
    return [Run(**{**each, "latencies_us": tuple(each["latencies_us"])}) for each in found]


def measure_trials(
    module: IRModule,
    tuned_for: Any,
    proposer: str,
    knowledge: Knowledge,
    *,
    trials: int,
    seed: int,
    clock: Clock,
    work_dir: Path,
) -> tuple[list[float | None], Any]:
    """Return the latencies of a kernel's trials in order, and TVM's database of them.

    Args:
        module: whose `main` is the kernel.
        tuned_for: TVM's target.
        proposer: who chooses the trials.
        knowledge: what it begins with; evolution begins with nothing.
        trials: how many.
        seed: of what is drawn, at least 0.
        clock: what times a trial.
        work_dir: for TVM's logs.
    """
    builder, runner = builder_and_runner(clock)
    latencies: list[float | None] = []
    database = meta_schedule.database.MemoryDatabase()
    is_evolution = proposer == EVOLUTIONARY
    np.random.seed(seed)  # TVM's model draws from numpy's own generator
    strategy = (
        EVOLUTIONARY if is_evolution else proposed_trials(proposer, task_name(module), knowledge, seed=seed)
    )
    tune_kernel(
        module,
        tuned_for,
        TrialSettings(
            trials=trials,
            work_dir=work_dir,
            builder=builder,
            runner=runner,
            seed=seed + 1,
            strategy=strategy,
        ),
        database=database,
        cost_model=meta_schedule.cost_model.XGBModel(num_tuning_cores=1, num_warmup_samples=_WARM_UP_TRIALS)
        if is_evolution
        else None,
        callbacks=[_Watch(latencies)],
    )
    return latencies, database


@derived_object
class _Watch(meta_schedule.measure_callback.PyMeasureCallback):
    """Collects the latencies of trials in order."""

    def __init__(self, latencies_us: list[float | None]) -> None:
        super().__init__()
        self.latencies_us = latencies_us

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
