"""The draft model as a cost model of MetaSchedule's evolution: it ranks candidates by their decisions.

It knows the trials of other kernels from the first candidate on, and is trained again with each batch of the
kernel at hand. Candidates that are not tiled in levels get the lowest score of all, or random ones where none
is. Checked in tests/tuner/backends/metaschedule/test_draft_cost_model.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule
from tvm_ffi import structural_hash

from cost_model.draft.decision_features import decision_features
from cost_model.draft.decision_space import DecisionKind, DecisionSpace
from cost_model.draft.draft_model import MIN_TRIALS, DraftModel, DraftTrials, train_draft_model
from cost_model.schedule_batch import ScheduleBatch
from tuner.backends.metaschedule.proposers import Knowledge
from tuner.backends.metaschedule.traces import plain_json, read_trace, tiled_kernel
from tuner.graph.relax_types import IRModule

_LEVELS = (0, 1, 2, 3, 4)
"""In which level of SSRSRS's spatial tiles what follows may be computed; 0 is in none."""


@derived_object
class DraftCostModel(meta_schedule.cost_model.PyCostModel):
    """Scores the candidates of one kernel; larger is better."""

    def __init__(self, task: str, module: IRModule, knowledge: Knowledge, *, seed: int = 0) -> None:
        """Train on what is known, unless a model of it is shared.

        Args:
            task: names the kernel that is tuned.
            module: whose `main` it is.
            knowledge: trials of any kernels.
            seed: of the trees, and of random answers.
        """
        super().__init__()
        self.task = task
        self.module = module
        self.knowledge = knowledge
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.spaces: dict[tuple[str, tuple[DecisionKind, ...]], DecisionSpace | None] = {}
        self.own: list[tuple[DecisionSpace, npt.NDArray[np.int64], float]] = []
        self.batch = ScheduleBatch()
        self.model = knowledge.shared_draft(task) or self.train()

    def train(self) -> DraftModel | None:
        """Return a model of all trials so far; None while there are too few."""
        trials = list(self.knowledge.trials)
        for space in {id(each[0]): each[0] for each in self.own}.values():
            mine = [each for each in self.own if each[0] is space]
            rows = np.stack([row for _, row, _ in mine])
            trials.append(DraftTrials(self.task, space, rows, tuple(latency for _, _, latency in mine)))
        if sum(len(each.rows) for each in trials) < MIN_TRIALS:
            return None
        return train_draft_model(
            trials,
            caches=self.knowledge.caches,
            device_model=self.knowledge.device_model,
            current=self.task,
            seed=self.seed,
        )

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from a batch of trials, failures too."""
        for candidate, result in zip(candidates, results, strict=True):
            found = self._row_of(candidate)
            if found is not None:
                seconds = [float(each) for each in (result.run_secs or ())]
                self.own.append((*found, float(np.median(seconds)) * 1e6 if seconds else math.inf))
        self.batch = ScheduleBatch()
        self.model = self.train()

    def predict(self, context: Any, candidates: Sequence[Any]) -> npt.NDArray[np.float64]:
        """Return a score for each candidate, shape (num_candidates,)."""
        found = [self._row_of(candidate) for candidate in candidates]
        if self.model is None or not any(each is not None for each in found):
            return self.rng.random(len(candidates))
        scores = np.full(len(candidates), -np.inf)
        for space in {id(each[0]): each[0] for each in found if each is not None}.values():
            places = [index for index, each in enumerate(found) if each is not None and each[0] is space]
            rows = np.stack([each[1] for each in found if each is not None and each[0] is space])
            features = decision_features(space, rows, self.model.caches)
            speeds = np.exp(self.model.predict_features(features).mean)
            names = [str(structural_hash(candidates[index].sch.mod)) for index in places]
            scores[places] = self.batch.lower(names, features, speeds)
        scores[np.isneginf(scores)] = scores[np.isfinite(scores)].min()
        return scores

    def _row_of(self, candidate: Any) -> tuple[DecisionSpace, npt.NDArray[np.int64]] | None:
        read = read_trace(plain_json(candidate.sch.trace.as_json(remove_postproc=True)))
        if read is None or read.is_gpu or read.sketch_level not in _LEVELS:
            return None
        key = read.block, read.kinds
        if key not in self.spaces:
            kernel = tiled_kernel(self.module, read.block)
            self.spaces[key] = None if kernel is None else DecisionSpace(kernel, read.kinds, _LEVELS)
        space = self.spaces[key]
        row = None if space is None else space.row_of(read.sketch_level, read.decisions)
        return None if space is None or row is None else (space, row)

    def load(self, path: str) -> None:
        """Do nothing: the records are what it is made from."""

    def save(self, path: str) -> None:
        """Do nothing: the records are what it is made from."""
