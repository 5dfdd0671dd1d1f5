"""Whether a repetend of a given period exists for nested shells, by dynamic programming from the inside out.

For each assignment of moments to the fixed blocks, the shells are built one around the other. A shell's state
is the moments (p, q) of its opening and its closing in the period; its value the least steps from one to the
other. Less is never worse: the next shell around can wait, and less is held in memory. So one number per
state is enough, and the answer is exact.

    steps[p, q] = min over p', q' of   way in (p to p') + inner steps[p', q'] + way out (q' to q)

The minimum splits into one over p' and one over q', each a sweep round the period. Cost: O(assignments x
shells x period²), so it is for small periods and any number of devices; `cyclic_orders` is for large ones and
few devices. Checked in tests/tessel/search/test_period_nested.py against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tessel.search.compiled import compiled
from tessel.search.cyclic_orders import Answer
from tessel.search.cyclic_problem import CyclicProblem
from tessel.search.nested_shells import NestedShells, Way
from tessel.search.problem import Integers

MOST_ASSIGNMENTS = 500_000
"""Moments of the fixed blocks that are listed at most: four blocks in a period of some 80."""

MOST_TOTAL_STEPS = 20_000_000_000
"""Elementary steps of a whole search up to which it is begun: some twenty seconds."""

_NEVER = 2**60


@dataclass(slots=True)
class NestedSearch:
    """The search of one period, which remembers where it stopped; the like of `OrderSearch`.

    Attributes:
        cyclic: the rules.
        nested: the same as shells.
        period: the period tried.
        starts: int64, shape (num_nodes,), once the answer is `FEASIBLE`.
        is_stuck: whether there are too many assignments to begin.
    """

    cyclic: CyclicProblem
    nested: NestedShells
    period: int
    starts: Integers | None = None
    is_stuck: bool = False
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


@compiled
def list_moments(spans: Integers, shared: Integers, period: int, most: int) -> Integers:
    """Return the moments of the fixed blocks in which none overlap, the first block's being 0.

    Args:
        spans: int64, shape (num_fixed,).
        shared: int64, shape (num_fixed, num_fixed): devices that two have in common.
        period: steps in which they repeat.
        most: more than that many are not listed; one more row shows it.

    Returns:
        int64, shape (num_assignments, num_fixed).
    """
    count = len(spans)
    rows = np.zeros((16, count), dtype=np.int64)
    if count == 0:
        return rows[:1]
    used = 0
    moments = np.full(count, -1, dtype=np.int64)
    place = 0
    while place >= 0:
        moments[place] += 1
        if moments[place] >= (1 if place == 0 else period):
            moments[place] = -1
            place -= 1
            continue
        is_free = True
        for other in range(place):
            if shared[place, other] and (
                (moments[other] - moments[place]) % period < spans[place]
                or (moments[place] - moments[other]) % period < spans[other]
            ):
                is_free = False
                break
        if not is_free:
            continue
        if place + 1 < count:
            place += 1
            continue
        if used == len(rows):
            larger = np.zeros((2 * used, count), dtype=np.int64)
            larger[:used] = rows
            rows = larger
        rows[used] = moments
        used += 1
        if used > most:
            break
    return rows[:used]


@compiled
def first_fitting(
    assignments: Integers,
    first: int,
    last: int,
    period: int,
    spans: Integers,
    fixed: Integers,
    opening: Integers,
    closing: Integers,
    inner: Integers,
    way_start: Integers,
    way_between: Integers,
    way_steps: Integers,
    device_start: Integers,
    devices: Integers,
    on_device: Integers,
    held_start: Integers,
    held: Integers,
    units: Integers,
    limits: Integers,
    steps: Integers,
) -> int:
    """Return the first assignment around whose fixed blocks all shells fit, leaving their steps; else -1."""
    moment = np.full(len(spans), -1, dtype=np.int64)
    free = np.zeros((2, period), dtype=np.int64)
    for index in range(first, last):
        for place in range(len(fixed)):
            moment[fixed[place]] = assignments[index, place]
        fits = True
        for shell in range(len(opening)):
            enclose(shell, period, moment, opening, closing, inner, way_start, way_between, way_steps, steps)
            fits = keep_fitting(
                shell, period, moment, spans, fixed, opening, closing, device_start, devices, on_device,
                held_start, held, units, limits, steps, free,
            )  # fmt: skip
            if not fits:
                break
        if fits:
            return index
    return -1


@compiled
def enclose(
    shell: int,
    period: int,
    moment: Integers,
    opening: Integers,
    closing: Integers,
    inner: Integers,
    way_start: Integers,
    way_between: Integers,
    way_steps: Integers,
    steps: Integers,
) -> None:
    """Set the least steps of a shell's states from those inside it."""
    into, outof, end = way_start[2 * shell], way_start[2 * shell + 1], way_start[2 * shell + 2]
    if inner[shell] < 0:
        for p in range(period):
            reached = p
            for place in range(into, outof):
                reached += way_steps[place]
                if way_between[place] >= 0:
                    reached += (moment[way_between[place]] - reached) % period
            for q in range(period):
                steps[shell, p, q] = reached - p + (q - reached) % period
        return
    inside = steps[inner[shell]]
    middle = np.empty((period, period), dtype=np.int64)
    for q in range(period):
        middle[:, q] = waits_before(inside[:, q], into, outof, period, moment, way_between, way_steps)
    for p in range(period):
        steps[shell, p] = waits_after(middle[p], outof, end, period, moment, way_between, way_steps)


@compiled
def waits_before(
    inside: Integers,
    first: int,
    last: int,
    period: int,
    moment: Integers,
    way_between: Integers,
    way_steps: Integers,
) -> Integers:
    """Return, by the moment p at which a way begins, the least steps along it and of what follows at p'."""
    found = np.empty(period, dtype=np.int64)
    nearest = sweep_back(inside, period)
    for p in range(period):
        reached = p
        for place in range(first, last):
            reached += way_steps[place]
            if way_between[place] >= 0:
                reached += (moment[way_between[place]] - reached) % period
        found[p] = min(reached - p + nearest[reached % period], _NEVER)
    return found


@compiled
def waits_after(
    middle: Integers,
    first: int,
    last: int,
    period: int,
    moment: Integers,
    way_between: Integers,
    way_steps: Integers,
) -> Integers:
    """Return, by the moment q at which a way ends, the least steps of what came before it and along it."""
    arrived = np.full(period, _NEVER, dtype=np.int64)
    for q in range(period):
        if middle[q] < _NEVER:
            reached = q
            for place in range(first, last):
                reached += way_steps[place]
                if way_between[place] >= 0:
                    reached += (moment[way_between[place]] - reached) % period
            here = reached % period
            arrived[here] = min(arrived[here], middle[q] + reached - q)
    for q in range(1, 2 * period):
        here, before = q % period, (q - 1) % period
        arrived[here] = min(arrived[here], arrived[before] + 1)
    return np.minimum(arrived, _NEVER)


@compiled
def sweep_back(inside: Integers, period: int) -> Integers:
    """Return, by moment x, the least of `inside[p]` plus the steps from x on to the next p."""
    nearest = inside.copy()
    for q in range(2 * period - 2, -1, -1):
        here, after = q % period, (q + 1) % period
        nearest[here] = min(nearest[here], nearest[after] + 1)
    return nearest


@compiled
def keep_fitting(
    shell: int,
    period: int,
    moment: Integers,
    spans: Integers,
    fixed: Integers,
    opening: Integers,
    closing: Integers,
    device_start: Integers,
    devices: Integers,
    on_device: Integers,
    held_start: Integers,
    held: Integers,
    units: Integers,
    limits: Integers,
    steps: Integers,
    free: Integers,
) -> bool:
    """Rule out the states in which blocks overlap or a limit is passed; return whether one is left."""
    opens, closes = opening[shell], closing[shell]
    free[:] = 1
    is_fixed = moment[opens] >= 0
    for p in range(period):
        if is_fixed:
            free[0, p] = p == moment[opens]
            free[1, p] = p == moment[closes]
            continue
        for place in range(len(fixed)):
            other = fixed[place]
            if on_device[other, devices[device_start[shell]]]:
                since, until = (p - moment[other]) % period, (moment[other] - p) % period
                if since < spans[other] or until < spans[opens]:
                    free[0, p] = 0
                if since < spans[other] or until < spans[closes]:
                    free[1, p] = 0
    is_any = False
    for p in range(period):
        for q in range(period):
            if steps[shell, p, q] >= _NEVER:
                continue
            fits = (
                free[0, p] > 0
                and free[1, q] > 0
                and (is_fixed or ((q - p) % period >= spans[opens] and (p - q) % period >= spans[closes]))
            )
            if fits:
                for place in range(device_start[shell], device_start[shell + 1]):
                    if not keeps_limit(
                        shell, p, q, devices[place], period, moment, opening, closing, held_start, held,
                        units, limits, steps,
                    ):  # fmt: skip
                        fits = False
                        break
            if fits:
                is_any = True
            else:
                steps[shell, p, q] = _NEVER
    return is_any


@compiled
def keeps_limit(
    shell: int,
    p: int,
    q: int,
    device: int,
    period: int,
    moment: Integers,
    opening: Integers,
    closing: Integers,
    held_start: Integers,
    held: Integers,
    units: Integers,
    limits: Integers,
    steps: Integers,
) -> bool:
    """Return whether a device holds no more than its limit by the shells up to this one."""
    for at in held[held_start[device] : held_start[device + 1]]:
        if at > shell:
            break
        now = p if at == shell else moment[opening[at]]
        units_held = 0
        for other in held[held_start[device] : held_start[device + 1]]:
            if other > shell:
                break
            begin = p if other == shell else moment[opening[other]]
            end = q if other == shell else moment[closing[other]]
            lived = steps[other, begin, end]
            units_held += units[other] * ((now - begin) // period - (now - begin - lived) // period)
        if units_held > limits[device]:
            return False
    return True
