"""One search problem: a placement, its micro-batches and memory limits, and all of it as plain arrays.

All micro-batches are alike, so exchanging the names of two of them between the starts of a block changes
nothing: some best schedule starts each block's micro-batches in order. A partial schedule is therefore how
many micro-batches each block has started. Task `m·B + b` is block b of micro-batch m.

Under a memory limit a partial schedule can be a dead end. `serial_order` is an order of one micro-batch's
blocks that keeps the limits by itself; as long as the unfinished micro-batches can be finished one after the
other, oldest first, in that order, nothing is stuck (`tessel.search.makespan.list_scheduling`, after
Dijkstra's banker). Checked in tests/tessel/search/model/test_instance.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import networkx as nx
import numpy as np
import numpy.typing as npt

from tessel.errors import InfeasibleError
from tessel.placement import Placement
from tessel.search.model.distances import least_distances_from_start, least_distances_to_end
from tessel.search.model.memory_need import ample_rooms, explain_infeasible
from tessel.search.model.problem import memory_limits

IntArray = npt.NDArray[np.int64]

MAX_ORDER_STATES = 200_000
"""Sets of blocks looked at in search of a serial order, for one combination of options."""

MAX_OPTION_COMBINATIONS = 256
"""Combinations of options tried in search of a serial order."""


class InstanceArrays(NamedTuple):
    """What the compiled searches take of an instance; all int64.

    Lists of lists are flat, row b from `…_start[b]` to `…_start[b + 1]`.

    Attributes:
        num_devices: devices.
        num_blocks: blocks of one micro-batch.
        micro_batches: micro-batches.
        span: steps by block.
        memory: units by block.
        device_start: rows of `device` by block.
        device: devices that a block holds.
        before_start: rows of `before` and `before_delay` by block.
        before: blocks that come before a block.
        before_delay: least steps from the start of the earlier block to the start of the later one.
        after_start: rows of `after` and `after_delay` by block.
        after: blocks that come after a block.
        after_delay: as `before_delay`.
        choice: choice that a block belongs to, or -1.
        option: option of that choice, or -1.
        default_option: by choice, the option that `serial_order` keeps the limits with.
        limit: units by device; `UNLIMITED` where there is none.
        ample: room by device with which every open micro-batch can be finished, whatever the others hold.
        head: least steps by block from the start of its micro-batch to the start of the block.
        tail: least steps by block from its start to the end of its micro-batch.
        serial_order: all blocks in an order that keeps the limits for one micro-batch alone.
    """

    num_devices: int
    num_blocks: int
    micro_batches: int
    span: IntArray
    memory: IntArray
    device_start: IntArray
    device: IntArray
    before_start: IntArray
    before: IntArray
    before_delay: IntArray
    after_start: IntArray
    after: IntArray
    after_delay: IntArray
    choice: IntArray
    option: IntArray
    default_option: IntArray
    limit: IntArray
    ample: IntArray
    head: IntArray
    tail: IntArray
    serial_order: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """What is to be scheduled. One that exists has a schedule: see `build_instance`.

    Attributes:
        placement: blocks of one micro-batch.
        micro_batches: how many are run, >= 1.
        memory: limit in units, one a device; None for none.
        arrays: all of that as arrays.
    """

    placement: Placement
    micro_batches: int
    memory: tuple[int, ...] | None
    arrays: InstanceArrays

    @property
    def num_blocks(self) -> int:
        """Blocks of one micro-batch, all options counted."""
        return self.arrays.num_blocks

    @property
    def num_tasks(self) -> int:
        """Blocks of all micro-batches, all options counted."""
        return self.arrays.num_blocks * self.micro_batches


def build_instance(
    placement: Placement, *, micro_batches: int, memory: Sequence[int] | int | None
) -> Instance:
    """Return the instance, checked: some schedule keeps its limits.

    Args:
        placement: blocks of one micro-batch.
        micro_batches: how many are run, >= 1.
        memory: limit in units, one a device or one for all; None for none.

    Raises:
        InfeasibleError: no schedule keeps the limits; names a device and what it needs at least.
        ValueError: there are no micro-batches, or the number of limits is wrong.
    """
    limits = memory_limits(memory, placement.devices).tolist()
    if micro_batches < 1:
        raise ValueError(f"{micro_batches} micro-batches were asked for; a schedule has at least 1")
    if isinstance(memory, int):
        memory = (memory,) * placement.devices
    return Instance(
        placement=placement,
        micro_batches=micro_batches,
        memory=None if memory is None else tuple(memory),
        arrays=_arrays_of(placement, micro_batches, limits),
    )


def _arrays_of(placement: Placement, micro_batches: int, limit: Sequence[int]) -> InstanceArrays:
    blocks = placement.blocks
    choice, option = _choice_by_block(placement)
    before, after = _neighbours(placement)
    serial_order, options = _serial_order(placement, micro_batches, limit)
    device_start, device = _flat([list(block.devices) for block in blocks])
    before_start, before_block = _flat([[source for source, _ in row] for row in before])
    after_start, after_block = _flat([[target for target, _ in row] for row in after])
    return InstanceArrays(
        num_devices=placement.devices,
        num_blocks=len(blocks),
        micro_batches=micro_batches,
        span=_array([block.span for block in blocks]),
        memory=_array([block.memory for block in blocks]),
        device_start=device_start,
        device=device,
        before_start=before_start,
        before=before_block,
        before_delay=_flat([[delay for _, delay in row] for row in before])[1],
        after_start=after_start,
        after=after_block,
        after_delay=_flat([[delay for _, delay in row] for row in after])[1],
        choice=_array(choice),
        option=_array(option),
        default_option=_array(options),
        limit=_array(limit),
        ample=_array(ample_rooms(placement)),
        head=_array(least_distances_from_start(placement)),
        tail=_array(least_distances_to_end(placement)),
        serial_order=_array(serial_order),
    )


def _array(numbers: Sequence[int]) -> IntArray:
    return np.array(numbers, dtype=np.int64)


def _flat(rows: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    ends = itertools.accumulate((len(row) for row in rows), initial=0)
    return _array(list(ends)), _array([number for row in rows for number in row])


def _choice_by_block(placement: Placement) -> tuple[list[int], list[int]]:
    choice, option = [-1] * len(placement.blocks), [-1] * len(placement.blocks)
    for choice_index, known in enumerate(placement.choices):
        for option_index, names in enumerate(known.options):
            for name in names:
                choice[placement.index_by_name[name]] = choice_index
                option[placement.index_by_name[name]] = option_index
    return choice, option


def _neighbours(placement: Placement) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
    """Blocks before and after each block, with the delay from start to start; parallel edges are merged."""
    index = placement.index_by_name
    before: list[list[tuple[int, int]]] = [[] for _ in placement.blocks]
    after: list[list[tuple[int, int]]] = [[] for _ in placement.blocks]
    for source, target, lag in placement.graph.edges(data="lag"):
        delay = placement.block(source).span + lag
        before[index[target]].append((index[source], delay))
        after[index[source]].append((index[target], delay))
    return before, after


def _serial_order(
    placement: Placement, micro_batches: int, limit: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return an order of all blocks, and an option for each choice, that keep the limits one by one."""
    sizes = (range(len(choice.options)) for choice in placement.choices)
    for options in itertools.islice(itertools.product(*sizes), MAX_OPTION_COMBINATIONS):
        memory = _memory_with(placement, options)
        room = _room_for_last(placement, memory, micro_batches, limit)
        order = _order_within(placement, memory, room)
        if order is not None:
            return order, list(options)
    raise InfeasibleError(explain_infeasible(placement, micro_batches=micro_batches, memory=limit))


def _memory_with(placement: Placement, options: Sequence[int]) -> list[int]:
    """Memory by block, 0 for blocks that these options leave out."""
    choice, option = _choice_by_block(placement)
    return [
        block.memory if choice[index] < 0 or options[choice[index]] == option[index] else 0
        for index, block in enumerate(placement.blocks)
    ]


def _room_for_last(
    placement: Placement, memory: Sequence[int], micro_batches: int, limit: Sequence[int]
) -> list[int]:
    """Room for one micro-batch when those before it are finished, which may have left something behind."""
    left = [0] * placement.devices
    for amount, block in zip(memory, placement.blocks, strict=True):
        for device in block.devices:
            left[device] += amount
    return [bound - max(0, (micro_batches - 1) * each) for bound, each in zip(limit, left, strict=True)]


def _order_within(placement: Placement, memory: Sequence[int], room: Sequence[int]) -> list[int] | None:
    """Return a topological order whose running sums of memory stay within the room; depth first."""
    blocks = placement.blocks
    rank = {
        name: rank
        for rank, name in enumerate(
            nx.lexicographical_topological_sort(placement.graph, key=placement.index_by_name.__getitem__)
        )
    }
    before = [0] * len(blocks)
    for source, target in placement.graph.edges:
        before[placement.index_by_name[target]] |= 1 << placement.index_by_name[source]
    # Blocks that free come first, then those that add least; ties in topological order.
    preference = sorted(
        range(len(blocks)), key=lambda index: (max(memory[index], -1), rank[blocks[index].name])
    )
    failed: set[int] = set()
    order: list[int] = []
    done = 0
    free = list(room)
    pending = [iter(preference)]
    while len(order) < len(blocks):
        index = next(
            (
                index
                for index in pending[-1]
                if not done >> index & 1
                and before[index] & ~done == 0
                and done | 1 << index not in failed
                and all(free[device] >= memory[index] for device in blocks[index].devices)
            ),
            None,
        )
        if index is not None:
            change, direction = index, 1
            order.append(index)
            pending.append(iter(preference))
        else:
            failed.add(done)
            if not order or len(failed) > MAX_ORDER_STATES:
                return None
            pending.pop()
            change, direction = order.pop(), -1
        done ^= 1 << change
        for device in blocks[change].devices:
            free[device] -= direction * memory[change]
    return order
