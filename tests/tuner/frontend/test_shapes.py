"""Shapes of inputs: the wanted one where it fits, the default elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import UnknownNameError
from tuner.frontend.shapes import input_shapes, static_shapes

DEFAULTS = {"image": (1, 3, 8, 8), "text": (1, 16)}
EXTENT = st.integers(1, 64)


@given(text=st.tuples(EXTENT, EXTENT))
def test_wanted_shape_replaces_the_default_and_leaves_the_others(text: tuple[int, int]) -> None:
    assert input_shapes("two", DEFAULTS, {"text": text}) == {"image": (1, 3, 8, 8), "text": text}


@given(shape=st.lists(st.integers(-2, 4), max_size=4).map(tuple).filter(lambda s: len(s) != 2 or min(s) < 1))
def test_shape_with_other_axes_or_an_empty_one_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="'text' does not fit"):
        input_shapes("two", DEFAULTS, {"text": shape})


def test_an_extent_that_is_open_may_be_empty_and_another_not() -> None:
    open_axis = {"past": (1, 0, 4), "new": (1, 2, 4)}
    assert static_shapes("m", open_axis, {"past": (1, 0, 4)}) == open_axis
    with pytest.raises(ValueError, match=r"leaves open \(1,\?,4\)"):
        static_shapes("m", open_axis, {})
    with pytest.raises(ValueError, match="'new' does not fit"):
        static_shapes("m", open_axis, {"past": (1, 3, 4), "new": (1, 0, 4)})


def test_unknown_input_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"no input 'txt'.*image, text"):
        input_shapes("two", DEFAULTS, {"txt": (1, 16)})
