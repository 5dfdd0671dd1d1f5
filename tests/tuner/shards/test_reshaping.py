"""Splits of tensors of other shapes, beside the elements that each shard holds, over all small shapes."""

import itertools
import math

import numpy as np
import pytest

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import Split, split_axis, take_shard
from tuner.shards.rules.movement import reshaped_split

pytestmark = pytest.mark.tvm

NUM_ELEMENTS = 8
SHAPES = [
    shape
    for ndim in (1, 2, 3, 4)
    for shape in itertools.product((1, 2, 4, 8), repeat=ndim)
    if math.prod(shape) == NUM_ELEMENTS
]


def splits_of(shape: tuple[int, ...]) -> list[Split]:
    """List splits of each axis over two shards, also in two sections."""
    return [
        split_axis(axis, extent, 2, sections=sections)
        for axis, extent in enumerate(shape)
        for sections in (1, 2)
        if extent >= 2 * sections
    ]


def elements(split: Split, shape: tuple[int, ...]) -> list[list[int]]:
    """Return what each shard holds of a tensor that counts its elements."""
    whole = np.arange(NUM_ELEMENTS).reshape(shape)
    return [take_shard(whole, split, rank).ravel().tolist() for rank in range(2)]


@pytest.mark.parametrize("before", SHAPES)
def test_each_shard_keeps_its_elements_or_no_axis_that_begins_there_holds_them(before):
    for split, after in itertools.product(splits_of(before), SHAPES):
        held = elements(split, before)
        outer = math.prod(before[: split.axis])
        possible = [
            other
            for other in splits_of(after)
            if elements(other, after) == held and math.prod(after[: other.axis]) == outer
        ]
        try:
            found = reshaped_split(split, before, after)
        except UnsupportedOperatorError:
            assert not possible, (split, before, after)
        else:
            assert elements(found, after) == held, (split, before, after)
