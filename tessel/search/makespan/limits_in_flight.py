"""List schedules that hold back a block while enough of its micro-batches are in flight.

Under a tight limit a list schedule fills the memory at once, with micro-batches whose backwards are far away,
and then waits for them. Let l(b) be the least steps from an adding block b to the first block that frees, and
T the steps between micro-batches, as far as work and memory allow. In a steady rhythm l(b) / T micro-batches
of b are in flight: no more than that, times a factor and with a few to spare, may be.

    device 0   f f f f . . . . . . b f b f        as many as fit
               f . f . f . b . f . b . f .        l(f) / T at most: the same memory, a steady rhythm

The factor, what is to spare, the rhythm and the urgency of blocks that nothing waits for are looked for one
after the other, each where the others are best so far: some twenty list schedules with the first way to fix
the options, and one with each other way. What it leaves out: other limits for single blocks. Checked in
tests/tessel/search/makespan/test_limits_in_flight.py.

Source: the building blocks of Qi et al., "Pipeline Parallelism with Controllable Memory" (2024), where
lifetimes over the period say what is held; here they are limits of a list schedule, so that spans may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tessel.search.makespan.incumbent import Incumbent, makespan_of
from tessel.search.makespan.list_scheduling import NEVER, Dispatch, by_priority, list_schedule
from tessel.search.model.instance import Instance, InstanceArrays, IntArray
from tessel.search.model.precedence import UNREACHABLE, flat_rows, least_distances_from

FACTORS = (1.25, 1.5, 1.0, 1.1, 2.0)
SPARE = (2, 0, 1, 4)
RHYTHMS = (0.5, 1.0, 0.25, 2.0)
LAST_SHIFTS = (1.0, 0.0, 2.0)
"""What is tried for each field of `Setting`, the usual winners on tight memory first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to hold blocks back.

    Attributes:
        factor: limits as multiples of l(b) / T, above 0.
        spare: micro-batches beyond that, >= 0.
        rhythm: distance between micro-batches in the priority, as a multiple of T, >= 0.
        last_shift: steps by which blocks that nothing waits for are more urgent, as a multiple of T, >= 0.
        is_active: whether devices may idle for a more urgent task.
    """

    factor: float = FACTORS[0]
    spare: int = SPARE[0]
    rhythm: float = RHYTHMS[0]
    last_shift: float = LAST_SHIFTS[0]
    is_active: bool = True


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long micro-batches stay on the devices with one way to fix the options.

    Attributes:
        period: T, steps between micro-batches.
        lifetime: by adding block, the least steps to the block that closes it.
        closing: by adding block, the first block that frees memory of the device afterwards.
    """

    period: int
    lifetime: Mapping[int, int]
    closing: Mapping[int, int]


def offer_limits_in_flight(
    best: Incumbent, options: IntArray, known: Setting | None = None
) -> Setting | None:
    """Offer list schedules with limits in flight, for as long as the budget lasts; return the best setting.

    Args:
        best: where to offer; its instance has memory limits.
        options: option by choice and micro-batch, the same for all micro-batches, none open.
        known: the only setting tried, best with other options; all are looked through if None.
    """
    lifetimes = lifetimes_of(best.instance, options)
    if not lifetimes.lifetime:
        return known
    if known is not None:
        _offer(best, lifetimes, known, options)
        return known
    setting, least = Setting(), NEVER
    tried: set[Setting] = set()
    for alternatives in _ALTERNATIVES:
        for candidate in alternatives(setting):
            if candidate in tried:
                continue
            if best.is_over:
                return setting
            tried.add(candidate)
            makespan = _offer(best, lifetimes, candidate, options)
            if makespan < least:
                setting, least = candidate, makespan
    return setting


_ALTERNATIVES: tuple[Callable[[Setting], list[Setting]], ...] = (
    lambda around: [replace(around, factor=value) for value in FACTORS],
    lambda around: [replace(around, spare=value) for value in SPARE],
    lambda around: [replace(around, rhythm=value) for value in RHYTHMS],
    lambda around: [replace(around, last_shift=value) for value in LAST_SHIFTS],
    lambda around: [replace(around, is_active=value) for value in (True, False)],
    lambda around: [replace(around, factor=value) for value in FACTORS],
)
"""By step of the search, what is tried around the best setting so far."""


def lifetimes_of(instance: Instance, options: IntArray) -> Lifetimes:
    """Return the lifetimes of an instance's adding blocks and the period that work and memory allow.

    Args:
        options: option by choice and micro-batch; the first micro-batch's count.
    """
    arrays = instance.arrays
    lifetime: dict[int, int] = {}
    closing: dict[int, int] = {}
    period = max(1, int(instance.least_work().max()))
    for device in range(arrays.num_devices):
        here = list(_run_on(arrays, device, options))
        unit_steps = 0
        for block in here:
            if arrays.memory[block] <= 0:
                continue
            distance = least_distances_from(instance.precedence, block)
            frees = [
                (int(distance[other]), other)
                for other in here
                if arrays.memory[other] < 0 and distance[other] > UNREACHABLE
            ]
            if not frees:
                continue
            steps, closer = min(frees)
            unit_steps += steps * int(arrays.memory[block])
            if steps > lifetime.get(block, -1):
                lifetime[block], closing[block] = steps, closer
        limit = int(arrays.limit[device])
        period = max(period, -(-unit_steps // max(1, limit)))
    return Lifetimes(period, lifetime, closing)


def _run_on(arrays: InstanceArrays, device: int, options: IntArray) -> Iterator[int]:
    """The blocks of a device that these options run."""
    for block in arrays.on[arrays.on_start[device] : arrays.on_start[device + 1]].tolist():
        if arrays.choice[block] < 0 or options[arrays.choice[block], 0] == arrays.option[block]:
            yield block


def _offer(best: Incumbent, lifetimes: Lifetimes, setting: Setting, options: IntArray) -> int:
    """Offer the schedule of a setting and return its makespan, `NEVER` where there is none."""
    arrays = best.instance.arrays
    dispatch = _dispatch(arrays, lifetimes, setting)
    start = np.empty(len(dispatch.priority), dtype=np.int64)
    listing = list_schedule(arrays, dispatch, options.copy(), start, best.budget, is_active=setting.is_active)
    if listing is None:
        return NEVER
    best.offer(start, "list scheduling with limits in flight")
    return makespan_of(arrays, start)


def _dispatch(arrays: InstanceArrays, lifetimes: Lifetimes, setting: Setting) -> Dispatch:
    """The dispatch by tail and rhythm with these limits."""
    period = lifetimes.period
    is_last = np.diff(arrays.after_start) == 0
    urgency = arrays.tail + np.where(is_last, round(setting.last_shift * period), 0)
    rhythm = np.arange(arrays.micro_batches, dtype=np.int64)[:, None] * round(setting.rhythm * period)
    in_flight = np.zeros(arrays.num_blocks, dtype=np.int64)
    opening: list[list[int]] = [[] for _ in range(arrays.num_blocks)]
    closing: list[list[int]] = [[] for _ in range(arrays.num_blocks)]
    for block, steps in lifetimes.lifetime.items():
        in_flight[block] = max(1, math.ceil(setting.factor * steps / period) + setting.spare)
        closing[block].append(lifetimes.closing[block])
        opening[lifetimes.closing[block]].append(block)
    plain = by_priority(arrays, (rhythm - urgency[None, :]).reshape(-1))
    closing_start, closing_blocks = flat_rows(closing)
    opening_start, opening_blocks = flat_rows(opening)
    return plain._replace(
        in_flight=in_flight,
        closing_start=closing_start,
        closing=closing_blocks,
        opening_start=opening_start,
        opening=opening_blocks,
    )
