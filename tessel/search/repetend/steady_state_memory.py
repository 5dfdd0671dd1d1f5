"""Memory that a repetend holds, step by step, once it repeats.

Block b with start t in iteration k = t // T has been started floor((now - t) / T) + 1 times; on a device
where a micro-batch frees what it adds, the sum of memory over these counts is what is held, and it repeats
with the period. Checked in tests/tessel/search/repetend/test_find_repetend.py against `tessel.validation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tessel.search.model.problem import IntArray, Problem
from tessel.search.repetend.cyclic_problem import is_limited

if TYPE_CHECKING:
    from tessel.search.repetend.repetend_result import RepetendResult


def keeps_memory(problem: Problem, starts: IntArray, period: int) -> bool:
    """Return whether every limited device stays within its limit, whatever starts together on it.

    Args:
        starts: int64, shape (copies, num_blocks).
        period: steps after which they repeat.
    """
    for device, blocks in enumerate(problem.blocks_by_device):
        held = [block for block in blocks if problem.memory[block]]
        if not held or not is_limited(problem, device):
            continue
        if steady_peak(problem.memory[held], starts[:, held], period) > problem.limits[device]:
            return False
    return True


def steady_peak(memory: IntArray, starts: IntArray, period: int) -> int:
    """Return the most units held at once on a device.

    Args:
        memory: int64, shape (num_blocks,): what each of the device's blocks adds; the sum is 0.
        starts: int64, shape (copies, num_blocks): when they start.
        period: steps after which they start again.
    """
    iterations, phases = np.divmod(starts, period)
    slots = np.sort(phases, axis=None)
    order = np.argsort(phases, axis=None, kind="stable")
    levels = np.cumsum(np.broadcast_to(memory, starts.shape).ravel()[order])
    is_last = np.append(slots[1:] != slots[:-1], True)
    return int(levels[is_last].max()) - int((iterations * memory).sum())


def steady_peaks(found: RepetendResult) -> tuple[int, ...]:
    """Return the most units that each device holds at once while the repetend repeats."""
    blocks = [found.placement.blocks[index] for index in found.block_indices]
    starts = np.array(found.starts, dtype=np.int64)
    peaks = []
    for device in range(found.placement.devices):
        held = [here for here, block in enumerate(blocks) if device in block.devices and block.memory]
        memory = np.array([blocks[here].memory for here in held], dtype=np.int64)
        is_steady = held and memory.sum() == 0
        peaks.append(steady_peak(memory, starts[:, held], found.period) if is_steady else 0)
    return tuple(peaks)
