"""An instance as counts of started blocks, for the search over all states.

Micro-batches are alike, so a partial schedule is how many micro-batches each block has started, and when
devices are free and later blocks may start. Without choices that is exact. With choices it is a relaxation:
it is remembered how many micro-batches took each option, not which.

- A *group* is a block that every micro-batch runs, or the first blocks of a choice's options together: the
  k-th start of a group waits for the k-th start of the groups before it, because starts in order are a start
  of each block's micro-batches in order. The other blocks of an option are groups of one, and run as often as
  the first block of their option.
- An *arc* leads from a block to a group; its starts arrive in one of that group's *queues*, each with the
  time from which the group may start its next micro-batch. Arcs whose starts arrive in order share a queue.

      f0 ──► b0 (joint) or i0 ─► w0      groups {f0} {b0, i0} {w0}; f0 → {b0, i0}, i0 → {w0}

Checked in tests/tessel/search/makespan/exact/test_exact_search.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tessel.search.model.instance import Instance
from tessel.search.model.precedence import (
    UNREACHABLE,
    IntArray,
    as_array,
    flat_rows,
    least_distances_from,
)

MAX_PENDING = 16
"""Entries of a queue that are remembered; micro-batches that are further ahead may start at once."""

MAX_BLOCKS = 32
"""Blocks of one micro-batch up to which the search is tried."""

MAX_SUBSET_DEVICES = 6
"""Devices up to which the work of every set of devices is a bound of its own, where work may move."""


class CountModel(NamedTuple):
    """What the kernel takes; all int64. Lists of lists are flat, as in `InstanceArrays`.

    Attributes:
        blocks: by block here, its number in the instance.
        pending: entries of a queue.
        span: steps by block; `memory`, `tail` and `head` likewise.
        memory: units by block.
        head: least steps from the start of a micro-batch to the start of the block.
        tail: least steps from the block's start to the end of its micro-batch.
        device_start: rows of `device` by block.
        device: devices that a block holds.
        limit: units by device.
        group: group by block.
        owner: by group, the block as often as which it runs; -1 where every micro-batch runs it.
        group_order: groups in a topological order.
        member_start: rows of `member` by group.
        member: blocks of a group.
        serial_span: by group, least steps between two of its starts; 0 where its blocks share no device.
        out_start: rows of `out_…` by block.
        out_group: group an arc leads to.
        out_delay: least steps from the start of the block to the start of the group.
        out_own: 1 where the block itself is counted and not its group.
        out_sorted: 1 where starts may arrive out of order, and its queue is kept sorted.
        in_start: rows of `in_…` by group.
        in_group: group that must be ahead.
        in_block: the block of it that is counted, or -1 for the whole group.
        in_delay: least steps between the two.
        queue_start: rows of queues by group: queue q of group g from `queue_start[g]` to the next.
        work: least steps by device and group that one more start of the group means, all its blocks.
        after: by device and group, least steps from the end of that work to the end of the micro-batch.
        here_start: rows of `here` by device.
        here: groups with work on the device, those with the longest `after` first.
        subset_work: least steps by set of devices and group; no rows where work never moves.
        subset: 1 where a device is in a set, by set and device.
    """

    blocks: IntArray
    micro_batches: int
    pending: int
    span: IntArray
    memory: IntArray
    head: IntArray
    tail: IntArray
    device_start: IntArray
    device: IntArray
    limit: IntArray
    group: IntArray
    owner: IntArray
    group_order: IntArray
    member_start: IntArray
    member: IntArray
    serial_span: IntArray
    out_start: IntArray
    out_group: IntArray
    out_queue: IntArray
    out_delay: IntArray
    out_own: IntArray
    out_sorted: IntArray
    in_start: IntArray
    in_group: IntArray
    in_block: IntArray
    in_delay: IntArray
    queue_start: IntArray
    work: IntArray
    after: IntArray
    here_start: IntArray
    here: IntArray
    subset_work: IntArray
    subset: IntArray


def count_model(
    instance: Instance, devices: Sequence[int] | None = None, *, max_pending: int = MAX_PENDING
) -> CountModel | None:
    """Return the model, or None where the search says nothing.

    That is where blocks that take no time hold memory, which may add and free in one step, where an option
    has no block that comes before its others, and where there are too many blocks.

    Args:
        devices: the devices to keep, ascending, all of them if left out. Blocks without one of those, and
            without a choice that has, are left out; they still count in distances, heads and tails.
        max_pending: entries of a queue that are remembered.
    """
    arrays = instance.arrays
    kept_devices = tuple(range(arrays.num_devices) if devices is None else devices)
    blocks = _kept_blocks(instance, set(kept_devices))
    is_instant = bool(((arrays.span[blocks] == 0) & (arrays.memory[blocks] != 0)).any())
    if not blocks or len(blocks) > MAX_BLOCKS or is_instant:
        return None
    distance = {block: _distances_if_run(instance, block) for block in blocks}
    groups = _groups_of(instance, blocks, distance)
    if groups is None:
        return None
    arcs = _arcs_of(instance, groups, distance)
    queue_start = [0]
    queue_of: dict[tuple[int, int], int] = {}
    for target, row in enumerate(arcs):
        sources = sorted({arc.queue_key for arc in row})
        queue_of |= {(target, key): queue_start[-1] + place for place, key in enumerate(sources)}
        queue_start.append(queue_start[-1] + len(sources))
    place_of = {block: place for place, block in enumerate(blocks)}
    out: list[list[tuple[int, int, int, int, int]]] = [[] for _ in blocks]
    for target, row in enumerate(arcs):
        for arc in row:
            queue = queue_of[target, arc.queue_key]
            for block, delay in arc.delays:
                out[place_of[block]].append((target, queue, delay, int(arc.is_own), int(arc.is_sorted)))
    members = [[place_of[block] for block in row] for row in groups.members]
    device_place = {device: place for place, device in enumerate(kept_devices)}
    device_start, device = flat_rows(
        [
            sorted(device_place[each] for each in _devices(instance, block) if each in device_place)
            for block in blocks
        ]
    )
    work, after = _work_of(instance, groups, kept_devices)
    here_start, here = flat_rows(
        [
            sorted(np.flatnonzero(row).tolist(), key=lambda group: -until_end[group])
            for row, until_end in zip(work, after.tolist(), strict=True)
        ]
    )
    subsets = _subsets_of(instance, kept_devices)
    return CountModel(
        blocks=as_array(blocks),
        micro_batches=instance.micro_batches,
        pending=_pending_of(instance, blocks, kept_devices, max_pending),
        span=arrays.span[blocks],
        memory=arrays.memory[blocks],
        head=arrays.head[blocks],
        tail=arrays.tail[blocks],
        device_start=device_start,
        device=device,
        limit=arrays.limit[list(kept_devices)],
        group=as_array(
            [next(g for g, row in enumerate(members) if place in row) for place in range(len(blocks))]
        ),
        owner=as_array([-1 if owner < 0 else place_of[owner] for owner in groups.owner]),
        group_order=as_array(_order_of(instance, groups)),
        member_start=flat_rows(members)[0],
        member=flat_rows(members)[1],
        serial_span=as_array([_serial_span(instance, row, set(kept_devices)) for row in groups.members]),
        out_start=flat_rows([[0] * len(row) for row in out])[0],
        out_group=as_array([each[0] for row in out for each in row]),
        out_queue=as_array([each[1] for row in out for each in row]),
        out_delay=as_array([each[2] for row in out for each in row]),
        out_own=as_array([each[3] for row in out for each in row]),
        out_sorted=as_array([each[4] for row in out for each in row]),
        in_start=flat_rows([[0] * len(row) for row in arcs])[0],
        in_group=as_array([arc.source for row in arcs for arc in row]),
        in_block=as_array([place_of[arc.delays[0][0]] if arc.is_own else -1 for row in arcs for arc in row]),
        in_delay=as_array([min(delay for _, delay in arc.delays) for row in arcs for arc in row]),
        queue_start=as_array(queue_start),
        work=work,
        after=after,
        here_start=here_start,
        here=here,
        subset_work=_subset_work(instance, groups, subsets),
        subset=np.array(
            [[int(device in subset) for device in kept_devices] for subset in subsets], dtype=np.int64
        ).reshape(len(subsets), len(kept_devices)),
    )


def _pending_of(instance: Instance, blocks: Sequence[int], devices: Sequence[int], max_pending: int) -> int:
    """Return how many entries a queue has: most micro-batches that limits let be in flight, and one more.

    Fewer entries only let more happen; where a limit holds, as many as it allows leave nothing out.
    """
    arrays = instance.arrays
    most = 0
    for device in devices:
        added = [
            int(arrays.memory[block])
            for block in blocks
            if arrays.memory[block] > 0 and device in _devices(instance, block)
        ]
        most = max(most, int(arrays.limit[device]) // min(added) + 1 if added else max_pending)
    return min(instance.micro_batches, max_pending, most)


def _kept_blocks(instance: Instance, devices: set[int]) -> list[int]:
    arrays = instance.arrays
    touching = {block for block in range(arrays.num_blocks) if devices & _devices(instance, block)}
    choices = {int(arrays.choice[block]) for block in touching} - {-1}
    return [
        block
        for block in range(arrays.num_blocks)
        if block in touching or int(arrays.choice[block]) in choices
    ]


@dataclass(frozen=True, slots=True)
class _Groups:
    """Which blocks start in one order.

    Attributes:
        members: blocks of the instance by group.
        owner: by group, the block as often as which it runs, or -1.
        options: by group, the blocks that one start of it brings with it, by option.
    """

    members: Sequence[Sequence[int]]
    owner: Sequence[int]
    options: Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class _Arc:
    """What a group waits for.

    Attributes:
        source: group before it.
        delays: (block, least steps from its start to the start of the target) of each block of the source.
        is_own: one block of the source is counted alone.
        is_sorted: starts may arrive out of order.
    """

    source: int
    delays: Sequence[tuple[int, int]]
    is_own: bool
    is_sorted: bool

    @property
    def queue_key(self) -> int:
        """Which of the target's queues its starts arrive in: one for all that arrive in order."""
        return self.source if self.is_sorted else -1


def _distances_if_run(instance: Instance, source: int) -> IntArray:
    """Return, by block, the least steps from the start of `source` to its start where the source is run."""
    precedence, choice = instance.precedence, int(instance.arrays.choice[source])
    found = least_distances_from(precedence, source)
    if choice < 0:
        return found
    others = (precedence.choice == choice) & (precedence.option != precedence.option[source])
    taken = precedence._replace(choice=np.where(precedence.choice == choice, -1, precedence.choice))
    sharper = least_distances_from(taken, source)
    # A way through a block that is then not run proves nothing.
    return found if bool((sharper[others] > UNREACHABLE).any()) else sharper


def _groups_of(instance: Instance, blocks: Sequence[int], distance: Mapping[int, IntArray]) -> _Groups | None:
    arrays = instance.arrays
    members: list[list[int]] = []
    owner: list[int] = []
    options: list[list[list[int]]] = []
    for block in blocks:
        if arrays.choice[block] < 0:
            members.append([block])
            owner.append(-1)
            options.append([[block]])
    for choice in sorted({int(arrays.choice[block]) for block in blocks} - {-1}):
        rows = [
            np.flatnonzero((arrays.choice == choice) & (arrays.option == option)).tolist()
            for option in range(int(instance.precedence.num_options[choice]))
        ]
        firsts = [_first_of(row, distance) for row in rows]
        if min(firsts) < 0:
            return None
        members.append(firsts)
        owner.append(-1)
        options.append(rows)
        for first, row in zip(firsts, rows, strict=True):
            others = [block for block in row if block != first]
            members += [[block] for block in others]
            owner += [first] * len(others)
            options += [[[block]] for block in others]
    return _Groups(members, owner, options)


def _first_of(row: Sequence[int], distance: Mapping[int, IntArray]) -> int:
    """Return the block of an option that comes before its others, or -1."""
    return next((first for first in row if bool((distance[first][list(row)] > UNREACHABLE).all())), -1)


def _arcs_of(instance: Instance, groups: _Groups, distance: Mapping[int, IntArray]) -> list[list[_Arc]]:
    """Return the arcs into each group, without those that others imply."""
    size = len(groups.members)
    found: list[list[_Arc]] = [[] for _ in range(size)]
    steps: dict[tuple[int, int], dict[int, int]] = {}
    for source, target in itertools.permutations(range(size), 2):
        delays = _delays(instance, groups, distance, source, target)
        if delays:
            steps[source, target] = delays
    for (source, target), delays in steps.items():
        if not any(_is_implied(steps, groups, delays, source, by, target) for by in range(size)):
            is_own = len(delays) < len(groups.members[source])
            is_sorted = not is_own and not _arrive_in_order(instance, delays)
            found[target].append(_Arc(source, sorted(delays.items()), is_own, is_sorted))
    return found


def _delays(
    instance: Instance, groups: _Groups, distance: Mapping[int, IntArray], source: int, target: int
) -> dict[int, int]:
    """Return the least steps from each block of a group to another group; empty where it need not wait."""
    arrays = instance.arrays
    blocks = groups.members[source]
    first = groups.members[target][0]
    choice = int(arrays.choice[first])
    is_same_choice = choice >= 0 and int(arrays.choice[blocks[0]]) == choice
    if is_same_choice:
        # Only blocks of one option are run together.
        blocks = [block for block in blocks if arrays.option[block] == arrays.option[first]]
        if groups.owner[target] < 0 or not blocks:
            return {}
    elif groups.owner[source] >= 0:
        return {}
    delays = {block: min(int(distance[block][to]) for to in groups.members[target]) for block in blocks}
    return {} if min(delays.values()) <= UNREACHABLE else delays


def _is_implied(
    steps: dict[tuple[int, int], dict[int, int]],
    groups: _Groups,
    delays: dict[int, int],
    source: int,
    by: int,
    target: int,
) -> bool:
    """Whether waiting for a third group, which every micro-batch runs, is waiting for the source as well."""
    first, second = steps.get((source, by)), steps.get((by, target))
    if first is None or second is None or groups.owner[by] >= 0 or first.keys() != delays.keys():
        return False
    if second.keys() != set(groups.members[by]):
        return False
    rest = min(second.values())
    return all(first[block] + rest >= delays[block] for block in delays)


def _arrive_in_order(instance: Instance, delays: dict[int, int]) -> bool:
    """Whether the starts of these blocks plus their delays come in the order of the starts."""
    if len(set(delays.values())) == 1:
        return True
    held = [_devices(instance, block) for block in delays]
    is_serial = bool(set.intersection(*held))
    lags = {delay - int(instance.arrays.span[block]) for block, delay in delays.items()}
    return is_serial and len(lags) == 1


def _devices(instance: Instance, block: int) -> set[int]:
    arrays = instance.arrays
    return set(arrays.device[arrays.device_start[block] : arrays.device_start[block + 1]].tolist())


def _serial_span(instance: Instance, members: Sequence[int], devices: set[int]) -> int:
    shared = set.intersection(devices, *(_devices(instance, block) for block in members))
    return min(int(instance.arrays.span[block]) for block in members) if shared else 0


def _order_of(instance: Instance, groups: _Groups) -> list[int]:
    """Return the groups by the last of their blocks in a topological order of blocks."""
    place = {block: place for place, block in enumerate(instance.precedence.order.tolist())}
    return sorted(
        range(len(groups.members)), key=lambda group: min(map(place.__getitem__, groups.members[group]))
    )


def _work_of(instance: Instance, groups: _Groups, devices: Sequence[int]) -> tuple[IntArray, IntArray]:
    arrays = instance.arrays
    shape = (len(devices), len(groups.members))
    work, after = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for place, group in itertools.product(*map(range, shape)):
        rows = [
            [block for block in row if devices[place] in _devices(instance, block)]
            for row in groups.options[group]
        ]
        work[place, group] = min(int(arrays.span[row].sum()) for row in rows)
        if work[place, group] > 0:
            ends = (int(arrays.tail[block] - arrays.span[block]) for row in rows for block in row)
            after[place, group] = min(ends)
    return work, after


def _subsets_of(instance: Instance, devices: Sequence[int]) -> list[set[int]]:
    """Return the sets of these devices between which some choice may move work."""
    arrays = instance.arrays
    moving: set[int] = set()
    for choice in range(len(arrays.default_option)):
        blocks = np.flatnonzero(arrays.choice == choice).tolist()
        held: list[set[int]] = [
            set().union(*(_devices(instance, block) for block in blocks if arrays.option[block] == option))
            for option in range(int(instance.precedence.num_options[choice]))
        ]
        if any(each != held[0] for each in held):
            moving |= set().union(*held)
    moving &= set(devices)
    if len(moving) > MAX_SUBSET_DEVICES:
        return []
    sizes = range(2, len(moving) + 1)
    return [set(each) for size in sizes for each in itertools.combinations(sorted(moving), size)]


def _subset_work(instance: Instance, groups: _Groups, subsets: Sequence[set[int]]) -> IntArray:
    arrays = instance.arrays
    found = np.zeros((len(subsets), len(groups.members)), dtype=np.int64)
    for index, subset in enumerate(subsets):
        held = [len(subset & _devices(instance, block)) for block in range(arrays.num_blocks)]
        for group, options in enumerate(groups.options):
            found[index, group] = min(
                sum(int(arrays.span[block]) * held[block] for block in row) for row in options
            )
    return found
