"""Change which options some micro-batches run, and leave everything else of a schedule where it is.

In the order of all tasks, the blocks of the new option take the place of the first block of the old one:

    f0 f1 b1 b0 ...      b1 joint, then split      f0 f1 b1_input b1_weight b0 ...

Where the new order breaks an edge or a memory limit there is nothing to return; what makes the new option pay
(a weight half in an idle place) is left to `tessel.search.makespan.tabu_search`. Checked in
tests/tessel/search/makespan/test_option_flips.py.
"""

from __future__ import annotations

import numpy as np

from tessel.search.jit.compiled import compiled
from tessel.search.jit.random_generator import below, next_state
from tessel.search.makespan.device_orders import orders_of
from tessel.search.makespan.incumbent import options_of
from tessel.search.makespan.list_scheduling import place_task, ready_time
from tessel.search.model.instance import InstanceArrays, IntArray

MAX_FLIPS = 3
"""Most runs of micro-batches whose option changes at once."""


def flip_options(arrays: InstanceArrays, start: IntArray, state: int) -> tuple[IntArray | None, int]:
    """Return starts in which some options differ, or None where that breaks something, and the state.

    Args:
        arrays: of the instance; it has choices.
        start: starts by task of a valid schedule.
        state: state of the random generator.
    """
    old = options_of(arrays, start)
    new = old.copy()
    num_choices, micro_batches = new.shape
    state = next_state(state)
    for _ in range(1 + below(state, MAX_FLIPS)):
        state = next_state(state)
        choice = below(state, num_choices)
        state = next_state(state)
        first = below(state, micro_batches)
        state = next_state(state)
        # Half of the runs are one micro-batch long, the rest of any length.
        length = 1 if below(state, 2) == 0 else 1 + below(next_state(state), micro_batches - first)
        num_options = int(arrays.option[arrays.choice == choice].max()) + 1
        state = next_state(next_state(state))
        shift = 1 + below(state, num_options - 1)
        new[choice, first : first + length] = (new[choice, first : first + length] + shift) % num_options
    return with_options(arrays, start, new), state


def with_options(arrays: InstanceArrays, start: IntArray, options: IntArray) -> IntArray | None:
    """Return the earliest starts of a schedule's order with these options instead, or None where it breaks.

    Args:
        arrays: of the instance.
        start: starts by task of a valid schedule.
        options: option by choice and micro-batch.
    """
    old = options_of(arrays, start)
    sequence: list[int] = []
    is_placed = np.zeros(old.shape, dtype=np.bool_)
    for task in orders_of(arrays, start).sequence.tolist():
        micro_batch, block = divmod(task, arrays.num_blocks)
        choice = int(arrays.choice[block])
        if choice < 0 or old[choice, micro_batch] == options[choice, micro_batch]:
            sequence.append(task)
        elif not is_placed[choice, micro_batch]:
            is_placed[choice, micro_batch] = True
            sequence += _tasks_of_option(arrays, choice, int(options[choice, micro_batch]), micro_batch)
    found = np.full(len(start), -1, dtype=np.int64)
    is_valid = start_in_sequence(arrays, np.array(sequence, dtype=np.int64), options.copy(), found)
    return found if is_valid else None


def _tasks_of_option(arrays: InstanceArrays, choice: int, option: int, micro_batch: int) -> list[int]:
    """The tasks of an option of one micro-batch, in the serial order."""
    return [
        micro_batch * arrays.num_blocks + block
        for block in arrays.serial_order.tolist()
        if arrays.choice[block] == choice and arrays.option[block] == option
    ]


@compiled
def start_in_sequence(arrays: InstanceArrays, sequence: IntArray, options: IntArray, start: IntArray) -> bool:
    """Start each task as early as the ones before it allow; return False where it breaks an edge or a limit.

    Args:
        arrays: of the instance.
        sequence: all tasks that are run.
        options: option by choice and micro-batch, none open.
        start: by task, -1 at first; overwritten.
    """
    free = np.zeros(arrays.num_devices, dtype=np.int64)
    held = np.zeros(arrays.num_devices, dtype=np.int64)
    following = np.zeros(arrays.num_blocks, dtype=np.int64)
    for task in sequence:
        block, micro_batch = task % arrays.num_blocks, task // arrays.num_blocks
        when = ready_time(arrays, block, micro_batch, start, free, options)
        if when < 0:
            return False
        place_task(arrays, block, micro_batch, when, start, free, held, options, following)
        for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
            device = arrays.device[place]
            if held[device] > arrays.limit[device]:
                return False
    return True
