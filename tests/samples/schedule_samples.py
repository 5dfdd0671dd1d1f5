"""Small placements that the tests of the whole-schedule search draw, and the truth about them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import strategies as st

from tessel.placement import Block, Choice, Edge, Placement
from tessel.schedule.schedule import Schedule
from tessel.search.makespan.exact.prover import diagram
from tessel.search.model.instance import Instance, InstanceArrays, IntArray
from tessel.shapes import zbv

Case = tuple[Placement, int, tuple[int, ...] | None]
"""Placement, micro-batches, memory limits."""


@st.composite
def tiny_cases(draw: st.DrawFn) -> Case:
    """Up to two stages, joint or with the choice to split one, on up to two devices, few micro-batches."""
    devices = draw(st.integers(1, 2))
    num_stages = draw(st.integers(1, 2))
    has_choice = num_stages == 1 and draw(st.booleans())
    blocks: list[Block] = []
    edges: list[Edge] = []
    for stage in range(num_stages):
        held = tuple(sorted(draw(st.sets(st.integers(0, devices - 1), min_size=1, max_size=devices))))
        memory = draw(st.integers(0, 2))
        spans = draw(st.tuples(*[st.integers(1 if memory else 0, 3)] * 2))
        blocks.append(Block(name=f"f{stage}", devices=held, span=spans[0], memory=memory))
        blocks.append(Block(name=f"b{stage}", devices=held, span=spans[1], memory=-memory))
        edges.append(Edge(f"f{stage}", f"b{stage}", draw(st.integers(0, 2))))
    choices: tuple[Choice, ...] = ()
    if has_choice:
        held, memory = blocks[0].devices, blocks[0].memory
        blocks.append(Block(name="i0", devices=held, span=draw(st.integers(1, 2)), memory=-(memory // 2)))
        blocks.append(
            Block(name="w0", devices=held, span=draw(st.integers(1, 2)), memory=memory // 2 - memory)
        )
        edges += [Edge("f0", "i0"), Edge("i0", "w0")]
        choices = (Choice("b0", (("b0",), ("i0", "w0"))),)
    if num_stages == 2:
        edges += [Edge("f0", "f1", draw(st.integers(0, 2)))] if draw(st.booleans()) else []
        edges += [Edge("b1", "b0")] if draw(st.booleans()) else []
    micro_batches = draw(st.integers(1, 2 if num_stages == 2 or has_choice else 3))
    memory_limits = draw(st.none() | st.tuples(*[st.integers(1, 5)] * devices))
    return (
        Placement(devices=devices, blocks=tuple(blocks), edges=tuple(edges), choices=choices),
        micro_batches,
        memory_limits,
    )


def zero_bubble_v() -> Placement:
    """Return a V over 4 devices, passes of 10, 11 and 9 steps and hops of 1, all counted in half-steps."""
    return zbv(
        4,
        split_backward=True,
        forward_span=10,
        backward_input_span=11,
        backward_weight_span=9,
        lag=2,
        forward_memory=2,
        backward_memory=-2,
    )


def as_schedule(
    placement: Placement, arrays: InstanceArrays, start: IntArray, memory: tuple[int, ...]
) -> Schedule:
    """Return the schedule of starts by task."""
    starts = {
        (int(task) % arrays.num_blocks, int(task) // arrays.num_blocks): int(start[task])
        for task in np.flatnonzero(start >= 0)
    }
    return Schedule.of(placement, starts, micro_batches=arrays.micro_batches, memory=memory)


def bound_of_diagram(instance: Instance, devices: tuple[int, ...], known: int) -> int:
    """Return what the relaxed diagram of some devices proves below a makespan; 0 where it is given up."""
    attempt = diagram(instance, devices, known)
    while attempt is not None and not attempt.is_over:
        attempt.advance(known)
    return 0 if attempt is None or attempt.is_too_large else attempt.least


def least_makespan(placement: Placement, micro_batches: int, memory: Sequence[int] | None) -> int | None:
    """Return the least makespan over all options and all orders of all tasks; None if no order is valid."""
    return min(_makespans(placement, micro_batches, memory), default=None)


def option_combinations(placement: Placement) -> Iterator[Placement]:
    """Yield the placement with its choices fixed, in every way."""
    sizes = (range(len(choice.options)) for choice in placement.choices)
    for options in itertools.product(*sizes):
        yield placement.chosen(
            {choice.name: option for choice, option in zip(placement.choices, options, strict=True)}
        )


def _makespans(placement: Placement, micro_batches: int, memory: Sequence[int] | None) -> Iterator[int]:
    for fixed in itertools.product(list(option_combinations(placement)), repeat=micro_batches):
        tasks = [(m, block) for m in range(micro_batches) for block in fixed[m].blocks]
        for order in itertools.permutations(tasks):
            makespan = _makespan_in_order(fixed, order, memory)
            if makespan is not None:
                yield makespan


def _makespan_in_order(
    fixed: Sequence[Placement], order: Sequence[tuple[int, Block]], memory: Sequence[int] | None
) -> int | None:
    end: dict[tuple[int, str], int] = {}
    free = [0] * fixed[0].devices
    held = [0] * fixed[0].devices
    for m, block in order:
        start = max(free[device] for device in block.devices)
        for edge in fixed[m].edges:
            if edge.target == block.name:
                if (m, edge.source) not in end:
                    return None
                start = max(start, end[m, edge.source] + edge.lag)
        end[m, block.name] = start + block.span
        for device in block.devices:
            free[device] = start + block.span
            held[device] += block.memory
            if memory is not None and held[device] > memory[device]:
                return None
    return max(end.values())
