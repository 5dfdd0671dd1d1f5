"""Quick first schedules: one micro-batch after the other, hand-written rules, and urgencies.

An urgency is the priority α·m·T - tail(b): the longest way to the end first, with the micro-batches T steps
of the busiest device apart. α = 0 runs all forwards first, α = 1 keeps a steady rhythm, and a large α
finishes what was begun. Each is tried idle-free and with idling, and with every choice fixed to each of its
options. Checked in tests/tessel/search/makespan/test_find_schedule.py.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN, Rule
from tessel.handwritten.rule import find_excess
from tessel.handwritten.strongest import MAX_TASKS
from tessel.orders import Task
from tessel.placement import Placement
from tessel.search.makespan.device_orders import earliest_starts, keeps_limits, orders_of_devices
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.list_scheduling import NEVER, list_schedule
from tessel.search.model.instance import Instance, InstanceArrays, IntArray

MAX_TASKS_UNASKED = MAX_TASKS
"""Tasks of a schedule up to which a rule just runs, in some tenths of a second at most."""

OPERATIONS_A_TASK = 5_000
"""Charged for each task of a rule that is written down as instructions."""

OPERATIONS_A_SIMULATED_TASK = 20_000
"""Charged for each task of a rule that is simulated: where it has a placement that is no chain."""

RUNS_UNDER_LIMIT = 3
"""Simulations of a rule that lowers its own limits until it fits."""


def offer_rules(best: Incumbent) -> None:
    """PricedCandidate one schedule that always exists, then the hand-written ones that fit, then the
    urgencies."""
    instance = best.instance
    best.offer(_one_after_the_other(instance.arrays), "serial")
    for rule in _affordable(best):
        if best.budget.is_interrupted:
            return
        for start in _starts_of(rule, instance):
            best.offer(start, rule.name)
    stride = _busiest_work(instance.placement)
    for options in _option_presets(instance.arrays):
        for rhythm in best.params.rhythms:
            for is_active in (False, True):
                if best.is_over:
                    return
                _offer_urgency(best, options, stride=round(rhythm * stride), is_active=is_active)


def _busiest_work(placement: Placement) -> int:
    """Return the steps that one micro-batch keeps the busiest device at work, at least 1."""
    return max(1, *(placement.work(device) for device in range(placement.devices)))


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
    priority = (rhythm - arrays.tail[None, :]).reshape(-1)
    start = np.empty(len(priority), dtype=np.int64)
    if list_schedule(arrays, priority, options.copy(), is_active, start, best.budget) >= 0:
        best.offer(start, "list scheduling")


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


def _affordable(best: Incumbent) -> Iterator[Rule]:
    """Yield the rules and charge for each; of a large schedule the quickest first, as the budget allows."""
    num_tasks = best.instance.num_tasks
    is_large = num_tasks > MAX_TASKS_UNASKED
    rules = sorted(HANDWRITTEN, key=lambda rule: rule.needs_limit) if is_large else HANDWRITTEN
    for rule in rules:
        operations = num_tasks * OPERATIONS_A_TASK
        if rule.needs_limit:
            operations = num_tasks * OPERATIONS_A_SIMULATED_TASK * RUNS_UNDER_LIMIT
        if is_large and not best.budget.covers(operations):
            continue
        yield rule
        best.budget.charge(operations)


def _starts_of(rule: Rule, instance: Instance) -> Iterator[IntArray]:
    """Yield the starts by task of every way to follow a rule that fits; none where it does not apply."""
    arrays = instance.arrays
    ways = rule.every_orders(instance.placement, micro_batches=instance.micro_batches, memory=instance.memory)
    if instance.num_tasks > MAX_TASKS:
        ways = itertools.islice(ways, 1)
    with contextlib.suppress(ScheduleError):
        for by_device in ways:
            orders = orders_of_devices(arrays, [_task_numbers(arrays, tasks) for tasks in by_device])
            if orders is None:
                continue
            start = earliest_starts(arrays, orders)
            if keeps_limits(arrays, orders) or _fits_at_once(instance, start):
                yield start


def _task_numbers(arrays: InstanceArrays, tasks: Sequence[Task]) -> IntArray:
    numbers = np.array(tasks, dtype=np.int64).reshape(-1, 2)
    found: IntArray = numbers[:, 1] * arrays.num_blocks + numbers[:, 0]
    return found


def _fits_at_once(instance: Instance, start: IntArray) -> bool:
    """Return whether the limits are kept if blocks of span 0 add and free in one step."""
    placement, memory = instance.placement, instance.memory
    if memory is None or all(block.span > 0 for block in placement.blocks if block.memory):
        return False
    size = len(placement.blocks)
    starts = {(task % size, task // size): int(start[task]) for task in np.flatnonzero(start >= 0).tolist()}
    return find_excess(placement, starts, memory) is None
