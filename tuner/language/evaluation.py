"""Best latency after a number of trials, for three proposers: language model, evolution, random sampling.

All three are measured by the same builder and runner. Evolution is MetaSchedule's, steered by its XGBoost
model from the first 16 trials on (TVM's own default waits for 100); random sampling replays a sketch with
decisions drawn by TVM. Checked in tests/tuner/language/test_evaluation.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from tuner.backends.metaschedule.backend import TrialSettings, tune_kernel
from tuner.language.generation import Generated, generate
from tuner.language.network import Network
from tuner.language.sketches import KernelSpace, Proposal
from tuner.language.trials import measure_proposals, new_samples

Proposer = Literal["language", "evolutionary", "random"]
PROPOSERS: tuple[Proposer, ...] = ("language", "evolutionary", "random")

_WARM_UP_TRIALS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The trials of one kernel by one proposer with one seed.

    Attributes:
        kernel: its name.
        proposer: who chose the trials.
        seed: of what was drawn.
        latencies_us: of each trial in order; infinite where it failed.
        num_legal: trials whose schedule TVM took as it was proposed.
        distinct_ratio: share of generated proposals that were new; 1 for all but the language model.
    """

    kernel: str
    proposer: Proposer
    seed: int
    latencies_us: tuple[float, ...]
    num_legal: int
    distinct_ratio: float = 1.0

    def best_us(self, trials: int) -> float:
        """Return the lowest latency among the first `trials` trials."""
        return min(self.latencies_us[:trials], default=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How trials are built, measured and recorded.

    Attributes:
        builder: TVM's.
        runner: TVM's.
        work_dir: for TVM's logs.
        keeper: makes the callback that records a kernel's trials; None to record none.
    """

    builder: Any
    runner: Any
    work_dir: Path
    keeper: Callable[[KernelSpace], Any] | None = None


def run_proposer(
    proposer: Proposer,
    network: Network,
    space: KernelSpace,
    *,
    trials: int,
    seed: int,
    measuring: Measuring,
    temperature: float = 1.0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Measure trials of a kernel, chosen by one of the proposers.

    Args:
        proposer: who chooses.
        network: of the language model.
        space: of the kernel.
        trials: how many, at least 1; fewer where a small space holds no more.
        seed: of what is drawn, at least 0.
        measuring: builder, runner and records.
        temperature: of the language model.
        on_progress: called with the number measured and the total.
    """
    keep = None if measuring.keeper is None else measuring.keeper(space)
    if proposer == "evolutionary":
        return _run_evolution(space, trials, seed, measuring, keep, on_progress)
    if proposer == "language":
        written = generate(network, space, trials, temperature=temperature, seed=seed)
    else:
        drawn = new_samples(space, trials, (), np.random.default_rng([seed, trials]))
        written = Generated(tuple(drawn), len(drawn))
    measured = measure_proposals(
        space,
        written.proposals,
        builder=measuring.builder,
        runner=measuring.runner,
        keep=keep,
        on_progress=on_progress,
    )
    return Run(
        kernel=space.name,
        proposer=proposer,
        seed=seed,
        latencies_us=tuple(math.inf if each.latency_us is None else each.latency_us for each in measured),
        num_legal=num_legal(space, written.proposals),
        distinct_ratio=written.distinct_ratio,
    )


def num_legal(space: KernelSpace, proposals: Sequence[Proposal]) -> int:
    """Count the proposals that TVM accepts unchanged."""
    return sum(space.schedule(proposal) is not None for proposal in proposals)


def trial_counts(trials: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … up to the number of trials, and that number."""
    powers = [1 << power for power in range(trials.bit_length()) if 1 << power <= trials]
    return tuple(dict.fromkeys([*powers, trials]))


def mean_best_us(runs: Sequence[Run], proposer: Proposer, counts: Sequence[int]) -> tuple[float, ...]:
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

    def __init__(self, latencies_us: list[float], on_batch: Callable[[], None]) -> None:
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
            self.latencies_us.append(statistics.median(seconds) * 1e6 if seconds else math.inf)
        self.on_batch()


def _run_evolution(
    space: KernelSpace,
    trials: int,
    seed: int,
    measuring: Measuring,
    keep: Any | None,
    on_progress: Callable[[int, int], None] | None,
) -> Run:
    latencies_us: list[float] = []
    np.random.seed(seed)  # TVM's model draws from numpy's own generator
    watch = _Watch(latencies_us, lambda: on_progress(len(latencies_us), trials) if on_progress else None)
    tune_kernel(
        space.module,
        space.tuned_for,
        TrialSettings(
            trials=trials,
            work_dir=measuring.work_dir,
            builder=measuring.builder,
            runner=measuring.runner,
            seed=seed + 1,
        ),
        database=meta_schedule.database.MemoryDatabase(),
        cost_model=meta_schedule.cost_model.XGBModel(num_tuning_cores=1, num_warmup_samples=_WARM_UP_TRIALS),
        callbacks=[watch, *([] if keep is None else [keep])],
    )
    return Run(
        kernel=space.name,
        proposer="evolutionary",
        seed=seed,
        latencies_us=tuple(latencies_us),
        num_legal=len(latencies_us),
    )
