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

from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.model.problem import IntArray

NEVER = 2**60
"""The steps of a state that is not possible."""


class StagePairArrays(NamedTuple):
    """The stage pairs, each after the one inside it, as compiled functions take them: int64 all.

    Attributes:
        spans: by block.
        fixed: blocks whose slots are given.
        opening, closing: blocks, by stage pair.
        inner: the stage pair inside, or -1.
        path_start: where each path begins in the next two, two paths a stage pair, in and out.
        path_between: the fixed block at the end of a part of a path, or -1.
        path_steps: of that part.
        device_start, devices: of each stage pair.
        on_device: whether a block is on a device, shape (num_blocks, num_devices).
        held_start, held: stage pairs of each device.
        units: that a stage pair holds of each of its devices.
        limits: by device.
        steps: of the states, shape (num_stage_pairs, period, period); overwritten.
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
def first_fitting(pairs: StagePairArrays, assignments: IntArray, first: int, last: int) -> int:
    """Return the first assignment around whose fixed blocks all stage pairs fit, leaving their steps; else
    -1."""
    slot = np.full(len(pairs.spans), -1, dtype=np.int64)
    free = np.zeros((2, pairs.period), dtype=np.int64)
    scratch = np.empty((2, pairs.period, pairs.period), dtype=np.int64)
    for index in range(first, last):
        for place in range(len(pairs.fixed)):
            slot[pairs.fixed[place]] = assignments[index, place]
        if _all_fit(pairs, slot, free, scratch):
            return index
    return -1


@compiled_leaf
def _all_fit(pairs: StagePairArrays, slot: IntArray, free: IntArray, scratch: IntArray) -> bool:
    for stage_pair in range(len(pairs.opening)):
        enclose(pairs, stage_pair, slot, scratch)
        if not keep_fitting(pairs, stage_pair, slot, free):
            return False
    return True


@compiled_leaf
def enclose(pairs: StagePairArrays, stage_pair: int, slot: IntArray, scratch: IntArray) -> None:
    """Set the least steps of a stage pair's states from those inside it; `scratch` is overwritten."""
    period, steps, inner = pairs.period, pairs.steps, pairs.inner[stage_pair]
    into, outof = pairs.path_start[2 * stage_pair], pairs.path_start[2 * stage_pair + 1]
    if inner < 0:
        for p in range(period):
            reached = end_of_path(pairs, p, into, outof, slot)
            for q in range(period):
                steps[stage_pair, p, q] = reached - p + (q - reached) % period
        return
    # By slot x at which the path in ends: the least steps from x on to the next p', and from there to q'.
    nearest, middle = 0, 1
    for p in range(period):
        for q in range(period):
            scratch[nearest, p, q] = steps[inner, p, q]
    for place in range(2 * period - 2, -1, -1):
        here, after = place % period, (place + 1) % period
        for q in range(period):
            scratch[nearest, here, q] = min(scratch[nearest, here, q], scratch[nearest, after, q] + 1)
    for p in range(period):
        reached = end_of_path(pairs, p, into, outof, slot)
        for q in range(period):
            found = reached - p + scratch[nearest, reached % period, q]
            scratch[middle, p, q] = min(found, NEVER)
            steps[stage_pair, p, q] = NEVER
    for q in range(period):
        reached = end_of_path(pairs, q, outof, pairs.path_start[2 * stage_pair + 2], slot)
        here = reached % period
        for p in range(period):
            if scratch[middle, p, q] < NEVER:
                found = scratch[middle, p, q] + reached - q
                steps[stage_pair, p, here] = min(steps[stage_pair, p, here], found)
    for p in range(period):
        for place in range(1, 2 * period):
            here, before = place % period, (place - 1) % period
            found = min(steps[stage_pair, p, here], steps[stage_pair, p, before] + 1)
            steps[stage_pair, p, here] = min(found, NEVER)


@compiled_leaf
def end_of_path(pairs: StagePairArrays, begin: int, first: int, last: int, slot: IntArray) -> int:
    """Return the step at which a path ends that begins at a step, past the fixed blocks between."""
    reached = begin
    for place in range(first, last):
        reached += pairs.path_steps[place]
        between = pairs.path_between[place]
        if between >= 0:
            reached += (slot[between] - reached) % pairs.period
    return reached


@compiled_leaf
def keep_fitting(pairs: StagePairArrays, stage_pair: int, slot: IntArray, free: IntArray) -> bool:
    """Rule out the states in which blocks overlap or a limit is passed; return whether one is left."""
    period, spans = pairs.period, pairs.spans
    opens, closes = pairs.opening[stage_pair], pairs.closing[stage_pair]
    first, last = pairs.device_start[stage_pair], pairs.device_start[stage_pair + 1]
    free[:] = 1
    is_fixed = slot[opens] >= 0
    for p in range(period):
        if is_fixed:
            free[0, p] = p == slot[opens]
            free[1, p] = p == slot[closes]
            continue
        for place in range(len(pairs.fixed)):
            other = pairs.fixed[place]
            if pairs.on_device[other, pairs.devices[first]]:
                since, until = (p - slot[other]) % period, (slot[other] - p) % period
                if since < spans[other] or until < spans[opens]:
                    free[0, p] = 0
                if since < spans[other] or until < spans[closes]:
                    free[1, p] = 0
    is_any = False
    for p in range(period):
        for q in range(period):
            if pairs.steps[stage_pair, p, q] >= NEVER:
                continue
            fits = (
                free[0, p] > 0
                and free[1, q] > 0
                and (is_fixed or ((q - p) % period >= spans[opens] and (p - q) % period >= spans[closes]))
            )
            if fits:
                for place in range(first, last):
                    if not keeps_limit(pairs, stage_pair, p, q, pairs.devices[place], slot):
                        fits = False
                        break
            if fits:
                is_any = True
            else:
                pairs.steps[stage_pair, p, q] = NEVER
    return is_any


@compiled_leaf
def keeps_limit(pairs: StagePairArrays, stage_pair: int, p: int, q: int, device: int, slot: IntArray) -> bool:
    """Return whether a device holds no more than its limit by the stage pairs up to this one."""
    period = pairs.period
    first, last = pairs.held_start[device], pairs.held_start[device + 1]
    for here in range(first, last):
        at = pairs.held[here]
        if at > stage_pair:
            break
        now = p if at == stage_pair else slot[pairs.opening[at]]
        units_held = 0
        for there in range(first, last):
            other = pairs.held[there]
            if other > stage_pair:
                break
            begin = p if other == stage_pair else slot[pairs.opening[other]]
            end = q if other == stage_pair else slot[pairs.closing[other]]
            lived = pairs.steps[other, begin, end]
            units_held += pairs.units[other] * ((now - begin) // period - (now - begin - lived) // period)
        if units_held > pairs.limits[device]:
            return False
    return True
