"""1F1B with fewer micro-batches in flight, for tight memory: slower, but it fits where 1F1B does not.

    device 0   F0 .  .  .  B0 B0 F1 .  .  .  B1 B1 F2 .  .  .  B2 B2      one in flight; 1F1B has two
    device 1   .  F0 B0 B0 .  .  .  F1 B1 B1 .  .  .  F2 B2 B2 .  .

Every stage starts with 1F1B's limit, its distance from the end; where a device would hold more than it may,
the limits of its stages shrink in proportion until all devices fit. Then each stage in turn gets one more
back as long as that fits and takes no longer, since a device with room need not wait for a full one. With a
limit of one everywhere, a chain runs one micro-batch at a time on each stage; what does not fit then has no
schedule of this kind. It cannot deadlock, since a limit makes a micro-batch wait only for earlier ones.

Source: Narayanan et al., PipeDream-flush (ICML 2021), section 2.2, with the limit as a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tessel.errors import ScheduleError
from tessel.handwritten.construction.greedy import Flow, Preference, run_greedily
from tessel.handwritten.construction.rule import (
    Starts,
    as_schedule,
    check_micro_batches,
    find_excess,
    in_order_of_start,
)
from tessel.orders import Orders, earliest_starts
from tessel.placement import Placement
from tessel.schedule.schedule import Schedule, peak_memory

MAX_TASKS_SIMULATED = 20_000
"""Tasks simulated in search of better limits; some tenths of a second."""


@dataclass(frozen=True, slots=True)
class LimitedRule:
    """The rule; it needs a memory limit to have a meaning. What its functions take is said in `Rule`."""

    name: str = "1f1b-limited"
    needs_limit: bool = True
    preference: Preference = field(default_factory=lambda: Preference(is_limited=True))

    def why_not(
        self, placement: Placement, micro_batches: int, memory: Sequence[int] | None = None
    ) -> str | None:
        """Return one sentence that says why the rule cannot be used here, or None if it can."""
        check_micro_batches(micro_batches)
        if memory is None:
            return f"{self.name} does not apply: it needs a memory limit, and without one it is 1f1b"
        starts = _fit(placement, micro_batches, memory, self.preference)
        excess = find_excess(placement, starts, memory)
        return (
            None if excess is None else f"{self.name} does not fit: {excess} with one micro-batch in flight"
        )

    def orders(
        self, placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
    ) -> Orders:
        """Return the tasks of each device; with one micro-batch in flight where even that does not fit.

        Raises:
            ScheduleError: there is no limit.
        """
        return in_order_of_start(placement, self._starts(placement, micro_batches, memory, self.preference))

    def every_orders(
        self, placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
    ) -> Iterator[Orders]:
        """Yield what `orders` returns, then the same with other orders among backwards, and with halves.

        Raises:
            ScheduleError: there is no limit.
        """
        for preference in self.preference.variants(placement):
            starts = self._starts(placement, micro_batches, memory, preference)
            yield in_order_of_start(placement, starts)

    def timed(self, placement: Placement, orders: Orders) -> Starts:
        """Return the earliest starts in one of these orders."""
        return earliest_starts(placement, orders)

    def build(
        self, placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
    ) -> Schedule:
        """Return the schedule.

        Raises:
            InfeasibleError: one micro-batch in flight needs more memory than there is.
            ScheduleError: there is no limit.
        """
        starts = self._starts(placement, micro_batches, memory, self.preference)
        return as_schedule(self.name, placement, starts, micro_batches=micro_batches, memory=memory)

    def _starts(
        self,
        placement: Placement,
        micro_batches: int,
        memory: Sequence[int] | None,
        preference: Preference,
    ) -> Starts:
        check_micro_batches(micro_batches)
        if memory is None:
            raise ScheduleError(f"{self.name} was asked for without a memory limit; give one, or use 1f1b")
        return _fit(placement, micro_batches, memory, preference)


class Simulated(Protocol):
    """What is asked of one simulation."""

    @property
    def makespan(self) -> int:
        """The last end."""
        ...

    @property
    def peaks(self) -> Sequence[int]:
        """Most units that each device holds at once."""
        ...


_Found = TypeVar("_Found", bound=Simulated)


def fit_limits(
    flow: Flow,
    micro_batches: int,
    memory: Sequence[int],
    simulate: Callable[[Mapping[int, int]], _Found | None],
) -> _Found | None:
    """Return the simulation under the largest limits found that fit, or under limits of one if none do.

    None where a simulation gave none, which ends the search for limits.

    Args:
        flow: the blocks of one micro-batch.
        micro_batches: how many are run, >= 1.
        memory: limit in units, one per device.
        simulate: runs 1F1B with so many micro-batches in flight, by opening block; None where it was ended.
    """
    limits = {block: min(depth, micro_batches) for block, depth in flow.depth.items()}
    while True:
        found = simulate(limits)
        if found is None:
            return None
        over = {
            device: limit / peak
            for device, (peak, limit) in enumerate(zip(found.peaks, memory, strict=True))
            if peak > limit
        }
        if not over:
            return _give_back(flow, micro_batches, memory, limits, found, simulate)
        if not _shrink(flow, limits, over):
            return found


def _give_back(
    flow: Flow,
    micro_batches: int,
    memory: Sequence[int],
    limits: dict[int, int],
    best: _Found,
    simulate: Callable[[Mapping[int, int]], _Found | None],
) -> _Found:
    """Raise limits one by one where that fits and is shorter, or as short; within so many simulations."""
    runs_left = MAX_TASKS_SIMULATED // (len(flow.blocks) * micro_batches)
    lowered = [block for block, limit in limits.items() if limit < min(flow.depth[block], micro_batches)]
    while lowered and runs_left > 0:
        block = lowered.pop(0)
        runs_left -= 1
        tried = {**limits, block: limits[block] + 1}
        found = simulate(tried)
        if found is None:
            break
        is_within = all(peak <= limit for peak, limit in zip(found.peaks, memory, strict=True))
        if is_within and found.makespan <= best.makespan:
            limits, best = tried, found
            if tried[block] < min(flow.depth[block], micro_batches):
                lowered.append(block)
    return best


@dataclass(frozen=True, slots=True)
class _Run:
    """A simulation and its figures."""

    starts: Starts
    makespan: int
    peaks: tuple[int, ...]


def _fit(placement: Placement, micro_batches: int, memory: Sequence[int], preference: Preference) -> Starts:
    """The starts of the best simulation that fits, or of one with limits of one if none does."""
    flow = preference.flow(placement)
    groups = preference.groups(flow)

    def simulate(limits: Mapping[int, int]) -> _Run:
        starts = run_greedily(flow, micro_batches=micro_batches, in_flight=limits, groups=groups)
        makespan = max(start + placement.blocks[block].span for (block, _), start in starts.items())
        return _Run(starts, makespan, peak_memory(placement, starts))

    found = fit_limits(flow, micro_batches, memory, simulate)
    assert found is not None  # none of these simulations is ended
    return found.starts


def _shrink(flow: Flow, limits: dict[int, int], over: dict[int, float]) -> bool:
    """Lower limits on devices that hold too much, or else all; say whether any could be lowered."""
    here = [block for block in limits if not over.keys().isdisjoint(flow.placement.blocks[block].devices)]
    return _scale(limits, here, min(over.values())) or _scale(limits, limits, min(over.values()))


def _scale(limits: dict[int, int], blocks: Iterable[int], share: float) -> bool:
    lowered = {block: max(1, min(limits[block] - 1, int(limits[block] * share))) for block in blocks}
    changes = any(limits[block] > limit for block, limit in lowered.items())
    limits.update(lowered)
    return changes


LIMITED_1F1B = LimitedRule()
