"""Trials that the records hold, as the draft model learns from them. Checked in
tests/tuner/backends/metaschedule/test_draft_trials.py."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from tvm.s_tir import meta_schedule

from cost_model.draft.decision_features import Caches
from cost_model.draft.decision_space import (
    Decision,
    DecisionKind,
    DecisionSpace,
    TiledKernel,
)
from cost_model.draft.draft_model import DraftTrials
from records import Environment, RecordStore, Status
from records.files.metaschedule import BACKEND, trial_of
from tuner.backends.metaschedule.traces import TracedSketch, read_trace, tiled_kernel
from tuner.graph.relax_types import IRModule
from tuner.targets.target import Target

logger = logging.getLogger(__name__)

_CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20}


class TrialReader:
    """Reads the trials of every kernel that is tiled in levels, on one device with so many threads.

    It may be asked again and again: what it has read it keeps, and a later call reads only the records that
    were added since. What is removed from the records meanwhile stays known, and so may a record stay unseen
    that another process of a server's database began to write before one that was seen.
    """

    def __init__(self, target: Target, environment: Environment) -> None:
        """Take whose records count: those of this target, device and threads; versions do not matter."""
        self.target = target
        self.environment = environment
        self._last_id = 0
        self._kernels: dict[str, _KernelTrials] = {}
        self._trials: tuple[DraftTrials, ...] = ()

    def read(self, store: RecordStore) -> tuple[DraftTrials, ...]:
        """Return all trials that the store holds by now; the same object where there are no new ones.

        Raises:
            RecordError: the records cannot be read.
        """
        here = self.environment.device_model, self.environment.num_threads
        is_new = False
        for record in store.iterate(
            backend=BACKEND, target=self.target.text, role="task", after_id=self._last_id
        ):
            self._last_id = record.record_id
            where = record.measurement.environment
            trial = trial_of(record) if (where.device_model, where.num_threads) == here else None
            if trial is None or not record.measurement.tells_of_program:
                continue
            known = self._kernels.setdefault(trial.task, _KernelTrials(trial.task, trial.module))
            is_ok = record.measurement.status is Status.OK
            known.add(trial.trace, record.measurement.latency_us if is_ok else math.inf)
            is_new = True
        if is_new:
            self._trials = tuple(each for trials in self._kernels.values() for each in trials.by_space())
        return self._trials


def load_draft_trials(
    store: RecordStore, target: Target, environment: Environment
) -> tuple[DraftTrials, ...]:
    """Return the trials of every kernel that is tiled in levels, on this device with so many threads.

    Args:
        target: whose records count.
        environment: whose device and threads count; its versions do not.

    Raises:
        RecordError: the records cannot be read.
    """
    return TrialReader(target, environment).read(store)


def caches_of_this_machine(num_cores: int) -> Caches:
    """Return the sizes of this processor's caches, as Linux reports them; usual ones where it does not."""
    usual = Caches(num_cores=num_cores)
    sizes: dict[int, int] = {}
    for folder in sorted(_CACHE_FOLDER.glob("index*")):
        try:
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                sizes[int(level)] = int(size[:-1]) * _UNITS[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    try:
        return Caches(sizes[1], sizes[2], sizes.get(3, sizes[2]), num_cores=num_cores)
    except (KeyError, ValueError):
        return usual


class _KernelTrials:
    """The trials of one kernel as they are read."""

    def __init__(self, task: str, module: str) -> None:
        self.task = task
        self.read: list[tuple[TracedSketch, float]] = []
        self.found: list[DraftTrials] | None = None
        self.kernels: dict[str, TiledKernel | None] = {}
        self.load: Callable[[], IRModule] = lambda: (
            meta_schedule.database.Workload.from_json([task, module]).mod
        )

    def add(self, trace: str, latency_us: float) -> None:
        try:
            read = read_trace(json.loads(trace))
        except (ValueError, RecursionError):
            return
        if read is not None:
            self.read.append((read, latency_us))
            self.found = None

    def by_space(self) -> list[DraftTrials]:
        """Return the trials by decision space; those of a kernel that TVM cannot read are left out."""
        if self.found is None:
            self.found = self._by_space()
        return self.found

    def _by_space(self) -> list[DraftTrials]:
        groups: dict[tuple[str, tuple[DecisionKind, ...]], list[tuple[TracedSketch, float]]] = {}
        for each in self.read:
            groups.setdefault((each[0].block, each[0].kinds), []).append(each)
        try:
            self._know({block for block, _ in groups})
        except Exception as error:  # TVM raises whatever its readers raise, and records may be a stranger's
            logger.debug("kernel %s cannot be read: %s", self.task, error)
            return []
        found = []
        for (block, kinds), trials in groups.items():
            kernel = self.kernels[block]
            if kernel is not None:
                found += _space_trials(self.task, kernel, kinds, trials)
        return found

    def _know(self, blocks: Collection[str]) -> None:
        """Ask TVM for the tensors of blocks that are not known yet."""
        unknown = sorted(set(blocks) - set(self.kernels))
        if unknown:
            module: Any = self.load()
            self.kernels |= {block: tiled_kernel(module, block) for block in unknown}


def _space_trials(
    task: str,
    kernel: TiledKernel,
    kinds: tuple[DecisionKind, ...],
    trials: list[tuple[TracedSketch, float]],
) -> list[DraftTrials]:
    levels = tuple(sorted({read.sketch_level for read, _ in trials}))
    try:
        space = DecisionSpace(kernel, kinds, levels)
    except ValueError as error:
        logger.debug("trials of kernel %s are left out: %s", task, error)
        return []
    latest: dict[tuple[int, tuple[Decision, ...]], float] = {}
    for read, latency_us in trials:
        latest[levels.index(read.sketch_level), read.decisions] = latency_us
    rows, latencies = [], []
    for (sketch, decisions), latency_us in latest.items():
        row = space.row_of(sketch, decisions)
        if row is not None:
            rows.append(row)
            latencies.append(latency_us)
    if not rows:
        return []
    return [DraftTrials(task, space, np.stack(rows), tuple(latencies))]
