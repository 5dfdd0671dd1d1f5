"""Input shapes: a model's defaults, and the user's overrides.

In a declared shape the extent 0 stands for one that the model leaves open.

Checked in tests/tuner/frontend/test_shapes.py.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TypeAlias

from tuner.errors import UnknownNameError
from tuner.frontend.model import InputSpec

Scalar: TypeAlias = bool | int | float
"""What every element of an input is fixed to."""


def input_shapes(
    model: str, defaults: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input: the wanted one, or else the model's default.

    Raises:
        UnknownNameError: a shape is wanted for what is no input whose shape can be chosen.
        ValueError: a wanted shape has another number of axes, or an extent below one; an open one may be 0.
    """
    for name, shape in wanted.items():
        if name not in defaults:
            raise UnknownNameError(
                f"{model} has no input {name!r} whose shape can be chosen; there is {', '.join(defaults)}"
            )
        least = [min(1, known) for known in defaults[name]]
        if len(shape) != len(least) or any(map(operator.lt, shape, least)):
            raise ValueError(
                f"shape {shape} of {model}'s input {name!r} does not fit: it needs {len(defaults[name])} "
                f"positive extents, as {defaults[name]} has"
            )
    return {name: tuple(wanted.get(name, shape)) for name, shape in defaults.items()}


def static_shapes(
    model: str, declared: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input as `input_shapes` does, once no extent is open.

    Raises:
        UnknownNameError: as `input_shapes`.
        ValueError: as `input_shapes`, or an input that the model leaves open has no wanted shape.
    """
    shapes = input_shapes(model, declared, wanted)
    for name, extents in shapes.items():
        if 0 in extents and name not in wanted:
            symbols = ",".join(str(extent or "?") for extent in extents)
            raise ValueError(
                f"input {name!r} of {model} has extents that the file leaves open ({symbols}), but a plan is "
                f"for fixed shapes; give them all, such as --shape {name}={symbols.replace('?', '1')}"
            )
    return shapes


def require_positions(model: str, length: int, num_positions: int) -> None:
    """Refuse a sequence that is longer than a table of positions.

    Raises:
        ValueError: it is.
    """
    if length > num_positions:
        raise ValueError(
            f"input_ids has {length} positions, but {model} has embeddings for {num_positions}; give a "
            "shorter sequence"
        )


def image_inputs(
    model: str,
    default: tuple[int, int, int, int],
    wanted: Mapping[str, tuple[int, ...]],
    *,
    num_classes: int,
    training: bool,
) -> tuple[InputSpec, ...]:
    """Return the inputs of a classifier of images: `image`, and `labels` for training.

    Raises:
        UnknownNameError: as `input_shapes`.
        ValueError: as `input_shapes`, or the image has another number of channels than the default.
    """
    shape = input_shapes(model, {"image": default}, wanted)["image"]
    if shape[1] != default[1]:
        raise ValueError(
            f"image has {shape[1]} channels, but {model} takes {default[1]}; change batch, height and width"
        )
    image = InputSpec(name="image", shape=shape, dtype="float32")
    if not training:
        return (image,)
    return (image, InputSpec(name="labels", shape=shape[:1], dtype="int64", high=num_classes))
