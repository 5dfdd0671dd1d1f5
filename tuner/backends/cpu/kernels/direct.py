"""Direct convolutions with results whose channels are last, as two TVM kernels that cost no tuning.

One kernel packs the weights: for each panel of filters, window by window and channel by channel, its filters.
The other keeps a tile of results, some pixels by a panel, in vector registers while the sum over the window
and the channels runs, and adds the bias, another tensor and the activation as the tile leaves them. A 1 x 1
convolution is so one product of pixels x channels by channels x filters. Checked in
tests/tuner/backends/cpu/test_nhwc.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from cost_model.register_tile import lanes_of
from tuner.backends.cpu.kernels import fused_concat_input as joined_data
from tuner.backends.cpu.kernels.accumulators import (
    AVX2,
    SINGLE,
    WIDE,
    Sums,
    avx2_tile,
    tile_rows,
    tile_vectors,
)
from tuner.backends.cpu.kernels.clamp import Bounds
from tuner.backends.cpu.kernels.fused_concat_input import JoinedShape
from tuner.backends.cpu.kernels.memory import Operands, flat, prefetch
from tuner.graph.relax_types import PrimFunc

Prepare: TypeAlias = Callable[[Any, int, Any, Any], None]
"""Writes data: of which pixel on, how many, into which row of memory, and where there."""

_SHORT_LANES = 8
"""Filters of a vector where fewer divide them all: the last panel repeats some, and 28 take half the time."""

_LANES = 16
"""Filters of a vector, where there are enough of them."""

_BEST_ROWS = 7
"""Pixels of a tile, of numbers that divide the results as well."""

_SHORT_ROWS = 14
"""The same where a tile has one vector of `_SHORT_LANES`, for which AVX-512 has registers: 1.15 times as fast
with 20 filters, 1.17 with 8."""

_CACHED_BYTES = {32: 1 << 22, 8: 1 << 20, 4: 1 << 22}
"""Weights above this are read once, a panel for all tiles; others are read again for each tile. By how many
vectors registers hold: the narrow panels of AVX2 pay earlier."""

_OF_ONE_CORE_BYTES = 1 << 20
"""Weights above this do not stay in a core's own cache from tile to tile. They are read once, too, where that
reads `_MUCH_LESS`: 512 filters of 256 channels and a window of 5 take 0.58 of the time over 508 pixels."""

_MUCH_LESS = 8

_FEW_TILES = 8
"""Below this, threads share the panels, not the tiles."""

_MAX_BLOCKS = 32
"""Runs of tiles that threads share: enough for all to end at about the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectShape:
    """A convolution without groups and dilation.

    Attributes:
        data: batch, height, width, channels.
        is_planar: whether the data's memory holds channel after channel of an image (NCHW), not NHWC.
        filters: channels of the result.
        window: rows and columns.
        strides: along rows and columns.
        padding: rows of zeros above and below, columns left and right.
        registers: vectors of 16 that all registers hold (`tuner.targets.vector_registers`).
    """

    data: tuple[int, int, int, int]
    filters: int
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    is_planar: bool = False
    registers: int = 32

    @property
    def data_in_memory(self) -> tuple[int, int, int, int]:
        """The data's shape in the order of memory."""
        batch, height, width, channels = self.data
        return (batch, channels, height, width) if self.is_planar else self.data

    @property
    def result(self) -> tuple[int, int, int, int]:
        """Batch, height, width and filters of the result."""
        batch, height, width, _ = self.padded
        rows = (height - self.window[0]) // self.strides[0] + 1
        columns = (width - self.window[1]) // self.strides[1] + 1
        return (batch, rows, columns, self.filters)

    @property
    def padded(self) -> tuple[int, int, int, int]:
        """The data's shape with its padding."""
        batch, height, width, channels = self.data
        return (batch, height + 2 * self.padding[0], width + 2 * self.padding[1], channels)

    @property
    def lanes(self) -> int:
        """Filters of a vector."""
        if self._is_avx2:
            return avx2_tile(self.lines[1], self.filters).lanes
        if self.filters >= 2 * _LANES:
            return _LANES
        return max(lanes_of(self.filters), _SHORT_LANES if self.filters >= _SHORT_LANES else 0)

    @property
    def _is_avx2(self) -> bool:
        return self.registers == AVX2 and self.filters >= _SHORT_LANES

    @property
    def vectors(self) -> int:
        """Vectors of filters of a panel."""
        if self._is_avx2:
            return avx2_tile(self.lines[1], self.filters).vectors
        fitting = [count for count in (2, 3) if self.filters % (count * self.lanes) == 0]
        pairs, singles = (-(-self.filters // (count * self.lanes)) for count in (2, 1))
        # With fewer registers one vector has too few rows to hide the latency of its sums.
        is_worth = self.registers < WIDE or 2 * pairs <= SINGLE * singles
        wanted = fitting[0] if fitting else 1 + (is_worth and 2 * self.lanes <= self.filters)
        return tile_vectors(wanted, self.lanes, self.registers)

    @property
    def panel(self) -> int:
        """Filters of a tile."""
        return self.vectors * self.lanes

    @property
    def packed_shape(self) -> tuple[int, int, int]:
        """Panels, of which the last may repeat filters, window x channels, and filters of a panel."""
        return (-(-self.filters // self.panel), self.window[0] * self.window[1] * self.data[3], self.panel)

    @property
    def sees_one_line(self) -> bool:
        """Whether each pixel gives one of the result, in the order of memory."""
        is_pixelwise = self.window == (1, 1) and self.strides == (1, 1) and self.padding == (0, 0)
        return is_pixelwise and not self.is_planar

    @property
    def laid_down(self) -> DirectShape:
        """The same convolution over images of one row, where they have one column: memory holds both alike.

        Tiles are of pixels in a row, so that a column would fill each with one.
        """
        batch, height, width, channels = self.data
        is_column = width == 1 < height and self.window[1] == 1 and self.padding[1] == 0
        if not is_column or self.sees_one_line:
            return self
        return replace(
            self,
            data=(batch, width, height, channels),
            window=self.window[::-1],
            strides=self.strides[::-1],
            padding=self.padding[::-1],
        )

    @property
    def lines(self) -> tuple[int, int]:
        """Lines of results that are cut into tiles, and pixels of each; 1 x 1 windows see one line."""
        batch, rows, columns, _ = self.result
        if self.sees_one_line:
            return (1, batch * rows * columns)
        return (batch * rows, columns)

    @property
    def tile_rows(self) -> int:
        """Pixels of a tile, of which the last of a line may repeat some."""
        return _tile_rows_of(self, self.lines[1])


def weights_kernel(shape: DirectShape) -> PrimFunc:
    """Return the kernel that packs OIHW weights into `packed_shape`."""
    (height, width), channels = shape.window, shape.data[3]
    size = height * width * channels
    num_panels, _, panel = shape.packed_shape
    lanes = shape.lanes
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("direct_weights")
        weights = script.arg("weights", script.buffer((shape.filters, channels, height, width), "float32"))
        packed = script.arg("packed", script.buffer(shape.packed_shape, "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            source = flat(weights, shape.filters * size)
            target = flat(packed, math.prod(shape.packed_shape))
            with (
                script.parallel(num_panels) as which,
                script.serial(channels) as channel,
                script.serial(height * width) as place,
                script.serial(shape.vectors) as vector,
            ):
                filters = script.min(which * panel, shape.filters - panel) + vector * lanes
                first = filters * size + channel * height * width + place
                at = (which * size + place * channels + channel) * panel + vector * lanes
                script.buffer_store(
                    target, source[script.Ramp(first, size, lanes)], [script.Ramp(at, 1, lanes)]
                )
    return builder.get()


def convolution_kernel(
    shape: DirectShape,
    bias_shape: Sequence[int] | None,
    activation: Bounds,
    *,
    has_other: bool,
    joined: JoinedShape | None = None,
) -> PrimFunc:
    """Return the kernel of data, packed weights, bias, what else is added, and the result.

    Args:
        bias_shape: of a bias with one element per filter, or None.
        activation: what is done to the results.
        has_other: whether a tensor of the result's shape is added.
        joined: how the data is made, where it is not in memory: its arguments are then the first ones. Only
            where the convolution sees one line.
    """
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("direct_convolution")
        if joined is None:
            data = [script.arg("data", script.buffer(shape.data_in_memory, "float32"))]
        else:
            data = joined_data.declare_arguments(joined)
        packed = script.arg("packed", script.buffer(shape.packed_shape, "float32"))
        added = script.arg("bias", script.buffer(tuple(bias_shape), "float32")) if bias_shape else None
        more = script.arg("other", script.buffer(shape.result, "float32")) if has_other else None
        result = script.arg("result", script.buffer(shape.result, "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            source = None if joined else flat(data[0], math.prod(shape.data))
            if shape.padding != (0, 0):
                padded = script.alloc_buffer((math.prod(shape.padded),), "float32")
                emit_padding(shape, source, padded)
                source = padded
            operands = Operands(
                data=source,
                weights=flat(packed, math.prod(shape.packed_shape)),
                result=flat(result, math.prod(shape.result)),
                bias=flat(added, shape.filters) if bias_shape else None,
                other=flat(more, math.prod(shape.result)) if has_other else None,
            )
            prepare = None
            if joined is not None:
                prepare = partial(joined_data.emit_pixels, joined, joined_data.flat_arguments(joined, data))
            _emit_tiles(shape, operands, activation, prepare)
    return builder.get()


def emit_padding(shape: DirectShape, source: Any, padded: Any) -> None:
    """Copy images into zeros."""
    batch, height, width, channels = shape.data
    _, rows, columns, _ = shape.padded
    above, left = shape.padding
    if shape.is_planar:  # each channel is an image
        batch, channels = batch * channels, 1
    run, edge = width * channels, left * channels
    with script.parallel(batch * rows) as row:
        y = script.Bind(row % rows)
        start = script.Bind(row * columns * channels)
        inside = (y >= above) & (y < above + height)
        with script.If(inside):
            with script.Then():
                first = script.Bind((row // rows * height + y - above) * run)
                with script.serial(edge) as step:
                    script.buffer_store(padded, script.float32(0), [start + step])
                    script.buffer_store(padded, script.float32(0), [start + edge + run + step])
                with script.serial(run) as step:
                    script.buffer_store(padded, source[first + step], [start + edge + step])
            with script.Else(), script.serial(columns * channels) as step:
                script.buffer_store(padded, script.float32(0), [start + step])


def _emit_tiles(shape: DirectShape, operands: Operands, activation: Bounds, prepare: Prepare | None) -> None:
    """Compute results tile by tile; the last of a line may repeat some of the one before."""
    tiles = _Tiles(shape)
    rows, num_panels, channels = tiles.rows, shape.packed_shape[0], shape.data[3]
    emit = partial(_emit_tile, shape, activation=activation, rows=rows)
    if _takes_panels_first(shape, tiles.count):
        if prepare is not None:
            data = script.alloc_buffer((math.prod(shape.data),), "float32")
            with script.parallel(tiles.count) as index:
                start, pixel = tiles.place(index)
                prepare(pixel, rows, data, start)
            operands = replace(operands, data=data)
        with script.parallel(num_panels) as which, script.serial(tiles.count) as index:
            start, pixel = tiles.place(index)
            emit(operands, start=start, pixel=pixel, which=which)
        return
    # Results, and what is added to them, are written and read in the order of memory.
    size = -(-tiles.count // min(tiles.count, _MAX_BLOCKS))
    with script.parallel(-(-tiles.count // size)) as block:
        if prepare is not None:
            operands = replace(operands, data=script.alloc_buffer((rows * channels,), "float32"))
        with script.serial(size) as member:
            index = script.Bind(block * size + member)
            with script.If(index < tiles.count), script.Then():
                start, pixel = tiles.place(index)
                if prepare is not None:
                    prepare(pixel, rows, operands.data, 0)
                    start = 0
                with script.serial(num_panels) as which:
                    emit(operands, start=start, pixel=pixel, which=which)


def _takes_panels_first(shape: DirectShape, num_tiles: int) -> bool:
    """Say whether all tiles pass a panel of weights before the next."""
    num_weights = math.prod(shape.packed_shape)
    if num_tiles < _FEW_TILES or 4 * num_weights > _CACHED_BYTES[shape.registers]:
        return True
    is_less = num_tiles * num_weights > _MUCH_LESS * shape.packed_shape[0] * math.prod(shape.data)
    return is_less and 4 * num_weights > _OF_ONE_CORE_BYTES


def _tile_rows_of(shape: DirectShape, length: int) -> int:
    """Return how many pixels of a line a tile has."""
    if shape.registers == AVX2 and shape.filters >= _SHORT_LANES:
        return avx2_tile(length, shape.filters, shape.panel).rows
    if shape.registers >= WIDE and (shape.vectors, shape.lanes) == (1, _SHORT_LANES):
        return tile_rows(length, _SHORT_ROWS, most=_SHORT_ROWS)
    return tile_rows(length, _BEST_ROWS, shape.registers)


class _Tiles:
    """How results are cut into tiles.

    Attributes:
        rows: pixels of a tile.
        count: tiles of all images.
    """

    def __init__(self, shape: DirectShape) -> None:
        num_lines, length = shape.lines
        self.shape = shape
        self.rows = shape.tile_rows
        self.of_line = -(-length // self.rows)
        self.count = num_lines * self.of_line

    def place(self, index: Any) -> tuple[Any, Any]:
        """Return where a tile's data begins, and its first pixel of the result."""
        length = self.shape.lines[1]
        line = index // self.of_line
        column = script.Bind(script.min(index % self.of_line * self.rows, length - self.rows))
        return Steps(self.shape).first(line, column), line * length + column


def emit_row(shape: DirectShape, operands: Operands, activation: Bounds, *, start: Any, pixel: Any) -> None:
    """Compute one row of results, tile by tile.

    Args:
        operands: what is read and written, of which the result may hold some rows only.
        activation: what is done to the results.
        start: where the window of the row's first result begins in the data.
        pixel: the row's first pixel in the memory of the result, and of what is added.
    """
    length = shape.result[2]
    rows = _tile_rows_of(shape, length)
    step = Steps(shape).column * shape.strides[1]
    with script.serial(shape.packed_shape[0]) as which, script.serial(-(-length // rows)) as index:
        column = script.Bind(script.min(index * rows, length - rows))
        _emit_tile(
            shape,
            operands,
            activation=activation,
            rows=rows,
            start=start + column * step,
            pixel=pixel + column,
            which=which,
        )


def _emit_tile(
    shape: DirectShape,
    operands: Operands,
    *,
    activation: Bounds,
    rows: int,
    start: Any,
    pixel: Any,
    which: Any,
) -> None:
    """Compute some neighbouring results of one panel of filters.

    Args:
        operands: what is read and written.
        activation: what is done to the results.
        rows: how many pixels of the result.
        start: where the first one's window begins in the data.
        pixel: which it is in the memory of the result, and of what is added.
    """
    lanes, panel, channels, filters = shape.lanes, shape.panel, shape.data[3], shape.filters
    steps = Steps(shape)
    start = script.Bind(start)
    first_filter = script.Bind(script.min(which * panel, filters - panel))
    result = script.Bind(pixel * filters + first_filter)
    if operands.other is not None:
        for row, vector in itertools.product(range(rows), range(shape.vectors)):
            at = result + row * filters + vector * lanes
            prefetch(operands.other, at, writes=False)
            prefetch(operands.result, at, writes=True)
    sums = Sums(rows, shape.vectors, lanes)
    height, width = shape.window
    apart = shape.strides[1] * steps.column

    with script.serial(height) as y, script.serial(width) as x, script.serial(channels) as channel:
        at_weights = (((which * height + y) * width + x) * channels + channel) * panel
        right = sums.bound(operands.weights, at_weights)
        first = script.Bind(start + y * steps.row + x * steps.column + channel * steps.channel)
        sums.add(lambda row: operands.data[first + row * apart], right)
    for row, vector in sums.places:
        value = sums.load(row, vector)
        if operands.bias is not None:
            value = value + operands.bias[script.Ramp(first_filter + vector * lanes, 1, lanes)]
        place = script.Ramp(result + row * filters + vector * lanes, 1, lanes)
        if operands.other is not None:
            value = value + operands.other[place]
        script.buffer_store(operands.result, activation.emit(value, lanes), [place])


class Steps:
    """How far apart in memory padded data of neighbouring rows, columns and channels are."""

    def __init__(self, shape: DirectShape) -> None:
        _, height, width, channels = shape.padded
        self.shape = shape
        self.image = height * width * channels
        self.column, self.channel = (1, height * width) if shape.is_planar else (channels, 1)
        self.row = width * self.column

    def first(self, line: Any, column: Any) -> Any:
        """Return where the window of a result begins."""
        if self.shape.sees_one_line:
            return column * self.column
        rows = self.shape.result[1]
        return self.of_row(line // rows, line % rows) + column * self.shape.strides[1] * self.column

    def of_row(self, image: Any, row: Any) -> Any:
        """Return where the window of the first result of a row begins."""
        return image * self.image + row * self.shape.strides[0] * self.row
