"""Depthwise convolutions of data with channels last, as two TVM kernels that cost no tuning.

One kernel packs the weights: for each vector of channels, its weights place by place of the window. The other
keeps some results of a row, of one vector of channels, in registers while the sum over the window runs; bias
and activation are added as they leave. There is no copy with padding: rows outside the window are
left out by the bounds of a loop, columns when the kernel is written, since tiles at the edges have code of
their own. Checked in tests/tuner/backends/cpu/kernels/test_depthwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from cost_model.register_tile import lanes_of
from tuner.backends.cpu.kernels.accumulators import WIDE
from tuner.backends.cpu.kernels.clamp import Bounds
from tuner.backends.cpu.kernels.memory import Operands, flat
from tuner.graph.relax_types import PrimFunc

_LANES = 16
"""Channels of a vector, where they fill such."""

_FEW_VECTORS = 2
"""So few vectors of channels may be parted one by one."""

_PIXELS = {32: 14, 8: 4, 4: 2}
"""Results of a tile at most, by how many vectors of 16 all registers hold: with the weights of a window's row
they fit."""

_MOST_PIXELS = 14
"""Results of a tile of shorter vectors, of which registers hold more."""

_CONFLICTING = 512
"""Channels whose pixels, 2 KiB apart, lie in two sets of the first cache or one: what a tile reads drives
itself out. Half of the pixels, and of each two vectors at once, take 0.6 to 0.85 of the time."""

_PAIR = 2 * _LANES

_MIN_TASKS = 14
"""Parts that threads can share, where there are channels enough. Channels are parted no further: all of a
pixel lie together, and reading some of them a pass costs a third more where data comes from afar; one vector
a pass of many takes up to three times as long (88 channels of 27 x 27)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseShape:
    """A convolution of NHWC data that gives each channel one of its own, without dilation.

    Attributes:
        data: batch, height, width, channels; the channels fill vectors.
        window: rows and columns.
        strides: along rows and columns.
        padding: rows of zeros above and below, columns left and right.
        registers: vectors of 16 that all registers hold (`tuner.targets.vector_registers`).
    """

    data: tuple[int, int, int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    registers: int = 32

    @property
    def result(self) -> tuple[int, int, int, int]:
        """Batch, height, width and channels of the result."""
        batch, height, width, channels = self.data
        rows = (height + 2 * self.padding[0] - self.window[0]) // self.strides[0] + 1
        columns = (width + 2 * self.padding[1] - self.window[1]) // self.strides[1] + 1
        return (batch, rows, columns, channels)

    @property
    def lanes(self) -> int:
        """Channels of a vector; of two registers where the pixels of a tile share few sets of a cache."""
        return _PAIR if self._shares_sets else lanes_of(self.data[3])

    @property
    def _shares_sets(self) -> bool:
        return self.registers >= WIDE and self.data[3] % _CONFLICTING == 0

    @property
    def pixels(self) -> int:
        """Results of a tile."""
        most = _PIXELS[self.registers] * _LANES // self.lanes
        return _pixels_of(self.result[2], min(most, _MOST_PIXELS))

    @property
    def packed_shape(self) -> tuple[int, int, int]:
        """Vectors of channels, places of the window, and channels of a vector."""
        return (self.data[3] // self.lanes, self.window[0] * self.window[1], self.lanes)

    @property
    def group(self) -> int:
        """Vectors of channels that a thread takes together, row after row."""
        num_vectors = self.packed_shape[0]
        batch, rows, _, _ = self.result
        least = 1 if num_vectors <= _FEW_VECTORS else 2
        counts = [
            count
            for count in range(1, num_vectors // least + 1)
            if num_vectors % count == 0 and num_vectors // count >= least
        ]
        enough = [count for count in counts if count * batch * rows >= _MIN_TASKS]
        return num_vectors // (enough[0] if enough else counts[-1])


def weights_kernel(shape: DepthwiseShape) -> PrimFunc:
    """Return the kernel that packs weights of channels x 1 x rows x columns into `packed_shape`."""
    height, width = shape.window
    num_vectors, size, lanes = shape.packed_shape
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("depthwise_weights")
        weights = script.arg("weights", script.buffer((shape.data[3], 1, height, width), "float32"))
        packed = script.arg("packed", script.buffer(shape.packed_shape, "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            source = flat(weights, shape.data[3] * size)
            target = flat(packed, shape.data[3] * size)
            with script.parallel(num_vectors) as vector, script.serial(size) as place:
                first = vector * lanes * size
                value = source[script.Ramp(first + place, size, lanes)]
                script.buffer_store(target, value, [script.Ramp(first + place * lanes, 1, lanes)])
    return builder.get()


def convolution_kernel(
    shape: DepthwiseShape, bias_shape: Sequence[int] | None, activation: Bounds
) -> PrimFunc:
    """Return the kernel of data, packed weights, bias where there is one, and the result.

    Args:
        bias_shape: of a bias with one element per channel, or None.
        activation: what is done to the results.
    """
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("depthwise_convolution")
        data = script.arg("data", script.buffer(shape.data, "float32"))
        packed = script.arg("packed", script.buffer(shape.packed_shape, "float32"))
        added = script.arg("bias", script.buffer(tuple(bias_shape), "float32")) if bias_shape else None
        result = script.arg("result", script.buffer(shape.result, "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            operands = Operands(
                data=flat(data, math.prod(shape.data)),
                weights=flat(packed, math.prod(shape.packed_shape)),
                bias=None if added is None else flat(added, shape.data[3]),
                result=flat(result, math.prod(shape.result)),
            )
            _emit_rows(shape, operands, activation)
    return builder.get()


def _emit_rows(shape: DepthwiseShape, operands: Operands, activation: Bounds) -> None:
    """Compute results row by row, a group of channels for all rows before the next."""
    batch, rows, columns, _ = shape.result
    num_groups = shape.packed_shape[0] // shape.group
    with script.parallel(batch * num_groups * rows) as task:
        row = script.Bind(task % rows)
        image = script.Bind(task // (rows * num_groups))
        first_vector = script.Bind(task // rows % num_groups * shape.group)
        emit_row(
            shape,
            operands,
            activation,
            row=row,
            vectors=(first_vector, shape.group),
            data_row=lambda y: image * shape.data[1] + y,
            pixel=(image * rows + row) * columns,
        )


def emit_row(
    shape: DepthwiseShape,
    operands: Operands,
    activation: Bounds,
    *,
    row: Any,
    vectors: tuple[Any, int],
    data_row: Callable[[Any], Any],
    pixel: Any,
) -> None:
    """Compute a row of results for some vectors of channels.

    Args:
        operands: what is read and written, each of which may hold some rows only.
        activation: what is done to the results.
        row: which row of the image's results.
        vectors: the first vector of channels, and how many.
        data_row: which row of the operand holds a row of the image's data.
        pixel: the row's first pixel in the memory of the result.
    """
    pixels = shape.pixels
    emit = partial(_emit_tile, shape, operands, activation, pixels, row=row, data_row=data_row, pixel=pixel)
    edges, inner = _tiles(shape, pixels)
    for column in edges:
        with script.serial(vectors[1]) as member:
            emit(column=column, vector=vectors[0] + member, is_edge=True)
    if inner:
        with script.serial(len(inner)) as index, script.serial(vectors[1]) as member:
            emit(column=inner[0] + index * pixels, vector=vectors[0] + member, is_edge=False)


def _pixels_of(columns: int, most: int) -> int:
    """Return how many results a tile has: what leaves least to compute twice, and of equals the most."""
    choices = range(min(columns, most // 2 + 1), min(columns, most) + 1)
    return min(choices, key=lambda pixels: (-(-columns // pixels) * pixels, -pixels))


def _tiles(shape: DepthwiseShape, pixels: int) -> tuple[list[int], list[int]]:
    """Return the first columns of tiles that reach into the padding or past the end, then the others."""
    columns = shape.result[2]
    starts = [min(start, columns - pixels) for start in range(0, columns, pixels)]
    inner = [
        start
        for start in starts
        if start % pixels == 0
        and all(_met(shape, start + pixel) == (0, shape.window[1]) for pixel in (0, pixels - 1))
    ]
    return [start for start in starts if start not in inner], inner


def _met(shape: DepthwiseShape, column: int) -> tuple[int, int]:
    """Return the first column of the window that lies on data for a result, and the one after the last."""
    left = column * shape.strides[1] - shape.padding[1]
    first = max(0, -left)
    return first, max(first, min(shape.window[1], shape.data[2] - left))


def _emit_tile(
    shape: DepthwiseShape,
    operands: Operands,
    activation: Bounds,
    pixels: int,
    *,
    row: Any,
    column: Any,
    vector: Any,
    data_row: Callable[[Any], Any],
    pixel: Any,
    is_edge: bool,
) -> None:
    """Compute some results of a row, from a column on, of one vector of channels."""
    lanes, (height, width), step = shape.lanes, shape.window, shape.strides[1]
    _, data_height, data_width, channels = shape.data
    met = [_met(shape, column + offset) if is_edge else (0, width) for offset in range(pixels)]
    sums = script.alloc_buffer((pixels * lanes,), "float32", scope="local")
    if operands.bias is None:
        start = script.Broadcast(script.float32(0), lanes)
    else:
        start = script.Bind(operands.bias[script.Ramp(vector * lanes, 1, lanes)])
    for member in range(pixels):
        script.buffer_store(sums, start, [script.Ramp(member * lanes, 1, lanes)])
    above = script.Bind(row * shape.strides[0] - shape.padding[0])
    top = script.Bind(script.max(0, -above))
    bottom = script.Bind(script.min(height, data_height - above))
    with script.serial(bottom - top) as met_row:
        y = script.Bind(top + met_row)
        line = data_row(above + y) * data_width + column * step - shape.padding[1]
        place = script.Bind(line * channels + vector * lanes)
        at_weights = script.Bind((vector * height + y) * width * lanes)
        weights = [
            script.Bind(operands.weights[script.Ramp(at_weights + x * lanes, 1, lanes)]) for x in range(width)
        ]
        for offset in range((pixels - 1) * step + width):
            readers = [
                (member, offset - member * step)
                for member in range(pixels)
                if met[member][0] <= offset - member * step < met[member][1]
            ]
            if not readers:
                continue
            value = script.Bind(operands.data[script.Ramp(place + offset * channels, 1, lanes)])
            for member, x in readers:
                at = script.Ramp(member * lanes, 1, lanes)
                script.buffer_store(sums, sums[at] + value * weights[x], [at])
    place = script.Bind((pixel + column) * channels + vector * lanes)
    for member in range(pixels):
        value = activation.emit(sums[script.Ramp(member * lanes, 1, lanes)], lanes)
        script.buffer_store(operands.result, value, [script.Ramp(place + member * channels, 1, lanes)])
