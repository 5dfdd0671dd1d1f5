"""An order of tasks that keeps the memory limits, by which an instance is known to have a schedule.

Mostly one micro-batch after the other does, each in the same order: then one order of a micro-batch's blocks,
with the room that the last one has, is all there is to find (depth first). It does not where micro-batches
help each other, because one may have freed more than it has added so far, or leaves something behind at its
end. Then an order of all tasks is searched, in which blocks that add nothing come as soon as they may:

    X -2, A +6, Z -5, limit 3      X0 X1 A0 Z0 A1 Z1: -2 -4 2 -3 3 -2      X0 A0 alone would hold 4

Micro-batches are alike, so a state is how many of each block have started. Both searches are complete unless
they are cut off or there are choices, which the error says.
Checked in tests/tessel/search/model/test_instance.py against all orders.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tessel.errors import InfeasibleError
from tessel.placement import Placement
from tessel.search.model.memory_need import explain_infeasible, micro_batches_may_help_each_other
from tessel.search.model.precedence import Precedence

MAX_ORDER_STATES = 200_000
"""States looked at in search of an order, for one combination of options."""

MAX_OPTION_COMBINATIONS = 256
"""Combinations of options tried, the same for all micro-batches."""


@dataclass(frozen=True, slots=True)
class FeasibleOrder:
    """An order that keeps the limits.

    Attributes:
        blocks: all blocks in a topological order; it keeps the limits for every micro-batch alone, one after
            the other, unless there are `tasks`.
        options: the option of each choice with which it does.
        tasks: (block, micro-batch) in an order that keeps them where `blocks` does not; else None.
    """

    blocks: tuple[int, ...]
    options: tuple[int, ...]
    tasks: tuple[tuple[int, int], ...] | None = None


def find_feasible_order(
    placement: Placement, precedence: Precedence, *, micro_batches: int, limits: Sequence[int]
) -> FeasibleOrder:
    """Return an order that keeps the limits, one micro-batch after the other if that does.

    Raises:
        InfeasibleError: there is none, or none was found; the message says which.
    """
    search = _Search.of(placement, precedence, micro_batches, limits)
    combinations = list(itertools.islice(_options(placement), MAX_OPTION_COMBINATIONS))
    for options in combinations:
        order = search.serial_order(options)
        if order is not None:
            return FeasibleOrder(tuple(order), options)
    if micro_batches > 1 and micro_batches_may_help_each_other(placement):
        for options in combinations:
            tasks = search.joint_order(options)
            if tasks is not None:
                return FeasibleOrder(tuple(precedence.order.tolist()), options, tuple(tasks))
    # Micro-batches may take different options, and a block that is not run ties no others.
    search.is_complete &= not placement.choices
    raise InfeasibleError(
        explain_infeasible(
            placement, micro_batches=micro_batches, memory=limits, is_proven=search.is_complete
        )
    )


def _options(placement: Placement) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(len(choice.options)) for choice in placement.choices))


@dataclass(slots=True)
class _Search:
    """What both searches read.

    Attributes:
        limits: units by device.
        after: blocks that wait for each block; `before` likewise.
        is_complete: whether every order was looked at that was to be.
    """

    placement: Placement
    precedence: Precedence
    micro_batches: int
    limits: Sequence[int]
    before: list[list[int]]
    after: list[list[int]]
    is_complete: bool

    @classmethod
    def of(
        cls, placement: Placement, precedence: Precedence, micro_batches: int, limits: Sequence[int]
    ) -> _Search:
        """Return a search that has not begun."""
        before = _rows(precedence.before_start.tolist(), precedence.before.tolist())
        after = _rows(precedence.after_start.tolist(), precedence.after.tolist())
        # blocks of span 0 may add and free in one step, which no order of tasks says
        is_complete = all(block.span > 0 for block in placement.blocks if block.memory)
        return cls(placement, precedence, micro_batches, limits, before, after, is_complete)

    def serial_order(self, options: Sequence[int]) -> list[int] | None:
        """Return a topological order of all blocks whose running sums stay within the room, or None.

        Blocks of options not taken stand in it as well and add nothing.
        """
        memory = [
            0 if self._is_left_out(index, options) else block.memory
            for index, block in enumerate(self.placement.blocks)
        ]
        room = self._room_for_last(memory)
        rank = {block: rank for rank, block in enumerate(self.precedence.order.tolist())}
        # Blocks that free come first, then those that add least; ties in topological order.
        preference = sorted(range(len(memory)), key=lambda index: (max(memory[index], -1), rank[index]))
        straight = self._straight_on(memory, list(room), preference)
        return straight or self._depth_first(memory, list(room), preference)

    def joint_order(self, options: Sequence[int]) -> list[tuple[int, int]] | None:
        """Return an order of all tasks whose running sums stay within the limits, or None; depth first."""
        blocks = self.placement.blocks
        kept = [index for index in range(len(blocks)) if not self._is_left_out(index, options)]
        counts = [0 if index in set(kept) else self.micro_batches for index in range(len(blocks))]
        room = list(self.limits)
        tasks: list[tuple[int, int]] = []
        adding = sorted((index for index in kept if blocks[index].memory > 0), key=self._units)
        failed: set[tuple[int, ...]] = set()

        def move(index: int, direction: int) -> None:
            for device in blocks[index].devices:
                room[device] -= direction * blocks[index].memory
            counts[index] += direction

        def start_what_adds_nothing() -> None:
            ready = list(kept)
            while ready:
                index = ready.pop()
                while blocks[index].memory <= 0 and self._may_start(index, counts):
                    tasks.append((index, counts[index]))
                    move(index, 1)
                    ready += [other for other in self.after[index] if other in places]

        places = set(kept)
        start_what_adds_nothing()
        marks: list[int] = []
        pending = [iter(adding)]
        while len(tasks) < len(kept) * self.micro_batches:
            chosen = next(
                (
                    index
                    for index in pending[-1]
                    if self._may_start(index, counts)
                    and all(room[device] >= blocks[index].memory for device in blocks[index].devices)
                ),
                None,
            )
            if chosen is not None:
                marks.append(len(tasks))
                tasks.append((chosen, counts[chosen]))
                move(chosen, 1)
                start_what_adds_nothing()
                pending.append(iter(() if tuple(counts) in failed else adding))
                continue
            failed.add(tuple(counts))
            self.is_complete &= len(failed) <= MAX_ORDER_STATES
            if not marks or len(failed) > MAX_ORDER_STATES:
                return None
            pending.pop()
            mark = marks.pop()
            for index, _ in reversed(tasks[mark:]):
                move(index, -1)
            del tasks[mark:]
        return tasks

    def _may_start(self, index: int, counts: Sequence[int]) -> bool:
        return counts[index] < self.micro_batches and all(
            counts[source] > counts[index] for source in self.before[index]
        )

    def _units(self, index: int) -> int:
        return self.placement.blocks[index].memory

    def _is_left_out(self, index: int, options: Sequence[int]) -> bool:
        choice = int(self.precedence.choice[index])
        return choice >= 0 and options[choice] != int(self.precedence.option[index])

    def _room_for_last(self, memory: Sequence[int]) -> list[int]:
        """Room for one micro-batch when those before it are finished, which may have left something."""
        left = [0] * self.placement.devices
        for amount, block in zip(memory, self.placement.blocks, strict=True):
            for device in block.devices:
                left[device] += amount
        return [
            bound - max(0, (self.micro_batches - 1) * each)
            for bound, each in zip(self.limits, left, strict=True)
        ]

    def _straight_on(
        self, memory: Sequence[int], room: list[int], preference: Sequence[int]
    ) -> list[int] | None:
        """Take the first block that may come next and fits, again and again; None where none does."""
        blocks = self.placement.blocks
        place = {block: place for place, block in enumerate(preference)}
        pending = [len(row) for row in self.before]
        ready = [place[block] for block, count in enumerate(pending) if count == 0]
        heapq.heapify(ready)
        order: list[int] = []
        too_large: list[int] = []
        while ready:
            block = preference[heapq.heappop(ready)]
            if any(room[device] < memory[block] for device in blocks[block].devices):
                too_large.append(place[block])
                continue
            order.append(block)
            for device in blocks[block].devices:
                room[device] -= memory[block]
            if memory[block] < 0:
                for waiting in too_large:
                    heapq.heappush(ready, waiting)
                too_large.clear()
            for target in self.after[block]:
                pending[target] -= 1
                if pending[target] == 0:
                    heapq.heappush(ready, place[target])
        return order if len(order) == len(blocks) else None

    def _depth_first(
        self, memory: Sequence[int], room: list[int], preference: Sequence[int]
    ) -> list[int] | None:
        blocks = self.placement.blocks
        before = [sum(1 << source for source in row) for row in self.before]
        failed: set[int] = set()
        order: list[int] = []
        done = 0
        pending = [iter(preference)]
        while len(order) < len(blocks):
            index = next(
                (
                    index
                    for index in pending[-1]
                    if not done >> index & 1
                    and before[index] & ~done == 0
                    and done | 1 << index not in failed
                    and all(room[device] >= memory[index] for device in blocks[index].devices)
                ),
                None,
            )
            if index is not None:
                change, direction = index, 1
                order.append(index)
                pending.append(iter(preference))
            else:
                failed.add(done)
                self.is_complete &= len(failed) <= MAX_ORDER_STATES
                if not order or len(failed) > MAX_ORDER_STATES:
                    return None
                pending.pop()
                change, direction = order.pop(), -1
            done ^= 1 << change
            for device in blocks[change].devices:
                room[device] -= direction * memory[change]
        return order


def _rows(starts: Sequence[int], numbers: Sequence[int]) -> list[list[int]]:
    return [list(numbers[begin:end]) for begin, end in itertools.pairwise(starts)]
