"""A cost model for MetaSchedule that starts from the records: trials of other kernels and earlier sessions.

TVM's own model knows the kernel at hand alone, and answers at random until a hundred of its trials are
measured. This one orders schedules from the first trial on where the records hold trials of any kernels, and
is trained again with each batch of the current kernel's. Among similar candidates, all but the best are
discounted, because TVM measures the highest scores as one batch. Where the records hold too few trials, it
answers at random as TVM's does. Checked in tests/tuner/backends/metaschedule/test_cost_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule
from tvm_ffi import structural_hash

from cost_model.schedule_batch import ScheduleBatch
from cost_model.schedule_model import MIN_TRIALS, ScheduleModel, Trials, rows_of, train_schedule_model
from tuner.backends.metaschedule.trials import features_of


@derived_object
class RecordsCostModel(meta_schedule.cost_model.PyCostModel):
    """Scores the candidates of one kernel; larger is better."""

    def __init__(self, task: str, known: Sequence[Trials], *, seed: int = 0) -> None:
        """Train on what is known.

        Args:
            task: names the kernel that is tuned.
            known: trials of any kernels, this one's earlier ones too.
            seed: seed of the trees, and of random answers.
        """
        super().__init__()
        self.task = task
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.others = [trials for trials in known if trials.task != task]
        own = [trials for trials in known if trials.task == task]
        self.features = [each for trials in own for each in trials.features]
        self.latencies_us = [each for trials in own for each in trials.latencies_us]
        self.batch = ScheduleBatch()
        self.model = self.train()

    def train(self) -> ScheduleModel | None:
        """Return a model of all trials so far; None while there are too few."""
        own = Trials(self.task, tuple(self.features), tuple(self.latencies_us))
        if len(own.latencies_us) + sum(len(trials.latencies_us) for trials in self.others) < MIN_TRIALS:
            return None
        return train_schedule_model([*self.others, own], current=self.task, seed=self.seed)

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from a batch of trials; failures teach nothing."""
        for features, result in zip(features_of(context, candidates), results, strict=True):
            if len(features) and result.run_secs:
                self.features.append(features)
                self.latencies_us.append(float(np.median([float(each) for each in result.run_secs])) * 1e6)
        self.batch = ScheduleBatch()
        self.model = self.train()

    def predict(self, context: Any, candidates: Sequence[Any]) -> npt.NDArray[np.float64]:
        """Return a score for each candidate, shape (num_candidates,)."""
        if self.model is None:
            return self.rng.random(len(candidates))
        features = features_of(context, candidates)
        scores = np.full(len(candidates), -np.inf)  # a program without stores computes nothing
        scored = [index for index, each in enumerate(features) if len(each)]
        rows = rows_of([features[index] for index in scored])
        names = [str(structural_hash(candidates[index].sch.mod)) for index in scored]
        scores[scored] = self.batch.lower(names, rows, self.model.score_rows(rows))
        return scores

    def load(self, path: str) -> None:
        """Do nothing: the records are what it is made from."""

    def save(self, path: str) -> None:
        """Do nothing: the records are what it is made from."""
