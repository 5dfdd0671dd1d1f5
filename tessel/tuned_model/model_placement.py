"""The placements that a model can be tuned for, by name: how many stages it is cut into, and where they run.

    vshape          a stage a device                          0 1 2 3
    interleaved:2   two stages a device, round after round    0 1 2 3 0 1 2 3
    zbv             two stages a device, there and back       0 1 2 3 3 2 1 0
    xshape          a stage a device, and a copy back up      0 1 2 3 and 3 2 1 0
    mshape          a stage a device, between the first and   *  0 1 2 3  *
                    the last layer, divided over all

Shapes to search schedules for stand in `tessel.shapes`; these are the ones whose stages can be derived from
any model. Checked in tests/tessel/tuned_model/test_model_placement.py.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from tessel.errors import ScheduleError

AUTO = "auto"
"""Stands for all of `AUTO_PLACEMENTS`, of which the fastest is taken."""

BASELINE = "vshape"
"""The placement that others are compared with."""

AUTO_PLACEMENTS = (BASELINE, "interleaved:2", "zbv", "xshape", "mshape")

MAX_CHUNKS = 8
"""Most stages of one device: beyond, hops cost more than a shorter warm-up saves."""

_INTERLEAVED = re.compile(r"interleaved(?::([0-9]{1,3}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlacement:
    """Where the stages of a model run.

    Attributes:
        name: as a user writes it.
        chain: the device of each stage of the chain.
        divides_ends: whether the first and the last layer are divided over all devices, before and after the
            chain.
        copies: of the chain; the second of two goes over the devices in the opposite direction.
    """

    name: str
    chain: tuple[int, ...]
    divides_ends: bool = False
    copies: int = 1


def model_placement(name: str, num_devices: int) -> ModelPlacement:
    """Return the placement of that name.

    Args:
        name: one of `AUTO_PLACEMENTS`, with another number of chunks for `interleaved`.
        num_devices: at least 1.

    Raises:
        ScheduleError: there is no such placement, or it needs more devices.
    """
    check_placement_name(name)
    there = tuple(range(num_devices))
    if name == BASELINE:
        return ModelPlacement(name=name, chain=there)
    if num_devices < 2:
        raise ScheduleError(f"{name} needs at least 2 devices, and there is {num_devices}; use vshape")
    if name == "zbv":
        return ModelPlacement(name=name, chain=(*there, *there[::-1]))
    if name == "xshape":
        return ModelPlacement(name=name, chain=there, copies=2)
    if name == "mshape":
        return ModelPlacement(name=name, chain=there, divides_ends=True)
    return ModelPlacement(name=name, chain=there * _chunks(name))


def placements_to_tune(name: str, num_devices: int) -> tuple[ModelPlacement, ...]:
    """Return the placements that a name asks for, and the one that they are compared with.

    Args:
        name: `auto`, or that of one placement.
        num_devices: at least 1.

    Raises:
        ScheduleError: see `model_placement`.
    """
    names: tuple[str, ...]
    if name != AUTO:
        names = (name,) if name == BASELINE else (name, BASELINE)
    else:
        names = AUTO_PLACEMENTS if num_devices > 1 else (BASELINE,)
    return tuple(model_placement(each, num_devices) for each in names)


def check_placement_name(name: str) -> None:
    """Refuse what names no placement of a model.

    Raises:
        ScheduleError: it does not; says what there is.
    """
    if _INTERLEAVED.fullmatch(name):
        if not 2 <= _chunks(name) <= MAX_CHUNKS:
            raise ScheduleError(
                f"{name} has {_chunks(name)} stages per device; interleaved takes 2 to {MAX_CHUNKS}, such as "
                "interleaved:2"
            )
        return
    if name in (AUTO, *AUTO_PLACEMENTS):
        return
    near = difflib.get_close_matches(name, (AUTO, *AUTO_PLACEMENTS), n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}? There are" if near else "choose"
    raise ScheduleError(
        f"no model can be placed as {name!r}; {hint} {', '.join((AUTO, *AUTO_PLACEMENTS))} (or another "
        "number of stages per device)"
    )


def _chunks(name: str) -> int:
    return int(name.partition(":")[2] or 2)
