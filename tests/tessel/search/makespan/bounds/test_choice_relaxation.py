"""Relaxed choices, by hand; tests/tessel/search/test_every_bound.py has the truth."""

from __future__ import annotations

import itertools

from tessel.placement import Block, Choice, Edge, Placement
from tessel.search.makespan.bounds.choice_relaxation import without_choices
from tessel.shapes import vshape


def test_the_pair_takes_the_best_of_either_option() -> None:
    placement = vshape(
        2,
        choose_backward=True,
        backward_span=22,
        backward_input_span=13,
        backward_weight_span=10,
        forward_memory=2,
        backward_memory=-2,
        lag=1,
    )
    relaxed = without_choices(placement)
    assert relaxed is not None
    pairs = [(block.span, block.memory) for block in relaxed.blocks if block.name.startswith("b1")]
    # What the joint backward frees at its start is of no use before its end.
    assert pairs == [(13, -1), (9, -1)]
    lag = {(edge.source, edge.target): edge.lag for edge in relaxed.edges}
    assert lag["b1_input", "b0_input"] == 1


def test_no_choice_is_left_as_it_is() -> None:
    placement = vshape(2)
    assert without_choices(placement) is placement


def test_other_choices_are_not_relaxed() -> None:
    placement = Placement(
        devices=2,
        blocks=(Block(name="x", devices=(0,), span=1), Block(name="y", devices=(1,), span=2)),
        choices=(Choice("x", (("x",), ("y",))),),
    )
    assert without_choices(placement) is None


def relaxed_memory(joint: int, first: int, second: int, *, others: tuple[Block, ...] = ()) -> list[int]:
    blocks = tuple(
        Block(name=name, devices=(0,), span=span, memory=units)
        for name, span, units in (("b", 4, joint), ("i", 2, first), ("w", 3, second))
    )
    choices = (Choice("backward", (("b",), ("i", "w"))),)
    placement = Placement(devices=1, blocks=blocks + others, edges=(Edge("i", "w"),), choices=choices)
    relaxed = without_choices(placement)
    assert relaxed is not None
    return [relaxed.block(name).memory for name in ("i", "w")]


def test_what_is_saved_for_the_weight_gradient_alone_is_not_held_jointly() -> None:
    assert relaxed_memory(0, 1, -1) == [0, 0]
    assert relaxed_memory(1, 3, -2) == [1, 0]
    assert relaxed_memory(-2, 1, -3) == [0, -2]


def test_the_pair_leaves_no_more_than_either_option_and_no_less_where_its_second_block_frees() -> None:
    for joint, first, second in itertools.product(range(-3, 4), repeat=3):
        held, freed = relaxed_memory(joint, first, second)
        assert held == min(first, max(joint, 0))
        assert freed <= 0
        assert held + freed == min(held, joint, first + second)


def test_a_block_without_a_span_may_add_what_the_joint_block_frees_at_its_start() -> None:
    instant = Block(name="x", devices=(0,), span=0, memory=2)
    assert relaxed_memory(-2, -1, -1) == [-1, -1]
    assert relaxed_memory(-2, -1, -1, others=(instant,)) == [-2, 0]
