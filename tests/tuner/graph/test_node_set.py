"""Index sets behave as Python's sets of the same numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.graph import NodeSet

numbers = st.frozensets(st.integers(0, 200), max_size=12)


@given(numbers, numbers)
def test_operations_equal_those_of_sets(one: frozenset[int], other: frozenset[int]) -> None:
    left, right = NodeSet.of(one), NodeSet.of(other)
    assert set(left | right) == one | other
    assert set(left & right) == one & other
    assert set(left - right) == one - other
    assert left.is_disjoint(right) == one.isdisjoint(other)
    assert left.is_subset(right) == one.issubset(other)
    assert (left == right) == (one == other)
    assert len(left) == len(one)
    assert list(left) == sorted(one)
    assert bool(left) == bool(one)


@given(numbers, st.integers(0, 210))
def test_first_and_last_follow_the_order(one: frozenset[int], index: int) -> None:
    indices = NodeSet.of(one)
    assert (index in indices) == (index in one)
    if one:
        assert (indices.first, indices.last) == (min(one), max(one))


def test_an_empty_set_has_no_first_and_no_last() -> None:
    with pytest.raises(ValueError, match="no first"):
        _ = NodeSet().first
    with pytest.raises(ValueError, match="no last"):
        _ = NodeSet().last


def test_sets_are_written_as_their_numbers() -> None:
    assert repr(NodeSet.of([3, 1])) == "{1, 3}"
    assert NodeSet.first_numbers(3) == NodeSet.of([0, 1, 2])
