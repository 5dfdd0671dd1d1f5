"""Data of a 1 x 1 convolution that is made as it is read: joined, normalised, bounded, and averaged.

DenseNet convolves what it has joined and normalised, and reads each of its parts by many layers. In memory
that would be one more copy of all channels for the concatenation and one for the normalisation of each layer.
Here pixels of the parts go to a buffer that stays in the cache, a factor and a shift each channel, the
activation and the mean of neighbours, as in DenseNet's transitions, on the way. Checked in
tests/tuner/backends/cpu/kernels/test_fused_concat_input.py.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from cost_model.register_tile import lanes_of
from tuner.backends.cpu.kernels.clamp import Bounds
from tuner.backends.cpu.kernels.memory import flat
from tuner.graph.relax_types import PrimFunc

_RUN = 8
"""Pixels that a loop of a kernel writes at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedShape:
    """How data is made.

    Attributes:
        pixels: batch, height and width of the parts.
        channels: of each part; they fill vectors.
        is_scaled: whether each channel is multiplied by a factor, and a shift added.
        activation: what is done to the data then.
        window: rows and columns of neighbours whose mean makes a pixel, after all that.
    """

    pixels: tuple[int, int, int]
    channels: tuple[int, ...]
    is_scaled: bool
    activation: Bounds
    window: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if not all(lanes_of(each) for each in self.channels):
            raise ValueError(f"parts of {self.channels} channels do not fill vectors; join them in memory")

    @property
    def result(self) -> tuple[int, int, int, int]:
        """Batch, height, width and channels of the data."""
        batch, height, width = self.pixels
        return (batch, height // self.window[0], width // self.window[1], sum(self.channels))


@dataclass(frozen=True, slots=True)
class JoinedArguments:
    """A kernel's arguments, each as a row of memory: the parts, and factor and shift where there are."""

    parts: tuple[Any, ...]
    factor: Any = None
    shift: Any = None


def declare_arguments(shape: JoinedShape) -> list[Any]:
    """Return new arguments of the kernel that is being written: the parts, then factor and shift."""
    found = [
        script.arg(f"part_{index}", script.buffer((*shape.pixels, channels), "float32"))
        for index, channels in enumerate(shape.channels)
    ]
    if shape.is_scaled:
        total = sum(shape.channels)
        found += [script.arg(name, script.buffer((total,), "float32")) for name in ("factor", "shift")]
    return found


def flat_arguments(shape: JoinedShape, arguments: Sequence[Any]) -> JoinedArguments:
    """Return what `declare_arguments` returned as rows of memory, where a kernel's body begins."""
    count, pixels, total = len(shape.channels), math.prod(shape.pixels), sum(shape.channels)
    sizes = [pixels * channels for channels in shape.channels] + [total] * (len(arguments) - count)
    rows = [flat(argument, size) for argument, size in zip(arguments, sizes, strict=True)]
    return JoinedArguments(tuple(rows[:count]), *rows[count:])


def emit_pixels(
    shape: JoinedShape, arguments: JoinedArguments, pixel: Any, count: int, target: Any, at: Any
) -> None:
    """Write some neighbouring pixels.

    Args:
        shape: how data is made.
        pixel: the first.
        target: a row of memory.
        at: where the first pixel goes.
    """
    total, offset = sum(shape.channels), 0
    with script.serial(count) as row:
        sources = [script.Bind(source) for source in _sources(shape, pixel + row)]
        for part, channels in zip(arguments.parts, shape.channels, strict=True):
            lanes = lanes_of(channels)
            with script.serial(channels // lanes) as step:
                place = offset + step * lanes
                found = [
                    _scaled(shape, arguments, part, source * channels + step * lanes, place, lanes)
                    for source in sources
                ]
                value = reduce(operator.add, found)
                if len(found) > 1:
                    value = value * script.Broadcast(script.float32(1 / len(found)), lanes)
                script.buffer_store(target, value, [script.Ramp(at + row * total + place, 1, lanes)])
            offset += channels


def _sources(shape: JoinedShape, pixel: Any) -> list[Any]:
    """Return the parts' pixels whose mean is a pixel of the data."""
    if shape.window == (1, 1):
        return [pixel]
    (_, height, width), (rows, columns) = shape.pixels, shape.window
    _, new_height, new_width, _ = shape.result
    image, row, column = pixel // (new_height * new_width), pixel // new_width % new_height, pixel % new_width
    first = script.Bind((image * height + row * rows) * width + column * columns)
    return [first + y * width + x for y in range(rows) for x in range(columns)]


def _scaled(
    shape: JoinedShape, arguments: JoinedArguments, part: Any, source: Any, place: Any, lanes: int
) -> Any:
    """Return neighbouring channels of a part's pixel, scaled, shifted and with the activation."""
    value = part[script.Ramp(source, 1, lanes)]
    if shape.is_scaled:
        scale = script.Ramp(place, 1, lanes)
        value = value * arguments.factor[scale] + arguments.shift[scale]
    return shape.activation.emit(value, lanes)


def joining_kernel(shape: JoinedShape) -> PrimFunc:
    """Return the kernel of the parts, factor and shift where there are, and the data that is made of them."""
    num_pixels, total = math.prod(shape.result[:3]), sum(shape.channels)
    run = min(_RUN, num_pixels)
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("joined_data")
        declared = declare_arguments(shape)
        result = script.arg("result", script.buffer(shape.result, "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            arguments = flat_arguments(shape, declared)
            target = flat(result, num_pixels * total)
            with script.parallel(-(-num_pixels // run)) as index:
                pixel = script.Bind(script.min(index * run, num_pixels - run))
                emit_pixels(shape, arguments, pixel, run, target, pixel * total)
    return builder.get()
