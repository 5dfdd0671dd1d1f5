"""One rule for names from files, kept wherever a placement, a schedule or a profile is made."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from layer_plans import profile

from tessel.errors import ScheduleError
from tessel.handwritten.gpipe import GPIPE
from tessel.names import MAX_NAME, check_name, name_of_path
from tessel.placement import Block, Choice, Placement
from tessel.profiles import Layer
from tessel.shapes import vshape

BAD = ("two\nlines", "\r", "\x00", "\x1b[2J", "\u202egnirts", "\u2028", "\ufeff", "x" * 100_000)
GOOD = ("", "h.0", "=cmd|'/C calc'!A0", '\'"""\\', "<script>", "# no comment", "層", "x" * MAX_NAME)

MAKERS: dict[str, Callable[[str], object]] = {
    "block": lambda name: Placement(devices=1, blocks=(Block(name=name or "a", devices=(0,)),)),
    "choice": lambda name: Placement(
        devices=1,
        blocks=(Block(name="one", devices=(0,)), Block(name="two", devices=(0,))),
        choices=(Choice(name, (("one",), ("two",))),),
    ),
    "found_by": lambda name: msgspec.structs.replace(GPIPE.build(vshape(2), micro_batches=1), found_by=name),
    "layer": lambda name: Layer(name or "a"),
    "tie": lambda name: Layer("a", name),
    "model": lambda name: msgspec.structs.replace(profile(), name=name),
    "device": lambda name: msgspec.structs.replace(profile(), device=name),
    "note": lambda name: msgspec.structs.replace(profile(), notes=(name,)),
}


@pytest.mark.parametrize("what", MAKERS)
def test_names_are_printable_and_short_wherever_something_is_made(what: str) -> None:
    for name in GOOD:
        MAKERS[what](name)
    for name in BAD:
        with pytest.raises(ScheduleError, match=what) as caught:
            MAKERS[what](name)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300


def test_a_part_of_a_path_becomes_a_name() -> None:
    for text in (*BAD, *GOOD, "\udcff"):
        check_name("model", name_of_path(text))
    assert name_of_path("opt_30b") == "opt_30b"
