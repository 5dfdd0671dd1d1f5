"""Smaller placements, by hand; tests/tessel/search/test_every_bound.py has the truth."""

from __future__ import annotations

from tessel.placement import Block, Edge, Placement
from tessel.search.makespan.bounds.sub_problem import on_devices, without_last_blocks
from tessel.shapes import make_shape


def test_what_a_last_block_frees_is_freed_before_it() -> None:
    placement = make_shape("vshape", 2, split_backward=True, forward_memory=2)
    smaller = without_last_blocks(placement, (0,))
    assert {block.name: block.memory for block in smaller.blocks} == {
        "f0": 2, "f1": 2, "b1_input": -2, "b0_input": -1, "b0_weight": -1,
    }  # fmt: skip
    assert {(edge.source, edge.target) for edge in placement.edges} - {
        (edge.source, edge.target) for edge in smaller.edges
    } == {("b1_input", "b1_weight")}


def test_a_block_that_frees_elsewhere_stays() -> None:
    blocks = (
        Block(name="f", devices=(0, 1), span=1, memory=1),
        Block(name="b", devices=(0,), span=1),
        Block(name="w", devices=(0, 1), span=1, memory=-1),
    )
    placement = Placement(devices=2, blocks=blocks, edges=(Edge("f", "b"), Edge("b", "w")))
    assert without_last_blocks(placement, ()) == placement


def test_paths_through_other_devices_are_lags() -> None:
    part = on_devices(make_shape("vshape", 3, backward_span=2, lag=1), (0,))
    assert part.devices == 1
    # f1, f2, b2 and b1 on the way, and five hops
    assert [(edge.source, edge.target, edge.lag) for edge in part.edges] == [("f0", "b0", 10)]
