"""A placement as arrays: one option of each choice, numbered blocks, memory limits.

Every search works on this form. Blocks keep their order in the placement; where there are choices, the blocks
of the options not taken are left out and `block_indices` leads back. `options` enumerates the assignments.

    placement   f0 f1 b1 | b0   or   b0_input b0_weight        the choice "b0", option 1
    problem     f0 f1 b1 b0_input b0_weight                    block_indices (0, 1, 2, 4, 5)

A device without a limit has `UNLIMITED`. Checked in tests/tessel/search/model/test_problem.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tessel.placement import Placement
from tessel.search.model.precedence import (
    UNREACHABLE,
    IntArray,
    Precedence,
    least_heads,
    least_tails,
    longest_paths,
    make_precedence,
)

__all__ = ["UNLIMITED", "UNREACHABLE", "IntArray", "Problem", "make_problem", "memory_limits", "options"]

UNLIMITED = 2**60
"""Stands for "as much memory as one likes"; sums of it with any real level still fit 64 bits."""


@dataclass(frozen=True, eq=False)
class Problem:
    """One placement with its choices made.

    Attributes:
        placement: what it was made from, choices and all.
        block_indices: position in `placement.blocks` of each block here; ascending.
        spans: int64, shape (num_blocks,), steps.
        memory: int64, shape (num_blocks,), units added on each of the block's devices at its start.
        devices: the devices of each block, ascending.
        sources: int64, shape (num_edges,), block here that an edge leaves.
        targets: int64, shape (num_edges,), block here that it enters.
        lags: int64, shape (num_edges,), steps between the source's end and the target's start.
        limits: int64, shape (num_devices,), `UNLIMITED` where there is none.
    """

    placement: Placement
    block_indices: tuple[int, ...]
    num_devices: int
    spans: IntArray
    memory: IntArray
    devices: tuple[tuple[int, ...], ...]
    sources: IntArray
    targets: IntArray
    lags: IntArray
    limits: IntArray

    @property
    def num_blocks(self) -> int:
        """Blocks of one micro-batch."""
        return len(self.block_indices)

    @cached_property
    def blocks_by_device(self) -> tuple[tuple[int, ...], ...]:
        """Blocks here on each device, in block order."""
        found: list[list[int]] = [[] for _ in range(self.num_devices)]
        for block, devices in enumerate(self.devices):
            for device in devices:
                found[device].append(block)
        return tuple(map(tuple, found))

    @cached_property
    def on_device(self) -> npt.NDArray[np.bool_]:
        """Shape (num_blocks, num_devices): whether the block holds the device."""
        table = np.zeros((self.num_blocks, self.num_devices), dtype=np.bool_)
        for block, devices in enumerate(self.devices):
            table[block, list(devices)] = True
        return table

    @cached_property
    def work(self) -> IntArray:
        """Shape (num_devices,): steps that a micro-batch keeps each device busy."""
        return np.array(
            [int(self.spans[list(blocks)].sum()) for blocks in self.blocks_by_device], dtype=np.int64
        )

    @cached_property
    def net_memory(self) -> IntArray:
        """Shape (num_devices,): units a whole micro-batch leaves behind; 0 where all is freed."""
        return np.array(
            [int(self.memory[list(blocks)].sum()) for blocks in self.blocks_by_device], dtype=np.int64
        )

    @cached_property
    def precedence(self) -> Precedence:
        """The edges and what follows from them, in the form in which longest paths are computed."""
        none = [-1] * self.num_blocks
        edges = zip(self.sources.tolist(), self.targets.tolist(), self.lags.tolist(), strict=True)
        return make_precedence(self.spans.tolist(), edges, none, none, ())

    @cached_property
    def order(self) -> tuple[int, ...]:
        """A topological order of the blocks; of those free to come next, the first in the placement."""
        return tuple(self.precedence.order.tolist())

    @cached_property
    def successors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each block, (target, steps from the block's start to the target's) of its edges."""
        found = self.precedence
        return _rows(found.after_start, found.after, found.after_delay)

    @cached_property
    def predecessors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each block, (source, steps from the source's start to the block's) of its edges."""
        found = self.precedence
        return _rows(found.before_start, found.before, found.before_delay)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """For each block the set, as bits, of those that come before it on some way."""
        found = [0] * self.num_blocks
        for block in self.order:
            for target, _ in self.successors[block]:
                found[target] |= found[block] | 1 << block
        return tuple(found)

    @cached_property
    def heads(self) -> IntArray:
        """Shape (num_blocks,): earliest start of each block when only edges count."""
        return least_heads(self.precedence)

    @cached_property
    def tails(self) -> IntArray:
        """Shape (num_blocks,): least steps from a block's start to the end of its micro-batch."""
        return least_tails(self.precedence)

    @cached_property
    def paths(self) -> IntArray:
        """Shape (num_blocks, num_blocks): least steps from start to start; `UNREACHABLE` if not tied."""
        paths = np.full((self.num_blocks, self.num_blocks), UNREACHABLE, dtype=np.int64)
        np.fill_diagonal(paths, 0)
        for row in paths:
            longest_paths(self.precedence, False, row)
        return paths

    @property
    def limits_or_none(self) -> tuple[int, ...] | None:
        """The limits as `Schedule` holds them; None where no device has one."""
        if (self.limits >= UNLIMITED).all():
            return None
        return tuple(self.limits.tolist())


def make_problem(
    placement: Placement,
    *,
    memory: Sequence[int] | int | None,
    option_indices: Mapping[str, int] | None = None,
) -> Problem:
    """Return the placement as arrays, with each choice fixed.

    Args:
        placement: the blocks of one micro-batch.
        memory: limit in units, one for all devices or one a device; None for none.
        option_indices: option taken by choice name; a choice left out takes its first.

    Raises:
        ValueError: the number of limits is not the number of devices.
    """
    taken = option_indices or {}
    dropped = {
        name
        for choice in placement.choices
        for index, option in enumerate(choice.options)
        for name in option
        if index != taken.get(choice.name, 0)
    }
    kept = tuple(index for index, block in enumerate(placement.blocks) if block.name not in dropped)
    blocks = [placement.blocks[index] for index in kept]
    position = {block.name: here for here, block in enumerate(blocks)}
    edges = [edge for edge in placement.edges if edge.source in position and edge.target in position]
    return Problem(
        placement=placement,
        block_indices=kept,
        num_devices=placement.devices,
        spans=_integers(block.span for block in blocks),
        memory=_integers(block.memory for block in blocks),
        devices=tuple(block.devices for block in blocks),
        sources=_integers(position[edge.source] for edge in edges),
        targets=_integers(position[edge.target] for edge in edges),
        lags=_integers(edge.lag for edge in edges),
        limits=memory_limits(memory, placement.devices),
    )


def memory_limits(memory: Sequence[int] | int | None, num_devices: int) -> IntArray:
    """Return one limit a device, `UNLIMITED` where there is none.

    Raises:
        ValueError: the number of limits is not the number of devices.
    """
    if memory is None:
        return np.full(num_devices, UNLIMITED, dtype=np.int64)
    if isinstance(memory, int):
        return np.full(num_devices, min(memory, UNLIMITED), dtype=np.int64)
    if len(memory) != num_devices:
        raise ValueError(
            f"{len(memory)} memory limits were given for {num_devices} devices; give one, or one a device"
        )
    return _integers(min(limit, UNLIMITED) for limit in memory)


def options(placement: Placement) -> Iterator[dict[str, int]]:
    """Yield every assignment of an option to each choice; one empty assignment where there are none."""
    names = [choice.name for choice in placement.choices]
    counts = [range(len(choice.options)) for choice in placement.choices]
    for indices in itertools.product(*counts):
        yield dict(zip(names, indices, strict=True))


def _rows(starts: IntArray, blocks: IntArray, delays: IntArray) -> tuple[tuple[tuple[int, int], ...], ...]:
    pairs = list(zip(blocks.tolist(), delays.tolist(), strict=True))
    return tuple(tuple(pairs[begin:end]) for begin, end in pairwise(starts.tolist()))


def _integers(values: Iterator[int]) -> IntArray:
    return np.fromiter(values, dtype=np.int64)
