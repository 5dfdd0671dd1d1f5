"""The least steps of nested stage pairs, state by state: the compiled part of
`tessel.search.repetend.chain_dp.nested_chain_dp`.

A stage pair's state is the slots (p, q) of its opening and its closing in the period; its value the least
steps from one to the other:

    steps[p, q] = min over p', q' of   path in (p to p') + inner steps[p', q'] + path out (q' to q)

The minimum splits into one over p' and one over q', each a sweep round the period. Checked in
tests/tessel/search/repetend/chain_dp/test_nested_chain_dp.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tessel.search.jit.compiled import compiled
from tessel.search.model.problem import IntArray

NEVER = 2**60
"""The steps of a state that is not possible."""


class ChainArrays(NamedTuple):
    """The stage pairs of a nested chain, inside out; all int64. Lists of lists are flat.

    Attributes:
        period: steps of the period tried.
        spans: by block.
        fixed: the blocks on several devices.
        opening: by stage pair, its opening block; `closing` and `units` likewise.
        inner: by stage pair, the one inside it, or -1.
        path_start: where the paths in and out of each stage pair begin.
        path_between: along the paths, the fixed blocks between, -1 at their ends; `path_steps` likewise.
        device_start: where the devices of each stage pair begin.
        on_device: by block and device, 1 where the one holds the other.
        held_start: where the stage pairs of each device begin.
        limits: by device.
        steps: shape (stage pairs, period, period): the least steps from opening to closing by their slots.
    """

    period: int
    spans: IntArray
    fixed: IntArray
    opening: IntArray
    closing: IntArray
    inner: IntArray
    path_start: IntArray
    path_between: IntArray
    path_steps: IntArray
    device_start: IntArray
    devices: IntArray
    on_device: IntArray
    held_start: IntArray
    held: IntArray
    units: IntArray
    limits: IntArray
    steps: IntArray


@compiled
def list_slots(
    spans: IntArray, shared: IntArray, period: int, most: int, most_tried: int
) -> tuple[IntArray, int]:
    """Return the slots of the fixed blocks in which none overlap, the first block's being 0.

    Args:
        spans: int64, shape (num_fixed,).
        shared: int64, shape (num_fixed, num_fixed): devices that two have in common.
        period: steps in which they repeat.
        most: more than that many are not listed; one more row shows it.
        most_tried: slots that are tried at most; where blocks leave hardly any room, nearly all tries fail.

    Returns:
        int64, shape (num_assignments, num_fixed), and the slots that were tried: more than `most_tried` where
        the list ends early.
    """
    count = len(spans)
    rows = np.zeros((16, count), dtype=np.int64)
    if count == 0:
        return rows[:1], 0
    used = tried = 0
    slots = np.full(count, -1, dtype=np.int64)
    place = 0
    while place >= 0:
        slots[place] += 1
        if slots[place] >= (1 if place == 0 else period):
            slots[place] = -1
            place -= 1
            continue
        tried += 1
        if tried > most_tried:
            break
        overlapped = -1
        for other in range(place):
            if shared[place, other] and (
                (slots[other] - slots[place]) % period < spans[place]
                or (slots[place] - slots[other]) % period < spans[other]
            ):
                overlapped = other
                break
        if overlapped >= 0:
            # All slots to the end of that block overlap with it, too.
            left = (slots[overlapped] + max(1, spans[overlapped]) - slots[place]) % period
            slots[place] += (left if left > 0 else period) - 1
            continue
        if place + 1 < count:
            place += 1
            continue
        if used == len(rows):
            larger = np.zeros((2 * used, count), dtype=np.int64)
            larger[:used] = rows
            rows = larger
        rows[used] = slots
        used += 1
        if used > most:
            break
    return rows[:used], tried


@compiled
def first_fitting(chain: ChainArrays, assignments: IntArray, first: int, last: int) -> int:
    """Return the first assignment around whose fixed blocks all stage pairs fit, leaving their steps; else
    -1."""
    slot = np.full(len(chain.spans), -1, dtype=np.int64)
    free = np.zeros((2, chain.period), dtype=np.int64)
    for index in range(first, last):
        for place in range(len(chain.fixed)):
            slot[chain.fixed[place]] = assignments[index, place]
        fits = True
        for stage_pair in range(len(chain.opening)):
            enclose(chain, stage_pair, slot)
            fits = keep_fitting(chain, stage_pair, slot, free)
            if not fits:
                break
        if fits:
            return index
    return -1


@compiled
def enclose(chain: ChainArrays, stage_pair: int, slot: IntArray) -> None:
    """Set the least steps of a stage pair's states from those inside it."""
    period, steps = chain.period, chain.steps
    into, outof, end = (
        chain.path_start[2 * stage_pair],
        chain.path_start[2 * stage_pair + 1],
        chain.path_start[2 * stage_pair + 2],
    )
    if chain.inner[stage_pair] < 0:
        for p in range(period):
            reached = walk(chain, p, into, outof, slot)
            for q in range(period):
                steps[stage_pair, p, q] = reached - p + (q - reached) % period
        return
    inside = steps[chain.inner[stage_pair]]
    middle = np.empty((period, period), dtype=np.int64)
    for q in range(period):
        middle[:, q] = waits_before(chain, inside[:, q], into, outof, slot)
    for p in range(period):
        steps[stage_pair, p] = waits_after(chain, middle[p], outof, end, slot)


@compiled
def waits_before(chain: ChainArrays, inside: IntArray, first: int, last: int, slot: IntArray) -> IntArray:
    """Return, by the slot p at which a path begins, the least steps along it and of what follows at p'."""
    period = chain.period
    found = np.empty(period, dtype=np.int64)
    nearest = sweep_back(inside, period)
    for p in range(period):
        reached = walk(chain, p, first, last, slot)
        found[p] = min(reached - p + nearest[reached % period], NEVER)
    return found


@compiled
def waits_after(chain: ChainArrays, middle: IntArray, first: int, last: int, slot: IntArray) -> IntArray:
    """Return, by the slot q at which a path ends, the least steps of what came before it and along it."""
    period = chain.period
    arrived = np.full(period, NEVER, dtype=np.int64)
    for q in range(period):
        if middle[q] < NEVER:
            reached = walk(chain, q, first, last, slot)
            here = reached % period
            arrived[here] = min(arrived[here], middle[q] + reached - q)
    for q in range(1, 2 * period):
        here, before = q % period, (q - 1) % period
        arrived[here] = min(arrived[here], arrived[before] + 1)
    return np.minimum(arrived, NEVER)


@compiled
def walk(chain: ChainArrays, start: int, first: int, last: int, slot: IntArray) -> int:
    """Return when the end of a path may start that is begun at a step, as early as its fixed blocks allow."""
    for place in range(first, last):
        start += chain.path_steps[place]
        if chain.path_between[place] >= 0:
            start += (slot[chain.path_between[place]] - start) % chain.period
    return start


@compiled
def sweep_back(inside: IntArray, period: int) -> IntArray:
    """Return, by slot x, the least of `inside[p]` plus the steps from x on to the next p."""
    nearest = inside.copy()
    for q in range(2 * period - 2, -1, -1):
        here, after = q % period, (q + 1) % period
        nearest[here] = min(nearest[here], nearest[after] + 1)
    return nearest


@compiled
def keep_fitting(chain: ChainArrays, stage_pair: int, slot: IntArray, free: IntArray) -> bool:
    """Rule out the states in which blocks overlap or a limit is passed; return whether one is left."""
    period, steps = chain.period, chain.steps
    opens, closes, spans = chain.opening[stage_pair], chain.closing[stage_pair], chain.spans
    free[:] = 1
    is_fixed = slot[opens] >= 0
    for p in range(period):
        if is_fixed:
            free[0, p] = p == slot[opens]
            free[1, p] = p == slot[closes]
            continue
        for place in range(len(chain.fixed)):
            other = chain.fixed[place]
            if chain.on_device[other, chain.devices[chain.device_start[stage_pair]]]:
                since, until = (p - slot[other]) % period, (slot[other] - p) % period
                if since < spans[other] or until < spans[opens]:
                    free[0, p] = 0
                if since < spans[other] or until < spans[closes]:
                    free[1, p] = 0
    is_any = False
    for p in range(period):
        for q in range(period):
            if steps[stage_pair, p, q] >= NEVER:
                continue
            fits = (
                free[0, p] > 0
                and free[1, q] > 0
                and (is_fixed or ((q - p) % period >= spans[opens] and (p - q) % period >= spans[closes]))
            )
            if fits:
                for place in range(chain.device_start[stage_pair], chain.device_start[stage_pair + 1]):
                    if not keeps_limit(chain, stage_pair, p, q, chain.devices[place], slot):
                        fits = False
                        break
            if fits:
                is_any = True
            else:
                steps[stage_pair, p, q] = NEVER
    return is_any


@compiled
def keeps_limit(chain: ChainArrays, stage_pair: int, p: int, q: int, device: int, slot: IntArray) -> bool:
    """Return whether a device holds no more than its limit by the stage pairs up to this one."""
    period, steps = chain.period, chain.steps
    for at in chain.held[chain.held_start[device] : chain.held_start[device + 1]]:
        if at > stage_pair:
            break
        now = p if at == stage_pair else slot[chain.opening[at]]
        units_held = 0
        for other in chain.held[chain.held_start[device] : chain.held_start[device + 1]]:
            if other > stage_pair:
                break
            begin = p if other == stage_pair else slot[chain.opening[other]]
            end = q if other == stage_pair else slot[chain.closing[other]]
            lived = steps[other, begin, end]
            units_held += chain.units[other] * ((now - begin) // period - (now - begin - lived) // period)
        if units_held > chain.limits[device]:
            return False
    return True
