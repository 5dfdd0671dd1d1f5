"""Deal a budget of trials to the kernels of a model, in rounds, where they pay end to end.

Every kernel gets a batch first. Each further batch goes to the kernel of the largest expected gain: how often
the model runs it, times a mean of how much its best latency fell over the last three batches and of that
latency over the number of batches so far. The proposers of all kernels live until the budget is spent.
Kernels that are not tiled in levels get nothing. What kernels do to each other's caches is left out, and so
is the code between them. Checked in tests/tuner/backends/metaschedule/test_trial_budget.py.

Source: the gradient of Zheng et al., "Ansor" (OSDI 2020), section 6, without similar tasks and with the
optimistic guess that a kernel's latency falls as one over its batches, as TVM's scheduler has it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from tuner.backends.metaschedule.backend import MetaSchedule, prepare_tuning, tuning_target
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.proposers import BATCH
from tuner.backends.metaschedule.search_strategy import Allowance
from tuner.backends.metaschedule.trials import task_name
from tuner.backends.metaschedule.untuned import is_untuned, keep_untuned
from tuner.graph.relax_types import IRModule
from tuner.targets.target import Target

logger = logging.getLogger(__name__)

_SEED = 1


@dataclass(frozen=True, slots=True)
class WeightedKernel:
    """A kernel of a model.

    Attributes:
        module: whose `main` it is.
        count: how often the model runs it.
    """

    module: IRModule
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtKernel:
    """What a kernel got.

    Attributes:
        count: how often the model runs it.
        trials: measured now.
        first_us: best latency of its first batch; infinite where all of it failed.
        best_us: best latency of all; infinite where none succeeded.
    """

    count: int
    trials: int
    first_us: float
    best_us: float


def deal_trials(
    kernels: Sequence[WeightedKernel],
    budget: int,
    backend: MetaSchedule,
    target: Target,
    *,
    builder: Any,
    runner: Any,
    on_batch: Callable[[int], None] = lambda num_trials: None,
) -> tuple[DealtKernel, ...]:
    """Measure so many trials in all, less those of these kernels that the database holds.

    The database of the backend has them afterwards. Batches are of four trials, so that a budget of less than
    four times the kernels leaves out those with the fewest operations.

    Args:
        kernels: of one model, each once.
        budget: trials of all kernels together, earlier ones included.
        backend: its proposer proposes, its records keep the trials.
        target: what is measured.
        builder: TVM's.
        runner: TVM's.
        on_batch: told after each batch how many trials were measured.

    Returns:
        What each kernel that is tiled in levels got, in the order of operations times count.
    """
    tuned_for = tuning_target(target)
    operations = {
        id(each): sum(
            math.prod(loop.extent for loop in space.kernel.loops)
            for space in candidates_of(each.module, tuned_for).spaces[:1]
        )
        for each in kernels
    }
    tiled = [each for each in kernels if operations[id(each)]]
    tiled.sort(key=lambda each: -each.count * operations[id(each)])
    database = backend.open_database(target)
    names = {task_name(each.module) for each in tiled}
    known = sum(
        str(entry.workload.as_json()[0]) in names and not is_untuned(entry)
        for entry in database.get_all_tuning_records()
    )
    allowance = Allowance(max(0, budget - known))
    if not tiled or not allowance.left:
        return ()
    found = _Found(len(tiled), on_batch, [backend.keepers(each.module, target) for each in tiled])
    prepare_tuning(tuned_for)
    contexts = [
        meta_schedule.TuneContext(
            mod=each.module["main"],
            target=tuned_for,
            space_generator="post-order-apply",
            search_strategy=backend.strategy(each.module, target, allowance=allowance),
            task_name=f"kernel {number}",
            rand_state=_SEED + number,
            num_threads=1,
            logger=logger,
        ).clone()
        for number, each in enumerate(tiled)
    ]
    meta_schedule.tune_tasks(
        tasks=contexts,
        task_weights=[float(each.count) for each in tiled],
        work_dir=str(backend.folder(target) / "logs"),
        max_trials_global=allowance.left,
        num_trials_per_iter=BATCH,
        builder=builder,
        runner=runner,
        database=database,
        cost_model="random",
        measure_callbacks=[*meta_schedule.measure_callback.MeasureCallback.create("default"), found],
        task_scheduler=meta_schedule.task_scheduler.GradientBased(seed=_SEED),
    )
    if target.kind == "cpu":
        for each, num_trials in zip(tiled, found.trials, strict=True):
            if num_trials:
                keep_untuned(each.module, tuned_for, database, builder=builder, runner=runner)
    return tuple(
        DealtKernel(count=each.count, trials=trials, first_us=first_us, best_us=best_us)
        for each, trials, first_us, best_us in zip(
            tiled, found.trials, found.first_us, found.best_us, strict=True
        )
    )


@derived_object
class _Found(meta_schedule.measure_callback.PyMeasureCallback):
    """Sums up what each kernel got, and hands its batches on to its own callbacks."""

    def __init__(
        self, num_kernels: int, on_batch: Callable[[int], None], keepers: Sequence[Sequence[Any]]
    ) -> None:
        super().__init__()
        self.on_batch = on_batch
        self.keepers = keepers
        self.trials = [0] * num_kernels
        self.first_us = [math.inf] * num_kernels
        self.best_us = [math.inf] * num_kernels

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        """Take a batch; called by TVM."""
        for keeper in self.keepers[task_id]:
            keeper.keep(measure_candidates, builder_results, runner_results)
        latencies = [
            1e6 * sum(map(float, each.run_secs)) / len(each.run_secs) if each.run_secs else math.inf
            for each in runner_results
        ]
        if not self.trials[task_id]:
            self.first_us[task_id] = min(latencies)
        self.trials[task_id] += len(latencies)
        self.best_us[task_id] = min(self.best_us[task_id], *latencies)
        self.on_batch(sum(self.trials))
