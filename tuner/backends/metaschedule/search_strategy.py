"""A search strategy of MetaSchedule that measures what a proposer proposes, in small batches.

TVM builds, runs and keeps the trials as for its own strategies; only who proposes them is another. Checked in
tests/tuner/backends/metaschedule/test_search_strategy.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from tuner.backends.metaschedule.candidates import Candidate, KernelCandidates
from tuner.backends.metaschedule.proposers import Proposer
from tuner.graph.relax_types import IRModule


@derived_object
class ProposedTrials(meta_schedule.search_strategy.PySearchStrategy):
    """Asks a proposer for each batch of a kernel, and tells it what the trials took."""

    def __init__(self, start: Callable[[KernelCandidates], Proposer]) -> None:
        """Take what makes the proposer once the kernel's sketches are known."""
        super().__init__()
        self.start = start
        self.module: IRModule | None = None
        self.postprocessors: list[Any] = []
        self.proposer: Proposer | None = None
        self.arguments: Any = None
        self.pending: list[Candidate] = []
        self.num_left = 0
        self.batch = 0

    def _initialize_with_tune_context(self, context: Any) -> None:
        """Take the kernel; called by TVM."""
        self.module = context.mod
        self.postprocessors = list(context.space_generator.postprocs)

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Sequence[Any],
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        """Begin; called by TVM."""
        sketches = [each.trace for each in design_spaces]
        self.proposer = self.start(KernelCandidates(self.module, sketches, self.postprocessors))
        self.arguments = meta_schedule.arg_info.ArgInfo.from_entry_func(self.module)
        self.num_left, self.batch = int(max_trials), int(num_trials_per_iter)

    def post_tuning(self) -> None:
        """End; called by TVM."""
        self.proposer = None

    def generate_measure_candidates(self) -> list[Any] | None:
        """Return the next batch; None when there is none."""
        assert self.proposer is not None, "TVM begins before it asks"
        wanted = min(self.batch, self.num_left)
        self.pending = self.proposer.propose(wanted) if wanted > 0 else []
        self.num_left -= len(self.pending)
        if not self.pending:
            return None
        return [meta_schedule.MeasureCandidate(each.schedule, self.arguments) for each in self.pending]

    def notify_runner_results(self, measure_candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Tell the proposer what the batch took; called by TVM."""
        assert self.proposer is not None, "TVM begins before it tells"
        latencies = []
        for result in results:
            seconds = [float(each) for each in (result.run_secs or ())]
            latencies.append(statistics.median(seconds) * 1e6 if seconds else math.inf)
        # Nothing is learnt from the last batch: there is nobody to use it.
        if self.num_left > 0:
            self.proposer.learn(self.pending, latencies)
        self.pending = []

    def clone(self) -> Any:
        """Return a strategy for another kernel."""
        return ProposedTrials(self.start)
