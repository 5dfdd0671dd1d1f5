"""One search problem: a placement, its micro-batches and memory limits, and all of it as plain arrays.

All micro-batches are alike, so exchanging the names of two of them between the starts of a block changes
nothing: some best schedule starts each block's micro-batches in order. A partial schedule is therefore how
many micro-batches each block has started. Task `m·B + b` is block b of micro-batch m.

Under a memory limit a partial schedule can be a dead end. `serial_order` is an order of one micro-batch's
blocks that keeps the limits by itself; as long as the unfinished micro-batches can be finished one after the
other, oldest first, in that order, nothing is stuck (`tessel.search.makespan.list_scheduling`, after
Dijkstra's banker). An instance that exists has a schedule (`tessel.search.model.feasible_order`). Checked in
tests/tessel/search/model/test_instance.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.search.model.feasible_order import FeasibleOrder, find_feasible_order
from tessel.search.model.memory_need import ample_rooms
from tessel.search.model.precedence import (
    IntArray,
    Precedence,
    as_array,
    flat_rows,
    least_heads,
    least_tails,
    precedence_of,
)
from tessel.search.model.problem import Problem, make_problem, memory_limits

__all__ = ["Instance", "InstanceArrays", "IntArray", "build_instance"]


class InstanceArrays(NamedTuple):
    """What the compiled searches take of an instance; all int64.

    Lists of lists are flat, row b from `…_start[b]` to `…_start[b + 1]`.

    Attributes:
        num_blocks: blocks of one micro-batch.
        micro_batches: micro-batches.
        span: steps by block.
        memory: units by block.
        device_start: rows of `device` by block.
        device: devices that a block holds.
        on_start: rows of `on` by device.
        on: blocks that hold a device, in the serial order.
        before_start: rows of `before` and `before_delay` by block.
        before: blocks that come before a block.
        before_delay: least steps from the start of the earlier block to the start of the later one.
        after_start: rows of `after` and `after_delay` by block.
        after: blocks that come after a block.
        after_delay: as `before_delay`.
        choice: choice that a block belongs to, or -1.
        option: option of that choice, or -1.
        member_start: rows of `member` by choice.
        member: blocks of all options of a choice.
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
    on_start: IntArray
    on: IntArray
    before_start: IntArray
    before: IntArray
    before_delay: IntArray
    after_start: IntArray
    after: IntArray
    after_delay: IntArray
    choice: IntArray
    option: IntArray
    member_start: IntArray
    member: IntArray
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
        precedence: edges between the blocks, choices and all.
        first_tasks: (block, micro-batch) in an order that keeps the limits, where one micro-batch after the
            other does not; else None.
    """

    placement: Placement
    micro_batches: int
    memory: tuple[int, ...] | None
    precedence: Precedence
    arrays: InstanceArrays
    first_tasks: tuple[tuple[int, int], ...] | None = None

    @property
    def num_blocks(self) -> int:
        """Blocks of one micro-batch, all options counted."""
        return self.arrays.num_blocks

    @property
    def num_tasks(self) -> int:
        """Blocks of all micro-batches, all options counted."""
        return self.arrays.num_blocks * self.micro_batches

    def least_work(self) -> IntArray:
        """Return, by device, the steps that a micro-batch keeps it busy, its cheapest options taken."""
        arrays = self.arrays
        held = np.diff(arrays.device_start)
        span, choice, option = (np.repeat(each, held) for each in (arrays.span, arrays.choice, arrays.option))
        work = np.zeros(arrays.num_devices, dtype=np.int64)
        np.add.at(work, arrays.device[choice < 0], span[choice < 0])
        num_options = self.precedence.num_options
        for index in range(len(num_options)):
            by_option = np.zeros((num_options[index], arrays.num_devices), dtype=np.int64)
            here = choice == index
            np.add.at(by_option, (option[here], arrays.device[here]), span[here])
            work += by_option.min(axis=0)
        return work

    def problem(self) -> Problem:
        """Return the blocks and limits with each choice at its first option."""
        return make_problem(self.placement, memory=self.memory)


MAX_TASKS = 2**24
"""Tasks of a schedule that is searched or written; so many take 5 GB."""


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
        ScheduleError: there are more tasks than `MAX_TASKS`.
        ValueError: there are no micro-batches, or the number of limits is wrong.
    """
    limits = memory_limits(memory, placement.devices).tolist()
    if micro_batches < 1:
        raise ValueError(f"{micro_batches} micro-batches were asked for; a schedule has at least 1")
    num_tasks = micro_batches * len(placement.blocks)
    if num_tasks > MAX_TASKS:
        raise ScheduleError(
            f"{micro_batches} micro-batches of {len(placement.blocks)} blocks are {num_tasks} tasks, and a "
            f"schedule has at most {MAX_TASKS}; ask for fewer micro-batches, or for the repeating part alone "
            "(--period-only, find_repetend), which holds for any number"
        )
    if isinstance(memory, int):
        memory = (memory,) * placement.devices
    precedence = precedence_of(placement)
    order = find_feasible_order(placement, precedence, micro_batches=micro_batches, limits=limits)
    ample = ample_rooms(placement)
    return Instance(
        placement=placement,
        micro_batches=micro_batches,
        memory=None if memory is None else tuple(memory),
        precedence=precedence,
        arrays=_arrays_of(placement, precedence, micro_batches, limits, ample, order),
        first_tasks=order.tasks,
    )


def _arrays_of(
    placement: Placement,
    precedence: Precedence,
    micro_batches: int,
    limit: Sequence[int],
    ample: Sequence[int],
    order: FeasibleOrder,
) -> InstanceArrays:
    blocks = placement.blocks
    head, tail = least_heads(precedence), least_tails(precedence)
    device_start, device = flat_rows([block.devices for block in blocks])
    on: list[list[int]] = [[] for _ in range(placement.devices)]
    for block in order.blocks:
        for held in blocks[block].devices:
            on[held].append(block)
    on_start, on_block = flat_rows(on)
    member_start, member = flat_rows(
        [
            [placement.index_by_name[name] for option in choice.options for name in option]
            for choice in placement.choices
        ]
    )
    return InstanceArrays(
        num_devices=placement.devices,
        num_blocks=len(blocks),
        micro_batches=micro_batches,
        span=precedence.span,
        memory=as_array([block.memory for block in blocks]),
        device_start=device_start,
        device=device,
        on_start=on_start,
        on=on_block,
        before_start=precedence.before_start,
        before=precedence.before,
        before_delay=precedence.before_delay,
        after_start=precedence.after_start,
        after=precedence.after,
        after_delay=precedence.after_delay,
        choice=precedence.choice,
        option=precedence.option,
        member_start=member_start,
        member=member,
        default_option=as_array(order.options),
        limit=as_array(limit),
        ample=as_array(ample),
        head=head,
        tail=tail,
        serial_order=as_array(order.blocks),
    )
