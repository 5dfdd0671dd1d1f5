"""Figures as they stand in the files of profiles: read, converted, and refused with file, row and remedy.

Every reader takes its numbers through here, so that not-a-number, infinities, negative and absurd figures are
refused in one way: one sentence that names the file and the place in it. Checked in
tests/tessel/profiles/test_table.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from tessel.errors import DocumentError, ScheduleError, shown
from tessel.profiles.profile import StageCosts
from tessel.progress.manual import manual

MIB = 2**20

MAX_FIGURE = 1e18
"""Largest figure of a table in any unit: an exabyte, thirty years in nanoseconds."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)

_Document = TypeVar("_Document")


def refusal(path: object, place: str, problem: object, remedy: str) -> DocumentError:
    """Return the error of a figure or row that cannot be used.

    Args:
        place: where in it, such as `row 3`; empty for the file as a whole.
        problem: what was found, and why it is wrong.
        remedy: what to do.
    """
    where = f"{shown(path)}, {shown(place)}" if place else shown(path)
    return DocumentError(f"{where}: {shown(problem)}; {remedy}")


def read_number(value: object, path: object, place: str) -> float:
    """Return a finite number of at least 0, out of a text or a JSON value.

    Args:
        value: a text of a table, or what JSON gave.
        path: the file, for messages.
        place: where in it, with the name of the figure, such as `row 3, forward_ms`.

    Raises:
        DocumentError: it is no such number.
    """
    if isinstance(value, str):
        text = value.strip()
        if _DECIMAL_COMMA.fullmatch(text):
            raise refusal(path, place, f"{text!r} has a decimal comma", "write a decimal point")
        if not _NUMBER.fullmatch(text):
            raise refusal(
                path,
                place,
                f"{text!r} is no number",
                "write a plain number such as 0.35; units stand in the column's name",
            )
        value = float(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(path, place, f"{value!r} is no number", "write a plain number such as 0.35")
    if not 0 <= value <= MAX_FIGURE:
        raise refusal(path, place, f"{value} is no time or size", f"give a number from 0 to {MAX_FIGURE:g}")
    return float(value)


def read_count(value: object, path: object, place: str) -> int:
    """Return a whole number of at least 1, at most a million.

    Raises:
        DocumentError: it is no such number.
    """
    number = read_number(value, path, place)
    if not number.is_integer() or not 1 <= number <= 1e6:
        raise refusal(path, place, f"{number:g} is no such count", "give a whole number from 1 to 1000000")
    return int(number)


def make_cost(
    figures: Mapping[str, float | None], path: object, place: str, *, units_are_known: bool = False
) -> StageCosts:
    """Return the cost of one layer; bytes are rounded to whole ones.

    Args:
        figures: by the name of the attribute of `StageCosts`.
        path: the file, for messages.
        place: where in it.
        units_are_known: whether a joint backward may be far from its halves, as on a busy machine.

    Raises:
        DocumentError: a figure is beyond what a layer can have, which a wrong unit makes so.
    """
    whole = {
        name: round(value) if value is not None and name.endswith("_bytes") else value
        for name, value in figures.items()
    }
    try:
        cost = msgspec.convert(whole, StageCosts)
    except (msgspec.ValidationError, ScheduleError) as error:
        raise refusal(path, place, error, f"see {manual('profiles.md')} for the units") from error
    if not units_are_known:
        _check_units(cost, path, place)
    return cost


def decode_json(text: bytes, wanted: type[_Document], path: object) -> _Document:
    """Return a JSON document of a type.

    Raises:
        DocumentError: it is none; the message names the key.
    """
    try:
        return msgspec.json.decode(text, type=wanted)
    except msgspec.ValidationError as error:
        raise refusal(path, "", error, f"see {manual('profiles.md')} for what stands where") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise refusal(path, "", f"it is not whole JSON, {error}", "write it again") from error
    except ScheduleError as error:
        raise refusal(path, "", error, f"see {manual('profiles.md')} for what stands where") from error


MAX_HALVES_RATIO = 20.0
"""How many times as long as the joint backward its two halves may take together, and the reverse. Splitting
costs a part of the joint backward, never a multiple; a wrong unit makes it a thousand."""

SHORTEST_COMPARED_US = 10.0
"""Joint backwards that are shorter are noise, and not compared with their halves."""


def _check_units(cost: StageCosts, path: object, place: str) -> None:
    """Refuse a backward whose parts are of another unit than the whole."""
    if cost.backward_us is None or not cost.is_splittable or cost.backward_us < SHORTEST_COMPARED_US:
        return
    halves = (cost.backward_input_us or 0.0) + (cost.backward_weight_us or 0.0)
    if not cost.backward_us / MAX_HALVES_RATIO <= halves <= cost.backward_us * MAX_HALVES_RATIO:
        raise refusal(
            path,
            place,
            f"the halves of the backward take {halves / 1e3:g} ms and the joint one "
            f"{cost.backward_us / 1e3:g} ms, which cannot be of one unit",
            "give all in milliseconds",
        )
