"""The least steps of nested stage pairs, state by state: the compiled part of
`tessel.search.repetend.chain_dp.nested_chain_dp`.

A stage pair's state is the slots (p, q) of its opening and its closing in the period; its value the least
steps from one to the other:

    steps[p, q] = min over p', q' of   path in (p to p') + inner steps[p', q'] + path out (q' to q)

The minimum splits into one over p' and one over q', each a sweep round the period. Checked in
tests/tessel/search/repetend/chain_dp/test_nested_chain_dp.py.
"""

from __future__ import annotations

import numpy as np

from tessel.search.jit.compiled import compiled
from tessel.search.model.problem import IntArray

NEVER = 2**60
"""The steps of a state that is not possible."""


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
def first_fitting(
    assignments: IntArray,
    first: int,
    last: int,
    period: int,
    spans: IntArray,
    fixed: IntArray,
    opening: IntArray,
    closing: IntArray,
    inner: IntArray,
    path_start: IntArray,
    path_between: IntArray,
    path_steps: IntArray,
    device_start: IntArray,
    devices: IntArray,
    on_device: IntArray,
    held_start: IntArray,
    held: IntArray,
    units: IntArray,
    limits: IntArray,
    steps: IntArray,
) -> int:
    """Return the first assignment around whose fixed blocks all stage pairs fit, leaving their steps; else
    -1."""
    slot = np.full(len(spans), -1, dtype=np.int64)
    free = np.zeros((2, period), dtype=np.int64)
    for index in range(first, last):
        for place in range(len(fixed)):
            slot[fixed[place]] = assignments[index, place]
        fits = True
        for stage_pair in range(len(opening)):
            enclose(
                stage_pair, period, slot, opening, closing, inner, path_start, path_between, path_steps, steps
            )
            fits = keep_fitting(
                stage_pair, period, slot, spans, fixed, opening, closing, device_start, devices, on_device,
                held_start, held, units, limits, steps, free,
            )  # fmt: skip
            if not fits:
                break
        if fits:
            return index
    return -1


@compiled
def enclose(
    stage_pair: int,
    period: int,
    slot: IntArray,
    opening: IntArray,
    closing: IntArray,
    inner: IntArray,
    path_start: IntArray,
    path_between: IntArray,
    path_steps: IntArray,
    steps: IntArray,
) -> None:
    """Set the least steps of a stage pair's states from those inside it."""
    into, outof, end = (
        path_start[2 * stage_pair],
        path_start[2 * stage_pair + 1],
        path_start[2 * stage_pair + 2],
    )
    if inner[stage_pair] < 0:
        for p in range(period):
            reached = p
            for place in range(into, outof):
                reached += path_steps[place]
                if path_between[place] >= 0:
                    reached += (slot[path_between[place]] - reached) % period
            for q in range(period):
                steps[stage_pair, p, q] = reached - p + (q - reached) % period
        return
    inside = steps[inner[stage_pair]]
    middle = np.empty((period, period), dtype=np.int64)
    for q in range(period):
        middle[:, q] = waits_before(inside[:, q], into, outof, period, slot, path_between, path_steps)
    for p in range(period):
        steps[stage_pair, p] = waits_after(middle[p], outof, end, period, slot, path_between, path_steps)


@compiled
def waits_before(
    inside: IntArray,
    first: int,
    last: int,
    period: int,
    slot: IntArray,
    path_between: IntArray,
    path_steps: IntArray,
) -> IntArray:
    """Return, by the slot p at which a path begins, the least steps along it and of what follows at p'."""
    found = np.empty(period, dtype=np.int64)
    nearest = sweep_back(inside, period)
    for p in range(period):
        reached = p
        for place in range(first, last):
            reached += path_steps[place]
            if path_between[place] >= 0:
                reached += (slot[path_between[place]] - reached) % period
        found[p] = min(reached - p + nearest[reached % period], NEVER)
    return found


@compiled
def waits_after(
    middle: IntArray,
    first: int,
    last: int,
    period: int,
    slot: IntArray,
    path_between: IntArray,
    path_steps: IntArray,
) -> IntArray:
    """Return, by the slot q at which a path ends, the least steps of what came before it and along it."""
    arrived = np.full(period, NEVER, dtype=np.int64)
    for q in range(period):
        if middle[q] < NEVER:
            reached = q
            for place in range(first, last):
                reached += path_steps[place]
                if path_between[place] >= 0:
                    reached += (slot[path_between[place]] - reached) % period
            here = reached % period
            arrived[here] = min(arrived[here], middle[q] + reached - q)
    for q in range(1, 2 * period):
        here, before = q % period, (q - 1) % period
        arrived[here] = min(arrived[here], arrived[before] + 1)
    return np.minimum(arrived, NEVER)


@compiled
def sweep_back(inside: IntArray, period: int) -> IntArray:
    """Return, by slot x, the least of `inside[p]` plus the steps from x on to the next p."""
    nearest = inside.copy()
    for q in range(2 * period - 2, -1, -1):
        here, after = q % period, (q + 1) % period
        nearest[here] = min(nearest[here], nearest[after] + 1)
    return nearest


@compiled
def keep_fitting(
    stage_pair: int,
    period: int,
    slot: IntArray,
    spans: IntArray,
    fixed: IntArray,
    opening: IntArray,
    closing: IntArray,
    device_start: IntArray,
    devices: IntArray,
    on_device: IntArray,
    held_start: IntArray,
    held: IntArray,
    units: IntArray,
    limits: IntArray,
    steps: IntArray,
    free: IntArray,
) -> bool:
    """Rule out the states in which blocks overlap or a limit is passed; return whether one is left."""
    opens, closes = opening[stage_pair], closing[stage_pair]
    free[:] = 1
    is_fixed = slot[opens] >= 0
    for p in range(period):
        if is_fixed:
            free[0, p] = p == slot[opens]
            free[1, p] = p == slot[closes]
            continue
        for place in range(len(fixed)):
            other = fixed[place]
            if on_device[other, devices[device_start[stage_pair]]]:
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
                for place in range(device_start[stage_pair], device_start[stage_pair + 1]):
                    if not keeps_limit(
                        stage_pair, p, q, devices[place], period, slot, opening, closing, held_start, held,
                        units, limits, steps,
                    ):  # fmt: skip
                        fits = False
                        break
            if fits:
                is_any = True
            else:
                steps[stage_pair, p, q] = NEVER
    return is_any


@compiled
def keeps_limit(
    stage_pair: int,
    p: int,
    q: int,
    device: int,
    period: int,
    slot: IntArray,
    opening: IntArray,
    closing: IntArray,
    held_start: IntArray,
    held: IntArray,
    units: IntArray,
    limits: IntArray,
    steps: IntArray,
) -> bool:
    """Return whether a device holds no more than its limit by the stage pairs up to this one."""
    for at in held[held_start[device] : held_start[device + 1]]:
        if at > stage_pair:
            break
        now = p if at == stage_pair else slot[opening[at]]
        units_held = 0
        for other in held[held_start[device] : held_start[device + 1]]:
            if other > stage_pair:
                break
            begin = p if other == stage_pair else slot[opening[other]]
            end = q if other == stage_pair else slot[closing[other]]
            lived = steps[other, begin, end]
            units_held += units[other] * ((now - begin) // period - (now - begin - lived) // period)
        if units_held > limits[device]:
            return False
    return True
