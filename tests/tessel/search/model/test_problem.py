"""Placements as arrays."""

from __future__ import annotations

import pytest

from tessel.placement import Block, Edge, Placement
from tessel.search.model.problem import UNLIMITED, make_problem, memory_limits, options
from tessel.shapes import make_shape


def test_arrays_say_what_the_placement_says() -> None:
    placement = Placement(
        devices=2,
        blocks=(
            Block(name="a", devices=(0,), span=2, memory=3),
            Block(name="b", devices=(0, 1), span=4, memory=-3),
        ),
        edges=(Edge("a", "b", 5),),
    )
    problem = make_problem(placement, memory=7)
    assert problem.spans.tolist() == [2, 4]
    assert problem.devices == ((0,), (0, 1))
    assert problem.blocks_by_device == ((0, 1), (1,))
    assert problem.on_device.tolist() == [[True, False], [True, True]]
    assert problem.work.tolist() == [6, 4]
    assert problem.net_memory.tolist() == [0, -3]
    assert problem.successors == (((1, 7),), ())
    assert problem.predecessors == ((), ((0, 7),))
    assert problem.heads.tolist() == [0, 7]
    assert problem.tails.tolist() == [11, 4]
    assert problem.order == (0, 1)
    assert problem.limits_or_none == (7, 7)


def test_blocks_of_options_not_taken_are_left_out() -> None:
    placement = make_shape("vshape", 2, choose_backward=True)
    names = [
        [
            placement.blocks[index].name
            for index in make_problem(placement, memory=None, option_indices=taken).block_indices
        ]
        for taken in options(placement)
    ]
    assert names == [
        ["f0", "f1", "b1", "b0"],
        ["f0", "f1", "b1_input", "b1_weight", "b0"],
        ["f0", "f1", "b1", "b0_input", "b0_weight"],
        ["f0", "f1", "b1_input", "b1_weight", "b0_input", "b0_weight"],
    ]
    untold = make_problem(placement, memory=None).block_indices
    assert [placement.blocks[index].name for index in untold] == names[0]


def test_limits_are_one_for_all_or_one_a_device() -> None:
    assert memory_limits(None, 2).tolist() == [UNLIMITED, UNLIMITED]
    assert memory_limits(4, 2).tolist() == [4, 4]
    assert memory_limits([4, 5], 2).tolist() == [4, 5]
    assert make_problem(make_shape("vshape", 2), memory=None).limits_or_none is None
    with pytest.raises(ValueError, match="3 memory limits were given for 2 devices"):
        memory_limits([1, 2, 3], 2)
