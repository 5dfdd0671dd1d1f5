"""Decisions travel as text, and what is no candidate is refused."""

from __future__ import annotations

import pytest

from tuner.backends.cpu.tuned.chosen_tiles import ChosenTiles
from tuner.backends.cpu.tuned.families import space_of

pytestmark = pytest.mark.tvm

PRODUCT, DEPTHWISE = "product:49x64x49", "depthwise:1x14x14x72x3x3x1x1x1x1"


def chosen() -> ChosenTiles:
    return ChosenTiles(
        {name: space_of(name).decisions_of(space_of(name).rows[3]) for name in (PRODUCT, DEPTHWISE)}
    )


def test_text_is_read_again() -> None:
    tiles = chosen()
    again = ChosenTiles.parse(tiles.text)
    assert again == tiles
    assert again.digest == tiles.digest
    assert len(tiles.digest) == 16


def test_nothing_is_no_text() -> None:
    assert not ChosenTiles()
    assert (ChosenTiles().text, ChosenTiles().digest) == ("", "")
    assert ChosenTiles.parse("") == ChosenTiles()


def test_each_backend_gets_its_own_kernels() -> None:
    assert list(chosen().of_backend("packed_matmul").decisions) == [PRODUCT]
    assert list(chosen().of_backend("nhwc").decisions) == [DEPTHWISE]
    assert not chosen().of_backend("attention")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not written as JSON"),
        ('{"product:49x64x49":{"rows":"4"}}', "not written as JSON"),
        ('{"product:49x64x49":{"rows":4}}', "no candidate"),
        ('{"product:49x64":{}}', "has 2 numbers"),
    ],
)
def test_what_is_no_choice_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ChosenTiles.parse(text)
