"""Orders in which each device takes a forward and a backward together as soon as both are there.

Time goes on from event to event; a device that is free takes a pair, or waits for the other half of one that
comes sooner than the pair saves, or takes what there is. Forwards run ahead of their backwards by as many
micro-batches as are under way meanwhile (Little's law), times a slack: pairs hand on what they make late, so
that more are under way than without. Limits of memory are kept; where that comes to a halt there is no order.
Checked in tests/tessel/search/overlap/test_find_overlapped.py.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tessel.orders import Task
from tessel.placement import BlockKind, Placement
from tessel.schedule.overlap import Pair, pair_span

UNLIMITED = 1 << 60
"""Room where there is no limit of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is preferred.

    Attributes:
        slack: micro-batches under way, as a multiple of what Little's law says.
        deepest_first: whether forwards of later stages come before earlier micro-batches.
        waits: whether a device waits for the other half of a pair.
    """

    slack: float
    deepest_first: bool
    waits: bool


POLICIES = tuple(
    Policy(slack=slack, deepest_first=deepest_first, waits=waits)
    for slack in (1.0, 1.25, 0.75, 1.5, 2.0, 0.5, 4.0)
    for deepest_first in (True, False)
    for waits in (True, False)
)
"""What is tried, the usual winners first."""


def joint_placement(placement: Placement) -> Placement:
    """Return the placement whose backwards are joint wherever there is a choice."""
    options = {}
    for choice in placement.choices:
        kinds = [{placement.block(name).kind for name in option} for option in choice.options]
        options[choice.name] = next(
            (place for place, own in enumerate(kinds) if BlockKind.BACKWARD in own), 0
        )
    return placement.chosen(options)


def list_paired(
    placement: Placement,
    *,
    micro_batches: int,
    memory: Sequence[int] | None,
    factor: float,
    policy: Policy,
) -> tuple[list[list[Task]], list[Pair]] | None:
    """Return an order of each device and its pairs; None where there is none under the limits.

    Args:
        placement: without choices, each block on one device.
        memory: limit by device; None for none.
        factor: share of its sum that a pair takes.
    """
    listing = _Listing(placement, micro_batches, memory, factor, policy)
    return listing.run()


class _Listing:
    def __init__(
        self,
        placement: Placement,
        micro_batches: int,
        memory: Sequence[int] | None,
        factor: float,
        policy: Policy,
    ) -> None:
        self.blocks, self.factor, self.policy = placement.blocks, factor, policy
        index = placement.index_by_name
        self.after: list[list[tuple[int, int]]] = [[] for _ in self.blocks]
        before = [0] * len(self.blocks)
        for edge in placement.edges:
            self.after[index[edge.source]].append((index[edge.target], edge.lag))
            before[index[edge.target]] += 1
        rank = {name: place for place, name in enumerate(placement.topological_order)}
        self.rank = [rank[block.name] for block in self.blocks]
        self.pending = [before[:] for _ in range(micro_batches)]
        self.reached = [[0] * len(self.blocks) for _ in range(micro_batches)]
        devices = range(placement.devices)
        self.coming: list[list[tuple[int, Task]]] = [[] for _ in devices]
        self.waiting: list[dict[bool, list[tuple[tuple[int, int], Task]]]] = [
            {True: [], False: []} for _ in devices
        ]
        self.free = [0] * placement.devices
        self.room = [UNLIMITED] * placement.devices if memory is None else list(memory)
        self.orders: list[list[Task]] = [[] for _ in devices]
        self.pairs: list[Pair] = []
        self.closing = self._closing(placement)
        self.caps = self._caps(placement)
        self.ahead = [0] * len(self.blocks)
        self.events: list[tuple[int, int]] = []
        for block, count in enumerate(before):
            for micro_batch in range(micro_batches if not count else 0):
                self._announce(Task(block, micro_batch), 0)
        self.left = len(self.blocks) * micro_batches

    def run(self) -> tuple[list[list[Task]], list[Pair]] | None:
        while self.events:
            now, device = heapq.heappop(self.events)
            if self.free[device] <= now:
                self._decide(device, now)
        return None if self.left else (self.orders, self.pairs)

    def _closing(self, placement: Placement) -> dict[int, int]:
        """Return for each backward, or input half, the forward of its stage."""
        found = {}
        for block, followers in enumerate(self.after):
            if self.blocks[block].kind is BlockKind.FORWARD:
                for later, _ in followers:
                    is_back = self.blocks[later].kind in (BlockKind.BACKWARD, BlockKind.BACKWARD_INPUT)
                    if is_back and self.blocks[later].devices == self.blocks[block].devices:
                        found[later] = block
        return found

    def _caps(self, placement: Placement) -> dict[int, int]:
        """Return how many micro-batches each forward may be ahead of its backward."""
        spans = [block.span for block in self.blocks]
        busy = [0] * placement.devices
        for backward, forward in self.closing.items():
            own = pair_span(spans[forward], spans[backward], factor=self.factor)
            busy[self.blocks[forward].devices[0]] += own
            spans[forward] = spans[backward] = own
        period = max(busy, default=0)
        if not period:
            return {}
        caps = {}
        order = sorted(range(len(self.blocks)), key=self.rank.__getitem__)
        for backward, forward in self.closing.items():
            reached = {forward: 0}
            for block in order:
                if block in reached:
                    for later, lag in self.after[block]:
                        reached[later] = max(reached.get(later, 0), reached[block] + spans[block] + lag)
            under_way = (reached[backward] + spans[backward]) / period
            caps[forward] = max(1, math.ceil(self.policy.slack * under_way))
        return caps

    def _announce(self, task: Task, when: int) -> None:
        device = self.blocks[task.block_index].devices[0]
        heapq.heappush(self.coming[device], (when, task))
        heapq.heappush(self.events, (max(when, self.free[device]), device))

    def _decide(self, device: int, now: int) -> None:
        waiting = self.waiting[device]
        while self.coming[device] and self.coming[device][0][0] <= now:
            _, task = heapq.heappop(self.coming[device])
            is_forward = self.blocks[task.block_index].kind is BlockKind.FORWARD
            key = (task.micro_batch, self.rank[task.block_index])
            if is_forward and self.policy.deepest_first:
                key = (-self.rank[task.block_index], task.micro_batch)
            heapq.heappush(waiting[is_forward], (key, task))
        forward = self._best_forward(device)
        backward = waiting[False][0][1] if waiting[False] else None
        if forward is None and backward is None:
            return
        if forward is None or backward is None or not self._saves(forward, backward):
            alone = forward if backward is None else backward
            assert alone is not None
            until = self._awaited(device, now, alone)
            if until is not None:
                heapq.heappush(self.events, (until, device))
                return
            self._start(device, now, (alone,))
        else:
            self._start(device, now, (forward, backward))

    def _best_forward(self, device: int) -> Task | None:
        """Return the forward that comes first of those that fit and are not too far ahead."""
        if not self.waiting[device][True]:
            return None
        for _, task in sorted(self.waiting[device][True]):
            if self._is_allowed(task, device):
                return task
        return None

    def _is_allowed(self, task: Task, device: int) -> bool:
        block = task.block_index
        fits = self.blocks[block].memory <= self.room[device]
        return fits and self.ahead[block] < self.caps.get(block, self.left)

    def _saves(self, forward: Task, backward: Task) -> int:
        """Return the steps that a pair saves; 0 where it is none."""
        one, two = self.blocks[forward.block_index], self.blocks[backward.block_index]
        if two.kind is not BlockKind.BACKWARD:
            return 0
        return one.span + two.span - pair_span(one.span, two.span, factor=self.factor)

    def _awaited(self, device: int, now: int, alone: Task) -> int | None:
        """Return when the other half of a pair comes, if that is sooner than what it saves."""
        if not self.policy.waits:
            return None
        is_forward = self.blocks[alone.block_index].kind is BlockKind.FORWARD
        for when, task in self.coming[device]:
            if (self.blocks[task.block_index].kind is BlockKind.FORWARD) is is_forward:
                continue
            pair = (alone, task) if is_forward else (task, alone)
            if when - now < self._saves(*pair) and self._is_allowed(pair[0], device):
                return when
        return None

    def _start(self, device: int, now: int, tasks: tuple[Task, ...]) -> None:
        spans = [self.blocks[task.block_index].span for task in tasks]
        span = spans[0] if len(spans) == 1 else pair_span(spans[0], spans[1], factor=self.factor)
        if len(tasks) == 2:
            self.pairs.append((tasks[0], tasks[1]))
        end = self.free[device] = now + span
        self.left -= len(tasks)
        for task in tasks:
            block = task.block_index
            is_forward = self.blocks[block].kind is BlockKind.FORWARD
            heap = self.waiting[device][is_forward]
            heap.remove(next(each for each in heap if each[1] == task))
            heapq.heapify(heap)
            self.orders[device].append(task)
            self.room[device] -= self.blocks[block].memory
            self.ahead[block] += 1
            if block in self.closing:
                self.ahead[self.closing[block]] -= 1
            for later, lag in self.after[block]:
                self.pending[task.micro_batch][later] -= 1
                reached = self.reached[task.micro_batch]
                reached[later] = max(reached[later], end + lag)
                if not self.pending[task.micro_batch][later]:
                    self._announce(Task(later, task.micro_batch), reached[later])
        heapq.heappush(self.events, (end, device))
