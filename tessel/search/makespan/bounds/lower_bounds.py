"""Makespans that no schedule can beat, from work, from paths and from memory.

- Path: the longest chain of one micro-batch.
- Work: on one device take the blocks with at least some head (steps before) and tail (steps after their end).
  All their work happens there one after the other, behind the least head and before the least tail.
- Memory: a device's limit times the time in which it holds anything is at least what its activations take up,
  units times steps, over all micro-batches. Each unit lives at least as long as the longest path from the
  block that adds it to one that frees it, and to the end of that one: nothing else runs there meanwhile.
- Warm-up and cool-down: at either end a device can do only as much as its memory holds
  (`tessel.search.makespan.bounds.ramp_bound`).

      head   |  N x work of these blocks  |   tail       <= makespan

Each number is a proof by itself; the largest counts. They take milliseconds;
`tessel.search.makespan.exact.prover` and, where memory is tight,
`tessel.search.makespan.exact.device_subsets` prove more. Choices take the option that makes the number
smallest.
Checked in tests/tessel/search/test_every_bound.py against CP-SAT.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessel.search.makespan.bounds.ramp_bound import DeviceBlocks, ramp_bound
from tessel.search.model.instance import Instance, IntArray
from tessel.search.model.precedence import UNREACHABLE, least_distances_from

MAX_COMBINATIONS = 256
"""Combinations of options on one device that are looked at; the memory bound is left out beyond."""


def makespan_lower_bound(instance: Instance) -> int:
    """Return a makespan that no schedule of the instance can beat; O(blocks on a device squared) for each."""
    arrays = instance.arrays
    blocks = _Blocks(
        span=arrays.span.tolist(),
        memory=arrays.memory.tolist(),
        head=arrays.head.tolist(),
        tail=arrays.tail.tolist(),
        choice=arrays.choice.tolist(),
        option=arrays.option.tolist(),
        num_options=instance.precedence.num_options.tolist(),
    )
    bounds = [_path_bound(blocks)]
    distances_from = functools.cache(functools.partial(least_distances_from, instance.precedence))
    for device in range(arrays.num_devices):
        here = arrays.on[arrays.on_start[device] : arrays.on_start[device + 1]].tolist()
        bounds.append(_work_bound(blocks, here, instance.micro_batches))
        if instance.memory is not None:
            limit = instance.memory[device]
            bounds.append(_memory_bound(instance, blocks, here, limit, distances_from))
            bounds.append(
                ramp_bound(DeviceBlocks(arrays, here, limit, _least_work(blocks, here), distances_from))
            )
    return max(bounds)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Numbers by block, and the number of options by choice."""

    span: Sequence[int]
    memory: Sequence[int]
    head: Sequence[int]
    tail: Sequence[int]
    choice: Sequence[int]
    option: Sequence[int]
    num_options: Sequence[int]

    def by_option(self, members: Iterable[int]) -> Mapping[int, list[list[int]]]:
        """Return, for each choice with one of these blocks, the blocks of each option among them."""
        found: dict[int, list[list[int]]] = {}
        for block in members:
            choice = self.choice[block]
            if choice >= 0:
                rows = found.setdefault(choice, [[] for _ in range(self.num_options[choice])])
                rows[self.option[block]].append(block)
        return found


def _path_bound(blocks: _Blocks) -> int:
    """A micro-batch runs every block outside choices, and one option of each choice."""
    through = [head + tail for head, tail in zip(blocks.head, blocks.tail, strict=True)]
    fixed = [steps for steps, choice in zip(through, blocks.choice, strict=True) if choice < 0]
    chosen = [
        min(max(through[block] for block in option) for option in options)
        for options in blocks.by_option(range(len(through))).values()
    ]
    return max(fixed + chosen)


def _work_bound(blocks: _Blocks, here: Sequence[int], micro_batches: int) -> int:
    """The best pair of thresholds for head and tail; O(blocks²) on the device."""
    after = {block: blocks.tail[block] - blocks.span[block] for block in here}
    best = 0
    for least_head in sorted({blocks.head[block] for block in here}):
        for least_tail in sorted(set(after.values())):
            inside = [
                block for block in here if blocks.head[block] >= least_head and after[block] >= least_tail
            ]
            work = _least_work(blocks, inside)
            if work:
                best = max(best, least_head + micro_batches * work + least_tail)
    return best


def _least_work(blocks: _Blocks, inside: Sequence[int]) -> int:
    """Steps that one micro-batch spends in these blocks at least."""
    fixed = sum(blocks.span[block] for block in inside if blocks.choice[block] < 0)
    return fixed + sum(
        min(sum(blocks.span[block] for block in option) for option in options)
        for options in blocks.by_option(inside).values()
    )


def _memory_bound(
    instance: Instance,
    blocks: _Blocks,
    on_device: Sequence[int],
    limit: int,
    distances_from: Callable[[int], IntArray],
) -> int:
    """Unit-steps of all micro-batches over the limit, and the time before the first and after the last."""
    here = [block for block in on_device if blocks.memory[block]]
    choices = blocks.by_option(here).values()
    combinations = list(itertools.islice(itertools.product(*choices), MAX_COMBINATIONS + 1))
    if len(combinations) > MAX_COMBINATIONS or limit <= 0:
        return 0
    # where an adding block takes no time, it may start when a freeing one does
    is_lived_out = all(blocks.span[block] > 0 for block in here if blocks.memory[block] > 0)
    least = None
    for chosen in combinations:
        kept = set(itertools.chain.from_iterable(chosen))
        run = [block for block in here if blocks.choice[block] < 0 or block in kept]
        lived = _least_unit_steps(blocks, run, distances_from)
        if lived and is_lived_out:
            frees = (block for block in run if blocks.memory[block] < 0)
            lived += sum(-blocks.memory[block] * blocks.span[block] for block in frees)
        least = lived if least is None else min(least, lived)
    if not least:
        return 0
    before = min(blocks.head[block] for block in here if blocks.memory[block] > 0)
    after = min(
        blocks.tail[block] - blocks.span[block] * is_lived_out for block in here if blocks.memory[block] < 0
    )
    return before + -(-instance.micro_batches * least // limit) + after


def _least_unit_steps(blocks: _Blocks, run: Sequence[int], distances_from: Callable[[int], IntArray]) -> int:
    """Return what one micro-batch's memory takes up at least, or 0 where that cannot be said.

    The unit-steps are the starts of the frees minus the starts of the adds, weighted by their units. Any way
    of matching frees to adds that must come before them proves a bound; the farthest pairs are matched first.
    """
    adds = {block: blocks.memory[block] for block in run if blocks.memory[block] > 0}
    frees = {block: -blocks.memory[block] for block in run if blocks.memory[block] < 0}
    if sum(adds.values()) != sum(frees.values()):
        return 0
    distance = {source: distances_from(source)[list(frees)].tolist() for source in adds}
    pairs = sorted(
        (-steps, source, target)
        for source in adds
        for target, steps in zip(frees, distance[source], strict=True)
        if steps > UNREACHABLE
    )
    total = 0
    for steps, source, target in pairs:
        units = min(adds[source], frees[target])
        adds[source] -= units
        frees[target] -= units
        total -= steps * units
    return total if not any(adds.values()) else 0
