"""A tile divides its axes, and its vectors lie where an operand can be loaded or packed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.register_tile import (
    NARROW_ACCUMULATORS,
    OperandStep,
    TileAxis,
    choose_padding,
    choose_tile,
    lanes_of,
    largest_divisor,
    rows_of,
)


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


def product_axes(rows: int, columns: int) -> tuple[TileAxis, ...]:
    """Axes of `left[i, k] * right[k, j]`."""
    return (
        TileAxis(rows, (OperandStep(0, 1, False),)),
        TileAxis(columns, (OperandStep(1, 1, True),)),
    )


@pytest.mark.parametrize(
    ("rows", "columns", "padded"),
    [
        (49, 49, (49, 64)),
        (197, 197, (198, 208)),
        (197, 768, (198, 768)),
        (13, 768, None),
        (64, 50, (64, 64)),
        (60, 50, (60, 64)),
        (50, 24, (50, 32)),
    ],
)
def test_extents_are_padded_to_whole_vectors_and_tiles_of_several_rows(
    rows: int, columns: int, padded: tuple[int, int] | None
) -> None:
    assert choose_padding(product_axes(rows, columns), (1000, 1000), packs=True) == padded


def test_a_large_operand_and_one_that_is_read_seldom_are_not_copied() -> None:
    axes = product_axes(64, 50257)
    assert choose_padding(axes, (1000, 50257 * 768), packs=True) is None
    assert choose_padding(product_axes(49, 49), (1000, 1000), packs=False) is None


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_padding_is_little_and_leaves_a_better_tile(rows: int, columns: int) -> None:
    axes = product_axes(rows, columns)
    padded = choose_padding(axes, (1000, 1000), packs=True)
    if padded is None:
        return
    before = choose_tile(axes, packs=True)
    after = choose_tile(
        tuple(axis._replace(extent=extent) for axis, extent in zip(axes, padded, strict=True)), packs=True
    )
    assert after is not None
    assert all(extent <= axis.extent + 15 for axis, extent in zip(axes, padded, strict=True))
    if before is not None and before.vector_axis == after.vector_axis:
        assert (after.lanes, after.rows) > (before.lanes, before.rows) or after.lanes > before.lanes


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from((8, 4)))
def test_a_tile_for_fewer_registers_fits_them_and_divides_its_axes(
    rows: int, columns: int, registers: int
) -> None:
    axes = product_axes(rows, columns)
    padded = choose_padding(axes, (1000, 1000), packs=True, registers=registers) or (rows, columns)
    axes = tuple(axis._replace(extent=extent) for axis, extent in zip(axes, padded, strict=True))
    tile = choose_tile(axes, packs=True, registers=registers)
    if tile is not None:
        assert tile.rows * tile.vectors * tile.lanes <= 16 * NARROW_ACCUMULATORS[registers]
        assert axes[tile.vector_axis].extent % (tile.lanes * tile.vectors) == 0
        assert tile.row_axis is None or axes[tile.row_axis].extent % tile.rows == 0


def test_a_tile_for_avx2_is_six_rows_of_two_registers_where_they_divide() -> None:
    assert choose_tile(product_axes(66, 512), packs=True, registers=8) == (1, 16, 1, 0, 6, False)
    assert choose_padding(product_axes(77, 512), (1000, 1000), packs=True, registers=8) == (78, 512)


@given(st.integers(1, 10_000))
def test_rows_of_a_tile_divide_their_axis(extent: int) -> None:
    assert extent % rows_of(extent) == 0
    assert lanes_of(extent) in (0, 4, 8, 16)
