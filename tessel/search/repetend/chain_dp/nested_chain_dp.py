"""Whether a repetend of a given period exists for nested stage pairs, by dynamic programming from the inside
out.

For each assignment of slots to the fixed blocks, the stage pairs are built one around the other. A
stage pair's state is the slots (p, q) of its opening and its closing in the period; its value the least steps
from one to the other. Less is never worse: the next stage pair around can wait, and less is held in memory.
So one number per state is enough, and the answer is exact.

Cost: O(assignments x stage pairs x period²), so it is for small periods and any number of devices;
`branch_and_bound` is for large ones and few devices. Checked in
tests/tessel/search/repetend/chain_dp/test_nested_chain_dp.py against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tessel.search.model.problem import IntArray
from tessel.search.repetend.branch_and_bound import Feasibility
from tessel.search.repetend.chain_dp.chain_structure import NestedChain, Path
from tessel.search.repetend.chain_dp.nested_chain_kernel import StagePairArrays, first_fitting, list_slots
from tessel.search.repetend.cyclic_problem import CyclicProblem

MAX_ASSIGNMENTS = 500_000
"""Moments of the fixed blocks that are listed at most: four blocks in a period of some 80."""

MAX_SLOTS_TRIED = 5_000_000
"""Slots that are tried for that list at most: some tenths of a second."""

OPERATIONS_A_WORK_UNIT = 1
"""Charged for a unit of the work that the search counts."""

OPERATIONS_AN_ASSIGNMENT = 300
"""Charged for each assignment that is listed."""

OPERATIONS_A_TRY = 50
"""Charged for each slot that is tried for the list, where that is more."""

MAX_WORK_EACH = 300_000_000
"""Work of one assignment up to which it is begun, as nothing ends it; its states take as many bytes."""

MAX_TOTAL_WORK = 20_000_000_000
"""Units of work of a whole search up to which it is begun: some twenty seconds."""


@dataclass(slots=True)
class NestedChainSearch:
    """The search of one period, which remembers where it stopped; same interface as `OrderSearch`.

    Attributes:
        cyclic: the rules.
        nested: the same as stage pairs.
        starts: int64, shape (num_nodes,), once the answer is `FEASIBLE`.
        is_stuck: whether there are too many assignments to begin.
        operations: to charge for what it has done so far.
    """

    cyclic: CyclicProblem
    nested: NestedChain
    period: int
    starts: IntArray | None = None
    is_stuck: bool = False
    operations: int = 0
    answer: Feasibility = Feasibility.UNKNOWN
    method: ClassVar[str] = "dynamic programming over nested stages"
    _arrays: StagePairArrays | None = None
    _assignments: IntArray | None = None
    _next: int = 0

    def run(self, max_work: int) -> Feasibility:
        """Continue within about this work budget, and return what is known then."""
        if self.answer is not Feasibility.UNKNOWN or self.is_stuck:
            return self.answer
        if self._arrays is None or self._assignments is None:
            self._begin()
        if self._arrays is None or self._assignments is None:
            return self.answer
        last = min(len(self._assignments), self._next + 1 + max_work // self._work_each)
        found = first_fitting(self._arrays, self._assignments, self._next, last)
        num_tried = (found + 1 if found >= 0 else last) - self._next
        self.operations += num_tried * self._work_each * OPERATIONS_A_WORK_UNIT
        self._next = last
        if found >= 0:
            self.starts = _starts(
                self.cyclic, self.nested, self.period, self._assignments[found], self._arrays.steps
            )
            self.answer = Feasibility.FEASIBLE
        elif last == len(self._assignments):
            self.answer = Feasibility.INFEASIBLE
        return self.answer

    @property
    def _work_each(self) -> int:
        return 8 * len(self.nested.stage_pairs) * self.period**2

    def _begin(self) -> None:
        if self._work_each > MAX_WORK_EACH:
            self.is_stuck = True
            return
        fixed = np.array(self.nested.fixed, dtype=np.int64)
        overlapping = self.cyclic.problem.on_device[fixed].astype(np.int64)
        assignments, tried = list_slots(
            self.cyclic.spans[fixed],
            overlapping @ overlapping.T,
            self.period,
            MAX_ASSIGNMENTS,
            MAX_SLOTS_TRIED,
        )
        self.operations += max(len(assignments) * OPERATIONS_AN_ASSIGNMENT, tried * OPERATIONS_A_TRY)
        is_too_long = tried > MAX_SLOTS_TRIED or len(assignments) > MAX_ASSIGNMENTS
        if is_too_long or len(assignments) * self._work_each > MAX_TOTAL_WORK:
            self.is_stuck = True
            return
        self._assignments = assignments
        self._arrays = _arrays_of(self.cyclic, self.nested, self.period)


def _arrays_of(cyclic: CyclicProblem, nested: NestedChain, period: int) -> StagePairArrays:
    problem, stage_pairs = cyclic.problem, nested.stage_pairs
    paths = [
        path
        for stage_pair in stage_pairs
        for path in (stage_pair.path_in, stage_pair.path_out or Path((), (0,)))
    ]
    devices = [problem.devices[stage_pair.opening] for stage_pair in stage_pairs]
    held = [
        [index for index, here in enumerate(devices) if device in here]
        for device in range(problem.num_devices)
    ]
    return StagePairArrays(
        period=period,
        spans=cyclic.spans,
        fixed=_integers(nested.fixed),
        opening=_integers(stage_pair.opening for stage_pair in stage_pairs),
        closing=_integers(stage_pair.closing for stage_pair in stage_pairs),
        inner=_integers(-1 if stage_pair.inner is None else stage_pair.inner for stage_pair in stage_pairs),
        path_start=_starts_of([len(path.steps) for path in paths]),
        path_between=_integers(block for path in paths for block in (*path.between, -1)),
        path_steps=_integers(steps for path in paths for steps in path.steps),
        device_start=_starts_of([len(here) for here in devices]),
        devices=_integers(device for here in devices for device in here),
        on_device=problem.on_device.astype(np.int64),
        held_start=_starts_of([len(here) for here in held]),
        held=_integers(index for here in held for index in here),
        units=_integers(int(problem.memory[stage_pair.opening]) for stage_pair in stage_pairs),
        limits=problem.limits,
        steps=np.zeros((len(stage_pairs), period, period), dtype=np.int64),
    )


def _integers(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, dtype=np.int64)


def _starts_of(lengths: Sequence[int]) -> IntArray:
    return np.cumsum([0, *lengths], dtype=np.int64)


def _starts(
    cyclic: CyclicProblem, nested: NestedChain, period: int, slots: IntArray, steps: IntArray
) -> IntArray:
    """Go back from the outermost stage pairs inwards, choosing slots whose steps add up."""
    fixed_slot = dict(zip(nested.fixed, map(int, slots), strict=True))
    starts = np.zeros(cyclic.num_nodes, dtype=np.int64)
    for block, slot in fixed_slot.items():
        starts[block] = slot
    enclosed = {stage_pair.inner for stage_pair in nested.stage_pairs}
    for outermost in range(len(nested.stage_pairs)):
        if outermost not in enclosed:
            _place_chain(nested, outermost, period, fixed_slot, steps, starts)
    return starts


def _place_chain(
    nested: NestedChain,
    index: int,
    period: int,
    fixed_slot: dict[int, int],
    steps: IntArray,
    starts: IntArray,
) -> None:
    """Place an outermost stage pair and all inside it; blocks already placed move the chain by whole
    periods."""
    p, q = (int(place) for place in np.unravel_index(np.argmin(steps[index]), steps[index].shape))
    placed: dict[int, int] = {}
    opens, closes = p, p + int(steps[index, p, q])
    while True:
        stage_pair = nested.stage_pairs[index]
        placed[stage_pair.opening], placed[stage_pair.closing] = opens, closes
        if stage_pair.inner is None or stage_pair.path_out is None:
            _walk(stage_pair.path_in, opens, fixed_slot, period, placed)
            break
        inner_opens, inner_closes = _inner_slots(
            stage_pair.path_in,
            stage_pair.path_out,
            opens,
            closes,
            steps[stage_pair.inner],
            fixed_slot,
            period,
        )
        _walk(stage_pair.path_in, opens, fixed_slot, period, placed)
        _walk(stage_pair.path_out, inner_closes, fixed_slot, period, placed)
        index, opens, closes = stage_pair.inner, inner_opens, inner_closes
    root = nested.stage_pairs[index].opening
    shift = starts[root] - placed[root] if root in fixed_slot else 0
    for block, start in placed.items():
        starts[block] = start + shift


def _inner_slots(
    path_in: Path,
    path_out: Path,
    opens: int,
    closes: int,
    inner: IntArray,
    fixed_slot: dict[int, int],
    period: int,
) -> tuple[int, int]:
    """Return starts of the inner opening and closing, as close as fit between those of the stage pair
    around."""
    for place in np.argsort(inner, axis=None, kind="stable").tolist():
        p, q = divmod(place, period)
        inner_opens = _walk(path_in, opens, fixed_slot, period, {})
        inner_opens += (p - inner_opens) % period
        inner_closes = inner_opens + int(inner[p, q])
        if _walk(path_out, inner_closes, fixed_slot, period, {}) <= closes:
            return inner_opens, inner_closes
    raise AssertionError("the steps of a stage_pair come from the one inside it")


def _walk(path: Path, start: int, fixed_slot: dict[int, int], period: int, placed: dict[int, int]) -> int:
    """Go along a path as early as its fixed blocks allow; return when its end may start."""
    for block, steps in zip(path.between, path.steps[:-1], strict=True):
        start += steps
        start += (fixed_slot[block] - start) % period
        placed[block] = start
    return start + path.steps[-1]
