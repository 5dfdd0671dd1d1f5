"""A tile divides its axes, and its vectors lie where an operand can be loaded or packed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cost_model.register_tile import OperandStep, TileAxis, choose_tile, largest_divisor


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_the_largest_divisor_divides_and_none_between_does(extent: int, limit: int) -> None:
    found = largest_divisor(extent, limit)
    assert extent % found == 0
    assert not any(extent % size == 0 for size in range(found + 1, min(extent, limit) + 1))


def test_an_axis_that_moves_no_operand_or_stores_no_vectors_carries_none() -> None:
    along = (OperandStep(0, 1, True),)
    assert choose_tile((TileAxis(64, ()),), packs=True) is None
    assert choose_tile((TileAxis(64, along, takes_vectors=False),), packs=True) is None
    assert choose_tile((TileAxis(64, along),), packs=False) == (0, 16, 4, None, 1, False)
