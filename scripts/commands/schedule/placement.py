"""The placement that `tessel schedule` is given: a shape with its options, or a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tessel.jobs.inputs.arguments import parse_spans

if TYPE_CHECKING:
    from scripts.commands.schedule.options import ShapeOptions
    from tessel.placement import Placement

_SPANS = {
    "forward_span",
    "backward_span",
    "backward_input_span",
    "backward_weight_span",
    "forward_memory",
    "recompute_memory",
    "lag",
}


MAX_DEVICES = 2**16
"""Devices of a shape: building so many takes seconds."""


def find_placement(shape: str, options: ShapeOptions) -> Placement:
    """Return the placement of a file, or that of a shape with its options.

    Raises:
        typer.BadParameter: the number of devices is missing, or an option's value is none.
        DocumentError: the file cannot be read as a placement.
    """
    from tessel.documents import load_placement
    from tessel.shapes import SHAPES, make_shape

    if shape not in SHAPES and (Path(shape).suffix or Path(shape).exists()):
        return load_placement(Path(shape))
    if shape in SHAPES and options.devices is None:
        raise typer.BadParameter(f"--devices is missing; say how many devices the {shape} spans")
    # What is on the command line; a span of 0 is one of these.
    given = {
        name: value for name, value in asdict(options).items() if value is not None and value is not False
    }
    devices = given.pop("devices", 1)
    if devices > MAX_DEVICES:
        raise typer.BadParameter(f"--devices is {devices}; give at most {MAX_DEVICES}")
    for name in given.keys() & _SPANS:
        given[name] = parse_spans(given[name])
    if "forward_memory" in given:
        given["backward_memory"] = _negated(given["forward_memory"])
    return make_shape(shape, devices, **given)


def _negated(units: int | tuple[int, ...]) -> int | tuple[int, ...]:
    return -units if isinstance(units, int) else tuple(-each for each in units)
