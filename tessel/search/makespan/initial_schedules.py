"""Quick first schedules: one micro-batch after the other, hand-written rules, and urgencies.

The first one always exists, and the rules come next, before any limit is looked at: they take time linear in
the tasks, and the answer is never to be longer than one of them that fits. `1f1b-limited` alone, which may
take several simulations, is left out where time is over and another rule fits.

An urgency is the priority α·m·T - tail(b): the longest path to the end first, with the micro-batches T steps
of the busiest device apart. α = 0 runs all forwards first, α = 1 keeps a steady rhythm, and a large α
finishes what was begun. Each is tried idle-free and with idling, and with every choice fixed to each of its
options. Under memory limits `tessel.search.makespan.limits_in_flight` follows. Checked in
tests/tessel/search/makespan/test_initial_schedules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tessel.handwritten import HANDWRITTEN, Rule, StreamRule
from tessel.handwritten.limited_1f1b import LimitedRule
from tessel.handwritten.strongest import MAX_TASKS
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.limits_in_flight import Setting, offer_limits_in_flight
from tessel.search.makespan.list_scheduling import NEVER, by_priority, list_schedule
from tessel.search.makespan.option_search import start_in_sequence
from tessel.search.makespan.params import Phase
from tessel.search.makespan.rule_schedules import rule_schedules
from tessel.search.model.instance import Instance, InstanceArrays, IntArray

OPERATIONS_A_TASK = 2_000
"""Charged for each task of a rule."""


def offer_serial(best: Incumbent) -> None:
    """Offer a schedule that always exists: one micro-batch after the other, where that keeps the limits."""
    best.offer(_first_schedule(best.instance), "serial")


def offer_rules(best: Incumbent) -> None:
    """Offer the hand-written rules that fit, however small the budget; large ones only as published."""
    if Phase.HANDWRITTEN in best.params.left_out:
        return
    num_tasks = best.instance.num_tasks
    is_large = num_tasks > MAX_TASKS
    has_rule = False

    def is_dispensable() -> bool:
        return best.budget.is_interrupted or (has_rule and best.budget.seconds_left <= 0)

    for rule in sorted(HANDWRITTEN, key=_turn) if is_large else HANDWRITTEN:
        if best.makespan <= best.lower_bound:
            return
        if isinstance(rule, LimitedRule) and is_dispensable():
            continue
        is_any = False
        known = best.makespan if is_large else NEVER
        for start in rule_schedules(
            rule, best.instance, variants=not is_large, known=known, is_dispensable=is_dispensable
        ):
            best.offer(start, rule.name)
            is_any = has_rule = True
        best.budget.charge(num_tasks * (OPERATIONS_A_TASK if is_any else 1))


def offer_list_schedules(best: Incumbent) -> None:
    """Offer the schedules of all urgencies, as far as the budget allows."""
    instance = best.instance
    stride = max(1, int(instance.least_work().max()))
    for options in _option_presets(instance.arrays):
        for rhythm in best.params.rhythms:
            for is_active in (False, True):
                if best.is_over or Phase.LIST_SCHEDULING in best.params.left_out:
                    return
                _offer_urgency(best, options, stride=round(rhythm * stride), is_active=is_active)


def offer_held_back(best: Incumbent) -> None:
    """Offer list schedules with limits in flight, where memory is limited, as far as the budget allows."""
    instance = best.instance
    if instance.memory is None or Phase.LIMITS_IN_FLIGHT in best.params.left_out:
        return
    setting: Setting | None = None
    for options in _option_presets(instance.arrays):
        if best.is_over:
            return
        if not (options < 0).any():
            setting = offer_limits_in_flight(best, options, setting)


def _turn(rule: Rule) -> int:
    """Those that are published as orders first: what must be simulated may be seen to be longer halfway."""
    if isinstance(rule, StreamRule):
        return 0 if rule.generalised is None else 1
    return 2


def _option_presets(arrays: InstanceArrays) -> Iterator[IntArray]:
    """Yield options by choice and micro-batch, the same for all micro-batches unless left open.

    First all are left open; then all take the first option, all the second, …; then the choices on the
    busiest devices take the option with the least work there and the others the one with the most blocks, for
    one, two, four, … of the busiest devices: to split costs work, which hurts least where there is time to
    spare.
    """
    num_choices = len(arrays.default_option)
    yield np.full((num_choices, arrays.micro_batches), -1, dtype=np.int64)
    if num_choices == 0:
        return
    num_options = int(arrays.option.max()) + 1
    work, length = _work_by_option(arrays, num_options)
    for option in range(num_options):
        last = np.array(
            [max(np.flatnonzero(length[choice])) for choice in range(num_choices)], dtype=np.int64
        )
        yield _for_all(arrays, np.minimum(option, last))
    cheapest = np.where(length > 0, work, NEVER).argmin(axis=1)
    finest = length.argmax(axis=1)
    devices = _by_work(arrays, work, length)
    for count in (2**power for power in range(len(devices).bit_length())):
        if count < len(devices):
            is_busy = _touches(arrays, devices[:count], num_choices)
            yield _for_all(arrays, np.where(is_busy, cheapest, finest))


def _for_all(arrays: InstanceArrays, options: IntArray) -> IntArray:
    return np.repeat(options[:, None], arrays.micro_batches, axis=1)


def _work_by_option(arrays: InstanceArrays, num_options: int) -> tuple[IntArray, IntArray]:
    """Total span, and number of blocks, by choice and option."""
    work = np.zeros((len(arrays.default_option), num_options), dtype=np.int64)
    length = np.zeros_like(work)
    for block in np.flatnonzero(arrays.choice >= 0):
        work[arrays.choice[block], arrays.option[block]] += arrays.span[block]
        length[arrays.choice[block], arrays.option[block]] += 1
    return work, length


def _by_work(arrays: InstanceArrays, work: IntArray, length: IntArray) -> list[int]:
    """Devices that choices touch, the busiest first when each choice takes the option with the least work."""
    cheapest = np.where(length > 0, work, NEVER).argmin(axis=1)
    total = np.zeros(arrays.num_devices, dtype=np.int64)
    touched: set[int] = set()
    for block in range(arrays.num_blocks):
        held = arrays.device[arrays.device_start[block] : arrays.device_start[block + 1]]
        choice = arrays.choice[block]
        touched.update(held.tolist() if choice >= 0 else ())
        if choice < 0 or cheapest[choice] == arrays.option[block]:
            total[held] += arrays.span[block]
    return sorted(touched, key=lambda device: (-total[device], device))


def _touches(arrays: InstanceArrays, devices: Sequence[int], num_choices: int) -> npt.NDArray[np.bool_]:
    """Whether a choice has a block on one of the devices."""
    found = np.zeros(num_choices, dtype=np.bool_)
    for block in np.flatnonzero(arrays.choice >= 0):
        held = arrays.device[arrays.device_start[block] : arrays.device_start[block + 1]]
        found[arrays.choice[block]] |= bool(np.isin(held, devices).any())
    return found


def _offer_urgency(best: Incumbent, options: IntArray, *, stride: int, is_active: bool) -> None:
    arrays = best.instance.arrays
    rhythm = np.arange(arrays.micro_batches, dtype=np.int64)[:, None] * stride
    dispatch = by_priority(arrays, (rhythm - arrays.tail[None, :]).reshape(-1))
    start = np.empty(len(dispatch.priority), dtype=np.int64)
    listing = list_schedule(arrays, dispatch, options.copy(), start, best.budget, is_active=is_active)
    if listing is not None:
        best.offer(start, "list scheduling")


def _first_schedule(instance: Instance) -> IntArray:
    """The tasks in the order by which the instance is known to have a schedule."""
    arrays = instance.arrays
    if instance.first_tasks is None:
        return _one_after_the_other(arrays)
    sequence = np.array([m * arrays.num_blocks + block for block, m in instance.first_tasks], dtype=np.int64)
    options = np.repeat(arrays.default_option[:, None], arrays.micro_batches, axis=1)
    start = np.full(instance.num_tasks, -1, dtype=np.int64)
    is_valid = start_in_sequence(arrays, sequence, options, start)
    assert is_valid  # it was found as an order that keeps the limits
    return start


def _one_after_the_other(arrays: InstanceArrays) -> IntArray:
    """Run each micro-batch alone, in the serial order; keeps every limit that can be kept so."""
    num_blocks = arrays.num_blocks
    start = np.full(arrays.micro_batches * num_blocks, -1, dtype=np.int64)
    once = _start_of_one(arrays)
    length = int((once + arrays.span)[once >= 0].max())
    for micro_batch in range(arrays.micro_batches):
        row = start[micro_batch * num_blocks : (micro_batch + 1) * num_blocks]
        row[once >= 0] = once[once >= 0] + micro_batch * length
    return start


def _start_of_one(arrays: InstanceArrays) -> IntArray:
    """Starts of one micro-batch's blocks in the serial order; -1 for those left out."""
    start = np.full(arrays.num_blocks, -1, dtype=np.int64)
    free = [0] * arrays.num_devices
    for block in map(int, arrays.serial_order):
        choice = int(arrays.choice[block])
        if choice >= 0 and arrays.option[block] != arrays.default_option[choice]:
            continue
        devices = arrays.device[arrays.device_start[block] : arrays.device_start[block + 1]]
        earliest = max(free[device] for device in devices)
        for place in range(arrays.before_start[block], arrays.before_start[block + 1]):
            source = arrays.before[place]
            if start[source] >= 0:
                earliest = max(earliest, int(start[source] + arrays.before_delay[place]))
        start[block] = earliest
        for device in devices:
            free[device] = earliest + int(arrays.span[block])
    return start
