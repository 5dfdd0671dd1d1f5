"""Shapes are what their drawings in the docstrings say: device per row, one column a block in time."""

from __future__ import annotations

import inspect
import re

import pytest

from tessel.placement import BlockKind, Placement
from tessel.shapes import SHAPES, make_shape

LETTERS = {"f": BlockKind.FORWARD, "b": BlockKind.BACKWARD}


def drawing(name: str) -> list[list[str]]:
    """Return the rows of the first drawing in a shape's docstring, a letter or a dot a column."""
    text = inspect.getdoc(SHAPES[name]) or ""
    return [
        match[1].split() for match in re.finditer(r"^ *device \d+ +((?:[fb.] )*[fb.]) *$", text, re.MULTILINE)
    ]


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_drawn_letters_are_the_blocks_of_each_device(name: str) -> None:
    rows = drawing(name)
    assert rows, "the docstring has no drawing"
    placement = make_shape(name, len(rows))
    for device, row in enumerate(rows):
        for letter, kind in LETTERS.items():
            assert row.count(letter) == count(placement, device, kind), (name, device, letter)


def count(placement: Placement, device: int, kind: BlockKind) -> int:
    return sum(device in block.devices and block.kind is kind for block in placement.blocks)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_more_devices_give_more_blocks(name: str) -> None:
    sizes = [len(make_shape(name, devices).blocks) for devices in (2, 4, 8)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
