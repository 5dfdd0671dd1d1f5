"""Bound on idle time at either end of a schedule, where a device's memory is full before it can free.

Before the first micro-batch has come back, a device can run only what has a short head, and of that only as
much as its memory holds; behind the last one it can run only what has a short tail.

    f f f f . . . b f b f …        memory 4: b cannot start before step 7, so that three steps are lost

At step h a micro-batch has started some set of the device's blocks whose heads are below h, with whatever
must come before them; of all N micro-batches these sets hold no more than the limit together. The most work
that they can have done is a point on the upper concave envelope of (memory, work) over such sets, at limit /
N. What is missing to h is idle. At the other end the same holds with frees for adds and tails for heads: what
is still to start h steps before the end includes what comes after it, so that an input gradient keeps the
memory of its weight gradient.

It leaves out what happens in between (`tessel.search.makespan.bounds.lower_bounds` has that). Checked in
tests/tessel/search/test_every_bound.py against CP-SAT, and by hand in makespan/bounds/test_ramp_bound.py.

Source: Johnson's and Lawler's relaxations of one machine with heads and tails, here with a knapsack of
memory; the envelope is Dantzig's solution of its linear relaxation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tessel.search.model.instance import InstanceArrays, IntArray
from tessel.search.model.precedence import UNREACHABLE

MAX_SETS = 256
"""Sets of started blocks of one device that are looked at; a ramp with more of them proves nothing."""


@dataclass(frozen=True)
class DeviceBlocks:
    """What one device runs in each micro-batch.

    Attributes:
        limit: units it may hold.
        least_work: steps that a micro-batch keeps it busy at least.
        distances_from: of `tessel.search.model.precedence.least_distances_from`, by source.
    """

    arrays: InstanceArrays
    here: Sequence[int]
    limit: int
    least_work: int
    distances_from: Callable[[int], IntArray]

    # Plain numbers, once a device: these are read thousands of times, and NumPy's scalars are slow.

    @cached_property
    def memory(self) -> Mapping[int, int]:
        """The units that each block adds."""
        return self._here(self.arrays.memory)

    @cached_property
    def span(self) -> Mapping[int, int]:
        """The steps that each block takes."""
        return self._here(self.arrays.span)

    @cached_property
    def choice(self) -> Mapping[int, int]:
        """The choice that each block belongs to, or -1."""
        return self._here(self.arrays.choice)

    @cached_property
    def option(self) -> Mapping[int, int]:
        """The option of its choice that each block belongs to."""
        return self._here(self.arrays.option)

    def _here(self, of_blocks: IntArray) -> dict[int, int]:
        return dict(zip(self.here, of_blocks[list(self.here)].tolist(), strict=True))


def ramp_bound(blocks: DeviceBlocks) -> int:
    """Return a makespan that no schedule can beat, from the idle steps at both ends of one device, or 0.

    O(heads on the device x sets squared); nothing is proven where blocks of span 0 hold memory.
    """
    arrays = blocks.arrays
    if any(blocks.span[block] == 0 and blocks.memory[block] != 0 for block in blocks.here):
        return 0
    head = {block: int(arrays.head[block]) for block in blocks.here}
    after = {block: int(arrays.tail[block]) - blocks.span[block] for block in blocks.here}
    work = arrays.micro_batches * blocks.least_work
    # A schedule in which nobody takes some option may be over before that option's ramp is.
    fixed = [block for block in blocks.here if blocks.choice[block] < 0]
    longest = max([work, *(length[block] for length in (head, after) for block in fixed)])
    head, after = ({block: min(steps, longest) for block, steps in each.items()} for each in (head, after))
    starts = list(_idle_steps(blocks, head, is_end=False))
    ends = list(_idle_steps(blocks, after, is_end=True))
    best = max((lost for _, lost in (*starts, *ends)), default=0)
    for length, lost in starts:
        for other, lost_there in ends:
            # a schedule is at least as long as its work, so that the two ends do not overlap
            if length + other <= work:
                best = max(best, lost + lost_there)
    return work + best


def _idle_steps(blocks: DeviceBlocks, length: dict[int, int], *, is_end: bool) -> Iterable[tuple[int, int]]:
    """Yield lengths of a ramp and the steps in it for which the device must idle.

    Args:
        length: by block, steps of the ramp in which it cannot run.
    """
    sign = -1 if is_end else 1
    pairs = _implied(blocks, is_end=is_end)
    room = blocks.limit
    if is_end:  # what is freed at the end was held before, beside what is never freed
        room -= blocks.arrays.micro_batches * _least_left(blocks)
    for ramp in sorted(set(length.values())):
        members = [block for block in blocks.here if length[block] < ramp]
        sets = _started_sets(blocks, members, pairs)
        if sets is None:
            return
        points = {
            (sign * sum(map(blocks.memory.__getitem__, each)), sum(map(blocks.span.__getitem__, each)))
            for each in sets
        }
        most = _most_work(points, blocks.arrays.micro_batches, room)
        if most is not None and most < ramp:
            yield ramp, ramp - most


def _implied(blocks: DeviceBlocks, *, is_end: bool) -> frozenset[tuple[int, int]]:
    """Pairs of blocks of which the first belongs to every set of started ones that holds the second.

    At the end it is the sets of those still to start. Of two blocks in order, it is the earlier one at the
    start and the later one at the end, if that one is run whenever the other is.
    """
    choice, option = blocks.choice, blocks.option
    ordered = (
        (target, source) if is_end else (source, target)
        for source in blocks.here
        for distance in (blocks.distances_from(source),)
        for target in blocks.here
        if target != source and distance[target] > UNREACHABLE
    )
    return frozenset(
        (implied, block)
        for implied, block in ordered
        if choice[implied] < 0 or (choice[implied], option[implied]) == (choice[block], option[block])
    )


def _least_left(blocks: DeviceBlocks) -> int:
    """The least units that a micro-batch leaves behind on the device, each choice at its least."""
    arrays = blocks.arrays
    left = sum(blocks.memory[block] for block in blocks.here if blocks.choice[block] < 0)
    by_choice: dict[int, dict[int, int]] = {}
    for block in blocks.here:
        if blocks.choice[block] >= 0:
            # an option without a block here leaves nothing
            options = by_choice.setdefault(blocks.choice[block], dict.fromkeys(_options_of(arrays, block), 0))
            options[blocks.option[block]] += blocks.memory[block]
    return left + sum(min(options.values()) for options in by_choice.values())


def _options_of(arrays: InstanceArrays, block: int) -> list[int]:
    choice = int(arrays.choice[block])
    members = arrays.member[arrays.member_start[choice] : arrays.member_start[choice + 1]]
    return [int(arrays.option[member]) for member in members]


def _started_sets(
    blocks: DeviceBlocks, members: Sequence[int], pairs: frozenset[tuple[int, int]]
) -> list[frozenset[int]] | None:
    """Return all sets of these blocks that one micro-batch can have started; None if there are too many.

    A set holds one option of each choice at most, and with a block what is implied by it.
    """
    choice, option = blocks.choice, blocks.option
    sets = [frozenset[int]()]
    for block in members:
        sets += [
            each | {block}
            for each in sets
            if all(choice[other] != choice[block] or option[other] == option[block] for other in each)
            or choice[block] < 0
        ]
        if len(sets) > MAX_SETS:
            return None
    # an implied block comes no later at this end, so that it is a member, too
    return [each for each in sets if all(implied in each or block not in each for implied, block in pairs)]


def _most_work(points: set[tuple[int, int]], micro_batches: int, room: int) -> int | None:
    """Return the most work of so many micro-batches, each at one point, whose memory fits; None if none fits.

    An average of points lies below their concave envelope, whose value between two points is that of the line
    through them.
    """
    most = None
    for memory, work in points:
        left = room - micro_batches * memory
        if left < 0:
            continue
        best = micro_batches * work
        for other_memory, other_work in points:
            if other_memory > memory and other_work > work and micro_batches * other_memory > room:
                gained = (other_work - work) * left // (other_memory - memory)
                best = max(best, micro_batches * work + gained)
        most = best if most is None else max(most, best)
    return most
