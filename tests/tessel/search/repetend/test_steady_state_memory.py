"""What a repetend holds once it repeats, against its blocks run one after the other for many periods."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tessel.placement import Block, Edge, Placement
from tessel.search import find_repetend
from tessel.search.budget import SearchBudget
from tessel.search.model.problem import make_problem
from tessel.search.repetend.steady_state_memory import keeps_memory, steady_peak, steady_peaks
from tessel.shapes import make_shape


def peak_of_many_periods(memory: list[int], starts: list[list[int]], period: int) -> int:
    """Return the most units held after any step of the last of so many periods that nothing is new."""
    num_periods = 2 + max(map(max, starts)) // period
    changes = [
        (start + number * period, units)
        for row in starts
        for start, units in zip(row, memory, strict=True)
        for number in range(num_periods)
    ]
    last = range((num_periods - 1) * period, num_periods * period)
    return max(sum(units for start, units in changes if start <= step) for step in last)


@st.composite
def steady_states(draw: st.DrawFn) -> tuple[list[int], list[list[int]], int]:
    memory = draw(st.lists(st.integers(-3, 3), min_size=1, max_size=3))
    memory.append(-sum(memory))
    row = st.lists(st.integers(0, 12), min_size=len(memory), max_size=len(memory))
    return memory, draw(st.lists(row, min_size=1, max_size=2)), draw(st.integers(1, 6))


@given(case=steady_states())
def test_the_peak_is_that_of_many_periods(case: tuple[list[int], list[list[int]], int]) -> None:
    memory, starts, period = case
    expected = peak_of_many_periods(memory, starts, period)
    assert steady_peak(np.array(memory), np.array(starts), period) == expected
    # Device 0 has the same blocks and no limit, device 1 a block that holds nothing.
    blocks = tuple(
        Block(name=f"b{number}", devices=(0, 2), memory=units) for number, units in enumerate(memory)
    )
    placement = Placement(devices=3, blocks=(*blocks, Block(name="idle", devices=(1,))))
    columns = np.array([[*row, 0] for row in starts])
    for limit in (expected, expected - 1):
        problem = make_problem(placement, memory=(10**6, 0, limit))
        added = any(units > 0 for units in memory)
        assert keeps_memory(problem, columns, period) == (limit == expected or not added)


def test_a_device_that_is_left_something_by_each_micro_batch_has_no_steady_state() -> None:
    blocks = (Block(name="f", devices=(0,), memory=2), Block(name="b", devices=(0,), memory=-1))
    placement = Placement(devices=1, blocks=blocks, edges=(Edge("f", "b"),))
    found = find_repetend(placement, memory=None, max_copies=1, budget=SearchBudget(1))
    assert steady_peaks(found) == (0,)
    # One that frees more than it adds holds less and less.
    problem = make_problem(replace(placement, blocks=(blocks[0], replace(blocks[1], memory=-3))), memory=0)
    assert keeps_memory(problem, np.array([[0, 1]]), 2)


def test_every_device_says_what_it_holds() -> None:
    found = find_repetend(make_shape("vshape", 3), memory=3, max_copies=1, budget=SearchBudget(1))
    starts = [list(row) for row in found.starts]
    blocks = [found.placement.blocks[index] for index in found.block_indices]
    expected = [
        peak_of_many_periods(
            [block.memory * (device in block.devices) for block in blocks], starts, found.period
        )
        for device in range(3)
    ]
    assert list(steady_peaks(found)) == expected
