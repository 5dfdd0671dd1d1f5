"""The tile is chosen by how operands are read, and always divides its axes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cost_model.register_tile import NUM_ACCUMULATORS
from tuner.backends.tvm.register_tile import (
    Access,
    ResultAxis,
    choose_tile,
)

ABSENT = Access(0, None, 0, False)


def product_axes(rows: int, columns: int, *, right_transposed: bool = False) -> tuple[ResultAxis, ...]:
    """Axes of `left[i, k] * right[k, j]`, or of `left[i, k] * right[j, k]`."""
    right = Access(1, 0, 1, False) if right_transposed else Access(1, 1, 1, True)
    return (
        ResultAxis("i", rows, 0, (Access(0, 0, 1, False), Access(1, None, 0, False))),
        ResultAxis("j", columns, 1, (ABSENT, right)),
    )


def test_vectors_lie_along_the_contiguous_columns() -> None:
    tile = choose_tile(product_axes(128, 768), packs=True)
    assert tile is not None
    assert (tile.vector, tile.lanes, tile.rows, tile.packed_read) == (1, 16, 0, None)


def test_a_transposed_operand_is_packed_where_that_pays() -> None:
    axes = product_axes(128, 768, right_transposed=True)
    packed = choose_tile(axes, packs=True)
    assert packed is not None
    assert (packed.vector, packed.packed_read, packed.packed_position) == (1, 1, 0)
    assert choose_tile(axes, packs=False) is None


def test_columns_that_no_vector_divides_leave_the_vector_to_the_rows() -> None:
    tile = choose_tile(product_axes(128, 50257, right_transposed=True), packs=True)
    assert tile is not None
    assert (tile.vector, tile.packed_read, tile.rows) == (0, 0, 1)


def test_axes_that_nothing_divides_have_no_tile() -> None:
    assert choose_tile(product_axes(7, 13), packs=True) is None


def test_an_axis_read_in_strides_carries_no_vector() -> None:
    strided = ResultAxis("x", 64, 0, (Access(0, 0, 2, True),))
    assert choose_tile((strided,), packs=True) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.booleans())
def test_a_tile_divides_its_axes_and_fits_the_registers(rows: int, columns: int, transposed: bool) -> None:
    axes = product_axes(rows, columns, right_transposed=transposed)
    tile = choose_tile(axes, packs=True)
    if tile is None:
        assert rows % 4
        assert columns % 4
        return
    assert axes[tile.vector].extent % tile.vector_tile == 0
    assert tile.vector_tile % tile.lanes == 0
    assert tile.rows is None or axes[tile.rows].extent % tile.row_tile == 0
    assert tile.row_tile * (tile.vector_tile // tile.lanes) <= NUM_ACCUMULATORS + 2 * (tile.row_tile == 13)
