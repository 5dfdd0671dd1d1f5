"""Placements are valid from birth, and shapes are what their drawings say."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.errors import ScheduleError
from tessel.placement import Block, BlockKind, Choice, Edge, Placement
from tessel.shapes import SHAPES, make_shape


def pair(**changes: object) -> Placement:
    fields: dict[str, object] = {
        "devices": 2,
        "blocks": (Block(name="f0", devices=(0,)), Block(name="f1", devices=(1,))),
        "edges": (Edge("f0", "f1"),),
        **changes,
    }
    return Placement(**fields)  # type: ignore[arg-type]  # tests give wrong values on purpose


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"devices": 0}, "0"),
        ({"blocks": ()}, "block"),
        ({"blocks": (Block(name="f0", devices=(5,)),), "edges": ()}, "5"),
        ({"blocks": (Block(name="f0", devices=(1, 0)),), "edges": ()}, "f0"),
        ({"blocks": (Block(name="f0", devices=(0,), span=-1),), "edges": ()}, "-1"),
        ({"edges": (Edge("f0", "zz"),)}, "zz"),
        ({"edges": (Edge("f0", "f1", -3),)}, "-3"),
        ({"edges": (Edge("f0", "f1"), Edge("f1", "f0"))}, "cycle"),
        ({"choices": (Choice("c", (("f0",), ("zz",))),)}, "zz"),
        ({"choices": (Choice("c", ()),)}, "c"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(named)):
        pair(**changes)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(sorted(SHAPES)),
    devices=st.integers(2, 9),
    variant=st.sampled_from(["joint", "split_backward", "choose_backward", "recompute", "infer"]),
    lag=st.integers(0, 3),
)
def test_memory_of_every_shape_comes_back_to_zero(name: str, devices: int, variant: str, lag: int) -> None:
    options = {} if variant == "joint" else {variant: True}
    placement = make_shape(name, devices, lag=lag, **options)
    chosen = {block for choice in placement.choices for block in choice.options[0]}
    alternatives = {block for choice in placement.choices for option in choice.options for block in option}
    held = [0] * devices
    for block in placement.blocks:
        if block.name in alternatives and block.name not in chosen:
            continue
        for device in block.devices:
            held[device] += block.memory
    assert held == [0] * devices
    if variant == "infer":
        assert {block.kind for block in placement.blocks} == {BlockKind.FORWARD}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_forward_and_backward_of_a_shape_mirror_each_other(name: str) -> None:
    placement = make_shape(name, 4)
    kinds = [block.kind for block in placement.blocks]
    if name in ("finetune", "alphafold"):
        assert kinds.count(BlockKind.FORWARD) > kinds.count(BlockKind.BACKWARD)
    else:
        assert kinds.count(BlockKind.FORWARD) == kinds.count(BlockKind.BACKWARD)
