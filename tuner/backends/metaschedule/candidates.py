"""A kernel's candidates: from rows of numbers to schedules that TVM can build, and back.

Locations that TVM repairs are kept as it repaired them, so that a row says what was really measured.
Checked in tests/tuner/backends/metaschedule/test_candidates.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.schedule import Trace

from cost_model.draft.decision_space import DecisionKind, DecisionSpace, Rows, TiledKernel
from cost_model.draft.gpu_decision_features import within_limits
from tuner.backends.metaschedule.intrinsics import import_intrinsics
from tuner.backends.metaschedule.traces import (
    SAMPLING,
    decisions_of,
    plain_json,
    read_trace,
    tiled_kernel,
)
from tuner.graph.relax_types import IRModule

_DRAWN = 256
"""Rows among which one is sought that keeps a GPU's limits; of a convolution's one in sixteen does."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule that TVM can build.

    Attributes:
        schedule: with all postprocessors applied.
        space: number of the kernel's decision space; None where it is in none.
        row: the candidate in it; None likewise.
    """

    schedule: Any
    space: int | None
    row: npt.NDArray[np.int64] | None

    @property
    def key(self) -> tuple[int, bytes] | None:
        """Equal for equal candidates of a space."""
        return None if self.space is None or self.row is None else (self.space, self.row.tobytes())


class KernelCandidates:
    """The schedules of one kernel.

    Attributes:
        spaces: its decision spaces; none where no sketch is read.
    """

    def __init__(
        self,
        module: IRModule,
        sketches: Sequence[Any],
        postprocessors: Sequence[Any],
    ) -> None:
        """Take what MetaSchedule's rules make of a kernel.

        Args:
            module: whose `main` is the kernel.
            sketches: traces, one for each design space.
            postprocessors: TVM's, which a schedule has to pass.
        """
        self.module = module
        self.sketches = list(sketches)
        self.postprocessors = list(postprocessors)
        self.spaces: list[DecisionSpace] = []
        self._numbers: list[tuple[int, ...]] = []
        self._place: dict[int, tuple[int, int]] = {}
        kernels: dict[str, TiledKernel | None] = {}
        groups: dict[tuple[str, tuple[DecisionKind, ...]], list[tuple[int, int]]] = {}
        for number, trace in enumerate(self.sketches):
            read = read_trace(plain_json(trace.as_json(remove_postproc=True)))
            if read is None:
                continue
            if read.block not in kernels:
                kernels[read.block] = tiled_kernel(module, read.block)
            groups.setdefault((read.block, read.kinds), []).append((number, read.sketch_level))
        for (block, kinds), found in groups.items():
            kernel = kernels[block]
            if kernel is None:
                continue
            for place, (number, _) in enumerate(found):
                self._place[number] = len(self.spaces), place
            self.spaces.append(DecisionSpace(kernel, kinds, tuple(level for _, level in found)))
            self._numbers.append(tuple(number for number, _ in found))

    def make(self, space: int, row: npt.NDArray[np.int64]) -> Candidate | None:
        """Return a row's schedule, its locations as TVM repaired them; None if it is refused."""
        if not _are_allowed(self.spaces[space], row[None])[0]:
            return None
        sketch, decisions = self.spaces[space].decisions_of(row)
        number = self._numbers[space][sketch]
        trace = self.sketches[number]
        instructions = [each for each in trace.insts if each.kind.name in SAMPLING]
        for instruction, decision in zip(instructions, decisions, strict=True):
            value = list(decision) if isinstance(decision, tuple) else decision
            trace = trace.with_decision(instruction, value, remove_postproc=True)
        return self._candidate(number, trace, 1)

    def sample(self, rng: np.random.Generator) -> Candidate | None:
        """Return a random schedule: any sketch, any decisions; None if it is refused.

        TVM draws the decisions, but for a GPU's tiles, of which it would refuse nine in ten.
        """
        number = int(rng.integers(len(self.sketches)))
        if number in self._place and self.spaces[self._place[number][0]].is_for_gpu:
            space, place = self._place[number]
            rows = self.spaces[space].sample(_DRAWN, rng)
            rows[:, 0] = place
            allowed = rows[_are_allowed(self.spaces[space], rows)]
            return self.make(space, allowed[0]) if len(allowed) else None
        seed = int(rng.integers(1, 2**31 - 1))
        return self._candidate(number, Trace(self.sketches[number].insts, {}), seed)

    def _candidate(self, number: int, trace: Any, seed: int) -> Candidate | None:
        schedule = Schedule(self.module, seed=seed)
        try:
            trace.apply_to_schedule(schedule, True)
        except Exception:  # TVM raises whatever its instructions raise
            return None
        space, row = None, None
        if number in self._place:
            space, place = self._place[number]
            row = self.spaces[space].row_of(place, decisions_of(schedule.trace))
        schedule.enter_postproc()
        if not all(each.apply(schedule) for each in self.postprocessors):
            return None
        return Candidate(schedule, space if row is not None else None, row)


def _are_allowed(space: DecisionSpace, rows: Rows) -> npt.NDArray[np.bool_]:
    return within_limits(space, rows) if space.is_for_gpu else np.ones(len(rows), dtype=bool)


def candidates_of(module: IRModule, tuned_for: Any) -> KernelCandidates:
    """Ask TVM's rules for a kernel's sketches on a device; it need not be here.

    Args:
        module: whose `main` is the kernel.
        tuned_for: TVM's target, with its number of cores.
    """
    import_intrinsics(tuned_for)
    context = meta_schedule.TuneContext(
        mod=module, target=tuned_for, space_generator="post-order-apply", rand_state=1
    )
    sketches = [each.trace for each in context.generate_design_space()]
    return KernelCandidates(module, sketches, context.space_generator.postprocs)
