"""Placements read as stages."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tessel.handwritten.construction.stages import NotAPipelineError, read_pipeline
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.shapes import SHAPES, interleaved, make_shape, vshape, zbv


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    "variant", [{}, {"split_backward": True}, {"choose_backward": True}, {"infer": True}, {"recompute": True}]
)
def test_stages_hold_every_block_once_and_by_its_name(name: str, variant: dict[str, bool]) -> None:
    placement = make_shape(name, 4, **variant)
    pipeline = read_pipeline(placement)
    held = []
    for stage in pipeline.stages:
        parts = (stage.forward, stage.recompute, stage.joint, stage.input, stage.weight)
        names = [placement.blocks[part].name for part in parts if part is not None]
        assert {name.split("_")[0][1:] for name in names} == {names[0][1:]}
        held.extend(names)
    assert sorted(held) == sorted(placement.index_by_name)


def test_chains_and_their_devices() -> None:
    assert read_pipeline(vshape(3)).chain_devices() == (0, 1, 2)
    assert read_pipeline(zbv(3)).chain_devices() == (0, 1, 2, 2, 1, 0)
    assert read_pipeline(interleaved(2, chunks=3)).num_chunks == 3
    assert read_pipeline(make_shape("mshape", 3)).chain_devices() is None


def test_backwards_that_wait_only_through_the_chain_are_matched() -> None:
    """Two chunks per device: b2, b3 come back before b1, b0, and hang on the forwards of the last chunk."""
    full = zbv(2)
    chain = ("f0", "f1", "f2", "f3", "b3", "b2", "b1", "b0")
    bare = Placement(
        devices=2,
        blocks=full.blocks,
        edges=tuple(Edge(before, after) for before, after in pairwise(chain)),
    )
    names = [
        (bare.blocks[stage.forward].name, bare.blocks[stage.joint or 0].name)
        for stage in read_pipeline(bare).stages
    ]
    assert names == [("f0", "b0"), ("f1", "b1"), ("f2", "b2"), ("f3", "b3")]


def test_what_is_no_pipeline_says_which_block() -> None:
    forward = Block(name="f0", kind=BlockKind.FORWARD, devices=(0,))
    loose = Block(name="x", kind=BlockKind.OTHER, devices=(0,))
    elsewhere = Block(name="b0", kind=BlockKind.BACKWARD, devices=(1,))
    second = Block(name="b1", kind=BlockKind.BACKWARD, devices=(0,))
    third = Block(name="b2", kind=BlockKind.BACKWARD, devices=(0,))
    cases = [
        ((forward, loose), (), "block x is neither"),
        ((forward, elsewhere), (Edge("f0", "b0"),), "backward block b0 follows no forward"),
        ((forward, second, third), (Edge("f0", "b1"), Edge("f0", "b2")), "follows no forward of its own"),
    ]
    for blocks, edges, reason in cases:
        with pytest.raises(NotAPipelineError, match=reason):
            read_pipeline(Placement(devices=2, blocks=blocks, edges=edges))


def test_waits_that_no_pipeline_has_are_refused() -> None:
    """A forward that waits for another stage's backward: published orders could deadlock on it."""
    usual = vshape(2)
    odd = Placement(
        devices=2, blocks=usual.blocks, edges=(Edge("f0", "b0"), Edge("f1", "b1"), Edge("b0", "f1"))
    )
    with pytest.raises(NotAPipelineError, match="edge b0 -> f1 carries neither"):
        read_pipeline(odd)


def test_a_weight_half_before_its_input_half_is_no_stage() -> None:
    """Rules run the input half first, and would deadlock."""
    blocks = tuple(
        Block(name=kind.value, kind=kind, devices=(0,))
        for kind in (BlockKind.FORWARD, BlockKind.BACKWARD_WEIGHT, BlockKind.BACKWARD_INPUT)
    )
    names = [block.name for block in blocks]
    edges = (Edge(names[0], names[1]), Edge(names[0], names[2]), Edge(names[1], names[2]))
    with pytest.raises(NotAPipelineError, match="goes against the order of a stage"):
        read_pipeline(Placement(devices=1, blocks=blocks, edges=edges))
