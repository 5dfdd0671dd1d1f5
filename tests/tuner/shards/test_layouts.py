import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import TunerError
from tuner.shards.layouts import Partial, Replicated, Split, join_shards, split_axis, take_shard


@given(
    num_shards=st.integers(2, 8), extra=st.integers(0, 9), unit=st.integers(1, 3), sections=st.integers(1, 3)
)
def test_shards_of_a_tensor_join_to_it_and_differ_by_one_unit_a_section(num_shards, extra, unit, sections):
    extent = sections * unit * (num_shards + extra)
    layout = split_axis(1, extent, num_shards, unit=unit, sections=sections)
    tensor = np.arange(3 * extent).reshape(3, extent)
    parts = [take_shard(tensor, layout, rank) for rank in range(num_shards)]
    assert np.array_equal(join_shards(parts, layout), tensor)
    assert [part.shape[1] for part in parts] == list(layout.extents)
    assert max(layout.extents) - min(layout.extents) in (0, unit * sections)
    assert sum(layout.extents) == extent


def test_a_section_is_divided_by_itself():
    layout = split_axis(0, 12, 2, unit=2, sections=3)
    assert layout.pieces == (((0, 2), (4, 2), (8, 2)), ((2, 2), (6, 2), (10, 2)))
    assert layout.starts is None


def test_uneven_parts_begin_where_the_one_before_ends():
    layout = split_axis(0, 19, 4)
    assert layout.extents == (5, 5, 5, 4)
    assert layout.starts == (0, 5, 10, 15)


def test_terms_join_by_their_reduction():
    terms = [np.array([1.0, 5.0]), np.array([3.0, 2.0])]
    assert join_shards(terms, Partial("sum")).tolist() == [4.0, 7.0]
    assert join_shards(terms, Partial("max")).tolist() == [3.0, 5.0]
    assert join_shards(terms, Partial("min")).tolist() == [1.0, 2.0]
    assert join_shards(terms, Replicated()).tolist() == [1.0, 5.0]
    with pytest.raises(ValueError, match="a whole tensor has no terms"):
        take_shard(terms[0], Partial("sum"), 0)


def test_too_few_units_are_refused():
    with pytest.raises(TunerError, match="extent 12 has 3 units of 4, fewer than 4 shards"):
        split_axis(0, 12, 4, unit=4)
    with pytest.raises(TunerError, match="extent 13 has no 3 sections of whole units of 1"):
        split_axis(0, 13, 4, sections=3)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ((((0, 2),), ()), "leave one without any part"),
        ((((0, 2),), ((3, 1),)), "do not cover the axis once"),
        ((((0, 2),), ((1, 2),)), "do not cover the axis once"),
        ((((2, 1), (0, 2)), ((3, 1),)), "out of order"),
    ],
)
def test_intervals_that_are_no_division_are_refused(pieces, message):
    with pytest.raises(ValueError, match=message):
        Split(0, pieces)
