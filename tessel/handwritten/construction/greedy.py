"""Rules for any placement: list scheduling with a priority and a limit on micro-batches in flight.

Published schedules are defined for one chain of stages. Where stages branch, join, or occupy several devices,
their idea still applies: prefer backward blocks to forward blocks, or the reverse, and bound how far a stage
may run ahead. This is list scheduling: at every step each free device starts the ready block of highest
priority. A block on several devices waits until all are free; keeping free ones idle for it was tried, and
made every shape with tensor-parallel blocks slower (mshape, 32 micro-batches: 458 against 288).

It cannot deadlock. A block takes its micro-batches in order, and a limit makes a micro-batch wait only for
earlier ones; so the blocks of the earliest unfinished micro-batch wait for nothing but each other.

Source: Lin et al., Tessel (HPCA 2024), section 6.1, "1F1B+"; here each stage has a limit of its own.
Checked in tests/tessel/handwritten/construction/test_greedy.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tessel.placement import BlockKind, Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """How the blocks of one micro-batch enter and leave, as indices into the placement's blocks.

    Attributes:
        placement: where the blocks come from.
        blocks: those that run, in topological order: of each choice, one option.
        opening: those that begin to hold something: forward blocks, or where there are none those that add
            memory.
        closing: for each opening block, those whose start says that its micro-batch is no longer in flight.
        depth: for each opening block, the opening blocks on the longest path from it, itself included; the
            number in flight with which 1F1B keeps it busy.
    """

    placement: Placement
    blocks: tuple[int, ...]
    opening: frozenset[int]
    closing: Mapping[int, tuple[int, ...]]
    depth: Mapping[int, int]


# The rules that simulate read the same placement one after the other.
@lru_cache(maxsize=16)
def read_flow(placement: Placement, *, is_split: bool = False) -> Flow:
    """Return how a placement's blocks enter and leave.

    Of each choice an option with a joint backward runs if there is one; among equals the one with the least
    work, then the fewest blocks, then the first.

    Args:
        is_split: of each choice, an option without a joint backward runs if there is one.
    """
    running = _running(placement, is_split=is_split)
    index = placement.index_by_name
    order = _in_block_order(running)
    opening = _opening(placement, order)
    return Flow(
        placement=placement,
        blocks=tuple(index[name] for name in order),
        opening=frozenset(index[name] for name in opening),
        closing={index[name]: _closing(placement, running, order, opening, name) for name in opening},
        depth={index[name]: depth for name, depth in _depths(running, order, opening).items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """How a rule is simulated on placements to which the published one does not apply.

    Attributes:
        opening_first: prefer opening blocks; otherwise the others come first.
        is_limited: bound what is in flight by each opening block's depth.
        deepest_first: among equals, what stands later in the micro-batch comes first, not what has been ready
            for longest: of several chunks on a device, the later one.
        is_split: run backwards in halves where there is a choice.
    """

    opening_first: bool = False
    is_limited: bool = False
    deepest_first: bool = False
    is_split: bool = False

    def variants(self, placement: Placement) -> Iterator[Preference]:
        """Yield every way to follow the rule on a placement, this one first."""
        for is_split in (False, True) if placement.choices else (False,):
            for deepest_first in (False, True):
                yield replace(self, deepest_first=deepest_first, is_split=is_split)

    def flow(self, placement: Placement) -> Flow:
        """Return how the placement's blocks enter and leave, in halves or not."""
        return read_flow(placement, is_split=self.is_split)

    def groups(self, flow: Flow) -> dict[int, int]:
        """Return by block its place among what may start: the lowest first, then the longest ready."""
        rank = {block: -place for place, block in enumerate(flow.blocks)}
        return {
            block: (len(rank) if (block in flow.opening) != self.opening_first else -len(rank))
            + (rank[block] if self.deepest_first else 0)
            for block in flow.blocks
        }

    def in_flight(self, flow: Flow) -> Mapping[int, int]:
        """Return the most micro-batches that each opening block may be ahead; none where it is not bound."""
        return flow.depth if self.is_limited else {}

    def starts(self, placement: Placement, micro_batches: int) -> dict[tuple[int, int], int]:
        """Return the starts by (block index, micro-batch), in the order in which they start."""
        flow = self.flow(placement)
        return run_greedily(
            flow, micro_batches=micro_batches, in_flight=self.in_flight(flow), groups=self.groups(flow)
        )


def run_greedily(
    flow: Flow,
    *,
    micro_batches: int,
    in_flight: Mapping[int, int] | None = None,
    groups: Mapping[int, int] | None = None,
) -> dict[tuple[int, int], int]:
    """Return the starts of all blocks; O(blocks run × blocks a device).

    Args:
        flow: the blocks of one micro-batch.
        micro_batches: how many are run, >= 1.
        in_flight: most micro-batches between an opening block and its closing ones, >= 1; None for no limit.
        groups: of `Preference.groups`; None for those of 1F1B, which runs opening blocks last. The lowest
            comes first, then what has been ready for longest (not while its last micro-batch runs), then the
            earlier micro-batch, then what stands later in the micro-batch.
            `tessel.search.makespan.list_scheduling` does the same, compiled.
    """
    if groups is None:
        groups = Preference().groups(flow)
    return _Simulation(flow, micro_batches, in_flight or {}, groups).run()


def _running(placement: Placement, *, is_split: bool) -> Placement:
    """Return the blocks that run, of each choice those of one option."""
    kept = {}
    for choice in placement.choices:
        preferences = [_preference(placement, option, is_split=is_split) for option in choice.options]
        kept[choice.name] = preferences.index(min(preferences))
    return placement.chosen(kept)


def _in_block_order(placement: Placement) -> list[str]:
    """Return the topological order in which, of blocks that may come next, the first in `blocks` does."""
    waiting = {name: len(sources) for name, sources in placement.waits_for.items()}
    ready = [index for name, index in placement.index_by_name.items() if not waiting[name]]
    order = []
    while ready:
        name = placement.blocks[heapq.heappop(ready)].name
        order.append(name)
        for follower in placement.followers[name]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, placement.index_by_name[follower])
    return order


def _preference(placement: Placement, option: Sequence[str], *, is_split: bool) -> tuple[bool, int, int]:
    """Least for the option that runs."""
    blocks = [placement.block(name) for name in option]
    is_whole = any(block.kind is BlockKind.BACKWARD for block in blocks)
    return is_whole is is_split, sum(block.span for block in blocks), len(blocks)


def _opening(placement: Placement, order: Sequence[str]) -> list[str]:
    forwards = [name for name in order if placement.block(name).kind is BlockKind.FORWARD]
    return forwards or [name for name in order if placement.block(name).memory > 0]


def _closing(
    placement: Placement, running: Placement, order: Sequence[str], opening: Sequence[str], name: str
) -> tuple[int, ...]:
    """What ends a block's time in flight: its own backward, or what comes last on its devices."""
    devices = set(placement.block(name).devices)
    others = set(order) - set(opening)
    direct = [
        follower
        for follower in running.followers[name]
        if follower in others and devices & set(placement.block(follower).devices)
    ]
    if not direct:
        below = running.reachable(name, by=running.followers) & others
        direct = [
            later for later in order if later in below and devices & set(placement.block(later).devices)
        ]
        direct = direct[-1:]
    return tuple(placement.index_by_name[block] for block in direct)


def _depths(running: Placement, order: Sequence[str], opening: Sequence[str]) -> dict[str, int]:
    is_opening = set(opening)
    depth: dict[str, int] = {}
    for name in reversed(order):
        below = max((depth[follower] for follower in running.followers[name]), default=0)
        depth[name] = below + (name in is_opening)
    return {name: depth[name] for name in opening}


_Urgency = tuple[int, int, int, int]
"""Least for the block to start first."""


@dataclass(slots=True)
class _Simulation:
    """Devices, and the next micro-batch of each block, at one moment.

    Only devices on which something has changed are looked at: on the others nothing can start that could not
    have started before.
    """

    flow: Flow
    micro_batches: int
    in_flight: Mapping[int, int]
    groups: Mapping[int, int]
    starts: dict[tuple[int, int], int] = field(default_factory=dict)
    free_at: list[int] = field(init=False)
    devices: list[tuple[int, ...]] = field(init=False)
    next_micro_batch: list[int] = field(init=False)
    free_again: list[int] = field(init=False)
    ready: list[dict[int, _Urgency]] = field(init=False)
    waits: list[list[tuple[int, int]]] = field(init=False)
    wakes: list[list[tuple[int, int]]] = field(init=False)
    rank: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        placement = self.flow.placement
        index = placement.index_by_name
        blocks = self.flow.blocks
        is_run = set(blocks)
        self.free_at = [0] * placement.devices
        self.devices = [block.devices for block in placement.blocks]
        self.next_micro_batch = [0] * len(placement.blocks)
        self.free_again = [0] * len(placement.blocks)
        self.ready = [{} for _ in range(placement.devices)]
        self.rank = {block: -rank for rank, block in enumerate(blocks)}
        self.waits = [[] for _ in placement.blocks]
        # A block's own start makes its next micro-batch possible, its end frees the devices.
        self.wakes = [[(index, block.span)] for index, block in enumerate(placement.blocks)]
        for edge in placement.edges:
            source, target = index[edge.source], index[edge.target]
            if source in is_run and target in is_run:
                delay = placement.blocks[source].span + edge.lag
                self.waits[target].append((source, delay))
                self.wakes[source].append((target, delay))
        for opener, closers in self.flow.closing.items():
            for closer in closers:
                self.wakes[closer].append((opener, 0))

    def run(self) -> dict[tuple[int, int], int]:
        """Go from moment to moment at which a device or a result becomes free."""
        moments = [(0, block) for block in self.flow.blocks]
        heapq.heapify(moments)
        while moments:
            now = moments[0][0]
            changed: set[int] = set()
            while moments and moments[0][0] == now:
                _, block = heapq.heappop(moments)
                changed.update(self.devices[block])
                if self._is_ready(block, now):
                    self._note_ready(block, now)
            for block in self._start_all(changed, now):
                for woken, delay in self.wakes[block]:
                    heapq.heappush(moments, (now + delay, woken))
        return self.starts

    def _is_ready(self, block: int, now: int) -> bool:
        micro_batch = self.next_micro_batch[block]
        if micro_batch >= self.micro_batches or now < self.free_again[block]:
            return False
        limit = self.in_flight.get(block)
        if limit is not None and micro_batch >= limit:
            closing = self.flow.closing[block]
            if any(self.next_micro_batch[closer] <= micro_batch - limit for closer in closing):
                return False
        for source, delay in self.waits[block]:
            start = self.starts.get((source, micro_batch))
            if start is None or start + delay > now:
                return False
        return True

    def _note_ready(self, block: int, now: int) -> None:
        """Note how urgent a block is that can start from now on, unless that is known."""
        devices = self.devices[block]
        if block in self.ready[devices[0]]:
            return
        urgency = (
            self.groups[block],
            now,
            self.next_micro_batch[block],
            self.rank[block],
        )
        for device in devices:
            self.ready[device][block] = urgency

    def _start_all(self, changed: set[int], now: int) -> list[int]:
        """Start what is ready and finds its devices free, the most urgent first."""
        waiting = {
            urgency: block
            for device in changed
            if self.free_at[device] <= now
            for block, urgency in self.ready[device].items()
        }
        started = []
        for urgency in sorted(waiting):
            block = waiting[urgency]
            if all(self.free_at[device] <= now for device in self.devices[block]):
                self._start(block, now)
                started.append(block)
        return started

    def _start(self, block: int, now: int) -> None:
        micro_batch = self.next_micro_batch[block]
        self.starts[block, micro_batch] = now
        self.next_micro_batch[block] = micro_batch + 1
        self.free_again[block] = now + self.flow.placement.blocks[block].span
        for device in self.devices[block]:
            del self.ready[device][block]
            self.free_at[device] = now + self.flow.placement.blocks[block].span
