"""The least steps of nested shells, state by state: the compiled part of `tessel.search.repetend.nested_chain_dp`.

A shell's state is the moments (p, q) of its opening and its closing in the period; its value the least steps
from one to the other:

    steps[p, q] = min over p', q' of   way in (p to p') + inner steps[p', q'] + way out (q' to q)

The minimum splits into one over p' and one over q', each a sweep round the period. Checked in
tests/tessel/search/test_period_nested.py.
"""

from __future__ import annotations

import numpy as np

from tessel.search.jit.compiled import compiled
from tessel.search.model.problem import Integers

NEVER = 2**60
"""The steps of a state that is not possible."""


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
        found[p] = min(reached - p + nearest[reached % period], NEVER)
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
    arrived = np.full(period, NEVER, dtype=np.int64)
    for q in range(period):
        if middle[q] < NEVER:
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
    return np.minimum(arrived, NEVER)


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
            if steps[shell, p, q] >= NEVER:
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
                steps[shell, p, q] = NEVER
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
