"""Idle steps at both ends of a device, by hand; tests/tessel/search/test_every_bound.py has the truth."""

from __future__ import annotations

import functools

from tessel.placement import Block, Choice, Edge, Placement
from tessel.search.makespan.bounds.ramp_bound import DeviceBlocks, ramp_bound
from tessel.search.model.instance import build_instance
from tessel.search.model.precedence import least_distances_from
from tessel.shapes import vshape, zbv


def bounds_of(placement: Placement, micro_batches: int, memory: tuple[int, ...]) -> list[int]:
    """Return the bound of each device."""
    instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    arrays, least = instance.arrays, instance.least_work()
    distances_from = functools.partial(least_distances_from, instance.precedence)
    return [
        ramp_bound(
            DeviceBlocks(
                arrays,
                arrays.on[arrays.on_start[device] : arrays.on_start[device + 1]].tolist(),
                memory[device],
                int(least[device]),
                distances_from,
            )
        )
        for device in range(arrays.num_devices)
    ]


def test_a_full_device_waits_for_what_comes_back() -> None:
    # Device 0 starts two forwards, a step each, and no third; its first backward cannot start before step 4 +
    # 3 x 3 = 13, so that eleven steps are lost. Behind its last forward 15 steps follow, in which it has two
    # backwards, of three steps each: nine more.
    assert bounds_of(vshape(4), 8, (2, 4, 4, 4))[0] == 8 * 4 + (13 - 2) + (15 - 6)


def test_the_last_device_never_waits_for_its_own_memory() -> None:
    # Three steps until its first forward, and nine behind its last backward.
    assert bounds_of(vshape(4), 8, (4, 4, 4, 1))[3] == 3 + 8 * 4 + 9


def test_memory_that_holds_all_is_no_limit_at_the_start() -> None:
    assert bounds_of(vshape(4), 8, (13, 4, 4, 4))[0] == 8 * 4 + 13 - 8
    assert bounds_of(vshape(2), 8, (8, 8))[0] == 8 * 4


def test_input_gradients_at_the_end_keep_the_memory_of_their_weight_gradients() -> None:
    # The last device of a V has 32 x 8 steps of work. At the start it runs eight forwards, and no backward
    # before step 23: 15 steps are lost. Behind the start of its last forward of the second chunk 29 steps
    # follow, for which it holds four micro-batches at most: 24 steps of work, and five are lost.
    assert bounds_of(zbv(4, split_backward=True, lag=1), 32, (8, 8, 8, 8))[3] == 32 * 8 + 15 + 5


def test_a_schedule_may_be_over_before_the_ramp_of_an_option_that_nobody_takes() -> None:
    blocks = tuple(
        Block(name=name, devices=(0,), span=span, memory=units)
        for name, span, units in (("f", 1, 2), ("b", 1, -2), ("i", 2, -2), ("w", 2, 0))
    )
    edges = (Edge("f", "b"), Edge("f", "i"), Edge("i", "w", 1))
    choices = (Choice("backward", (("b",), ("i", "w"))),)
    placement = Placement(devices=1, blocks=blocks, edges=edges, choices=choices)
    # w starts at step 4 at the earliest, and joint all is over at step 2.
    assert bounds_of(placement, 1, (3,)) == [2]
