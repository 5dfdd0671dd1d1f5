"""Whether a repetend of a given period exists for nested shells, by dynamic programming from the inside out.

For each assignment of moments to the fixed blocks, the shells are built one around the other. A shell's state
is the moments (p, q) of its opening and its closing in the period; its value the least steps from one to the
other. Less is never worse: the next shell around can wait, and less is held in memory. So one number per
state is enough, and the answer is exact.

Cost: O(assignments x shells x period²), so it is for small periods and any number of devices; `cyclic_orders`
is for large ones and few devices. Checked in tests/tessel/search/test_period_nested.py against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tessel.search.model.problem import Integers
from tessel.search.repetend.branch_and_bound import Answer
from tessel.search.repetend.chain_structure import NestedShells, Way
from tessel.search.repetend.cyclic_problem import CyclicProblem
from tessel.search.repetend.nested_chain_kernel import first_fitting, list_moments

MOST_ASSIGNMENTS = 500_000
"""Moments of the fixed blocks that are listed at most: four blocks in a period of some 80."""

OPERATIONS_A_STEP = 1
"""Charged for an elementary step."""

OPERATIONS_AN_ASSIGNMENT = 300
"""Charged for each assignment that is listed."""

MOST_TOTAL_STEPS = 20_000_000_000
"""Elementary steps of a whole search up to which it is begun: some twenty seconds."""


@dataclass(slots=True)
class NestedSearch:
    """The search of one period, which remembers where it stopped; same interface as `OrderSearch`.

    Attributes:
        cyclic: the rules.
        nested: the same as shells.
        period: the period tried.
        starts: int64, shape (num_nodes,), once the answer is `FEASIBLE`.
        is_stuck: whether there are too many assignments to begin.
        operations: to charge for what it has done so far.
    """

    cyclic: CyclicProblem
    nested: NestedShells
    period: int
    starts: Integers | None = None
    is_stuck: bool = False
    operations: int = 0
    answer: Answer = Answer.UNKNOWN
    method: ClassVar[str] = "dynamic programming over nested stages"
    _arrays: _Arrays | None = None
    _assignments: Integers | None = None
    _next: int = 0

    def run(self, max_steps: int) -> Answer:
        """Search on for about that many elementary steps, and return what is known then."""
        if self.answer is not Answer.UNKNOWN or self.is_stuck:
            return self.answer
        if self._arrays is None or self._assignments is None:
            self._begin()
        if self._arrays is None or self._assignments is None:
            return self.answer
        last = min(len(self._assignments), self._next + 1 + max_steps // self._steps_each)
        found, steps = self._arrays.first_fitting(self._assignments, self._next, last)
        num_tried = (found + 1 if found >= 0 else last) - self._next
        self.operations += num_tried * self._steps_each * OPERATIONS_A_STEP
        self._next = last
        if found >= 0:
            self.starts = _starts(self.cyclic, self.nested, self.period, self._assignments[found], steps)
            self.answer = Answer.FEASIBLE
        elif last == len(self._assignments):
            self.answer = Answer.INFEASIBLE
        return self.answer

    @property
    def _steps_each(self) -> int:
        return 8 * len(self.nested.shells) * self.period**2

    def _begin(self) -> None:
        if self._steps_each > MOST_TOTAL_STEPS:
            self.is_stuck = True
            return
        fixed = np.array(self.nested.fixed, dtype=np.int64)
        overlapping = self.cyclic.problem.on_device[fixed].astype(np.int64)
        assignments = list_moments(
            self.cyclic.spans[fixed], overlapping @ overlapping.T, self.period, MOST_ASSIGNMENTS
        )
        self.operations += len(assignments) * OPERATIONS_AN_ASSIGNMENT
        if len(assignments) > MOST_ASSIGNMENTS or len(assignments) * self._steps_each > MOST_TOTAL_STEPS:
            self.is_stuck = True
            return
        self._assignments = assignments
        self._arrays = _Arrays.of(self.cyclic, self.nested, self.period)


@dataclass(slots=True, kw_only=True)
class _Arrays:
    """The shells as `build_shells` takes them."""

    period: int
    spans: Integers
    fixed: Integers
    opening: Integers
    closing: Integers
    inner: Integers
    way_start: Integers
    way_between: Integers
    way_steps: Integers
    device_start: Integers
    devices: Integers
    on_device: Integers
    held_start: Integers
    held: Integers
    units: Integers
    limits: Integers
    steps: Integers = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.int64))

    @classmethod
    def of(cls, cyclic: CyclicProblem, nested: NestedShells, period: int) -> _Arrays:
        problem, shells = cyclic.problem, nested.shells
        ways = [way for shell in shells for way in (shell.way_in, shell.way_out or Way((), (0,)))]
        devices = [problem.devices[shell.opening] for shell in shells]
        held = [
            [index for index, here in enumerate(devices) if device in here]
            for device in range(problem.num_devices)
        ]
        return cls(
            period=period,
            spans=cyclic.spans,
            fixed=_integers(nested.fixed),
            opening=_integers(shell.opening for shell in shells),
            closing=_integers(shell.closing for shell in shells),
            inner=_integers(-1 if shell.inner is None else shell.inner for shell in shells),
            way_start=_starts_of([len(way.steps) for way in ways]),
            way_between=_integers(block for way in ways for block in (*way.between, -1)),
            way_steps=_integers(steps for way in ways for steps in way.steps),
            device_start=_starts_of([len(here) for here in devices]),
            devices=_integers(device for here in devices for device in here),
            on_device=problem.on_device.astype(np.int64),
            held_start=_starts_of([len(here) for here in held]),
            held=_integers(index for here in held for index in here),
            units=_integers(int(problem.memory[shell.opening]) for shell in shells),
            limits=problem.limits,
            steps=np.zeros((len(shells), period, period), dtype=np.int64),
        )

    def first_fitting(self, assignments: Integers, first: int, last: int) -> tuple[int, Integers]:
        found = first_fitting(
            assignments, first, last, self.period, self.spans, self.fixed, self.opening, self.closing,
            self.inner, self.way_start, self.way_between, self.way_steps, self.device_start, self.devices,
            self.on_device, self.held_start, self.held, self.units, self.limits, self.steps,
        )  # fmt: skip
        return found, self.steps


def _integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, dtype=np.int64)


def _starts_of(lengths: Sequence[int]) -> Integers:
    return np.cumsum([0, *lengths], dtype=np.int64)


def _starts(
    cyclic: CyclicProblem, nested: NestedShells, period: int, moments: Integers, steps: Integers
) -> Integers:
    """Go back from the outermost shells inwards, choosing moments whose steps add up."""
    fixed_moment = dict(zip(nested.fixed, map(int, moments), strict=True))
    starts = np.zeros(cyclic.num_nodes, dtype=np.int64)
    for block, moment in fixed_moment.items():
        starts[block] = moment
    enclosed = {shell.inner for shell in nested.shells}
    for outermost in range(len(nested.shells)):
        if outermost not in enclosed:
            _place_chain(nested, outermost, period, fixed_moment, steps, starts)
    return starts


def _place_chain(
    nested: NestedShells,
    index: int,
    period: int,
    fixed_moment: dict[int, int],
    steps: Integers,
    starts: Integers,
) -> None:
    """Place an outermost shell and all inside it; blocks already placed move the chain by whole periods."""
    p, q = (int(place) for place in np.unravel_index(np.argmin(steps[index]), steps[index].shape))
    placed: dict[int, int] = {}
    opens, closes = p, p + int(steps[index, p, q])
    while True:
        shell = nested.shells[index]
        placed[shell.opening], placed[shell.closing] = opens, closes
        if shell.inner is None or shell.way_out is None:
            _walk(shell.way_in, opens, fixed_moment, period, placed)
            break
        inner_opens, inner_closes = _inner_moments(
            shell.way_in, shell.way_out, opens, closes, steps[shell.inner], fixed_moment, period
        )
        _walk(shell.way_in, opens, fixed_moment, period, placed)
        _walk(shell.way_out, inner_closes, fixed_moment, period, placed)
        index, opens, closes = shell.inner, inner_opens, inner_closes
    root = nested.shells[index].opening
    shift = starts[root] - placed[root] if root in fixed_moment else 0
    for block, start in placed.items():
        starts[block] = start + shift


def _inner_moments(
    way_in: Way,
    way_out: Way,
    opens: int,
    closes: int,
    inner: Integers,
    fixed_moment: dict[int, int],
    period: int,
) -> tuple[int, int]:
    """Return starts of the inner opening and closing, as close as fit between those of the shell around."""
    for place in np.argsort(inner, axis=None, kind="stable").tolist():
        p, q = divmod(place, period)
        inner_opens = _walk(way_in, opens, fixed_moment, period, {})
        inner_opens += (p - inner_opens) % period
        inner_closes = inner_opens + int(inner[p, q])
        if _walk(way_out, inner_closes, fixed_moment, period, {}) <= closes:
            return inner_opens, inner_closes
    raise AssertionError("the steps of a shell come from the one inside it")


def _walk(way: Way, start: int, fixed_moment: dict[int, int], period: int, placed: dict[int, int]) -> int:
    """Go along a way as early as its fixed blocks allow; return when its end may start."""
    for block, steps in zip(way.between, way.steps[:-1], strict=True):
        start += steps
        start += (fixed_moment[block] - start) % period
        placed[block] = start
    return start + way.steps[-1]
