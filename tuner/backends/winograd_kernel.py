"""Winograd's method for 3 x 3 convolutions with stride 1, as two TVM kernels that cost no tuning.

F(m x m, 3 x 3) computes a tile of m x m results from a patch of (m + 2) x (m + 2) data by (m + 2)^2 instead
of 9 m^2 multiplications for each pair of channels: 4 times fewer for m = 4, 2.25 times for m = 2. One kernel
transforms the weights. The other copies the data to channels last within zero padding, and then, a block of
tiles at a time so that all stays in the cache: transforms patches, multiplies one matrix for each of the
(m + 2)^2 points with a tile of results in vector registers, transforms back, and adds bias and activation.

`tuner.backends.winograd_shape` chooses m and the blocks. Results differ from those of a direct convolution by
some 1e-5 (m = 4) or 1e-6 (m = 2) of the largest. Checked in tests/tuner/backends/test_winograd.py.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), with their matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from tuner.backends.activation import Activation
from tuner.backends.direct_kernel import flat
from tuner.backends.register_tile import lanes_of
from tuner.backends.winograd_shape import WinogradShape

PrimFunc: TypeAlias = Any
"""A `tvm.tirx.PrimFunc`; TVM ships no types."""

Vector: TypeAlias = Any
"""An expression of several lanes."""

Matrix: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class _Transforms:
    """The matrices of one F(m x m, 3 x 3): of data, of weights and of results."""

    data: Matrix
    weights: Matrix
    results: Matrix


_TRANSFORMS = {
    2: _Transforms(
        data=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        weights=((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        results=((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: _Transforms(
        data=(
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        weights=(
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        results=((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
}
"""By tile side. The weights' matrices are real numbers, rounded where they are used."""


def weights_kernel(shape: WinogradShape) -> PrimFunc:
    """Return the kernel that transforms OIHW weights into `packed_shape`."""
    matrix = _TRANSFORMS[shape.tile].weights
    lanes = lanes_of(shape.filters)
    num_panels = shape.filters // shape.panel
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("winograd_weights")
        weights = script.arg("weights", script.buffer((shape.filters, shape.channels, 3, 3), "float32"))
        packed = script.arg("packed", script.buffer(shape.packed_shape, "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            source = flat(weights, shape.filters * shape.channels * 9)
            target = flat(packed, shape.points * shape.filters * shape.channels)
            stride = shape.channels * 9
            with (
                script.parallel(num_panels) as panel,
                script.serial(shape.channels) as channel,
                script.serial(shape.vectors) as vector,
            ):
                first = script.Bind(((panel * shape.vectors + vector) * lanes * shape.channels + channel) * 9)
                filters = [
                    [script.Bind(source[script.Ramp(first + 3 * y + x, stride, lanes)]) for x in range(3)]
                    for y in range(3)
                ]
                for point, value in enumerate(_transformed(matrix, filters, lanes)):
                    at = ((point * num_panels + panel) * shape.channels + channel) * shape.panel
                    script.buffer_store(target, value, [script.Ramp(at + vector * lanes, 1, lanes)])
    return builder.get()


def convolution_kernel(
    shape: WinogradShape,
    bias_shape: Sequence[int] | None,
    activation: Activation,
    *,
    channels_last: bool = False,
) -> PrimFunc:
    """Return the kernel of data, transformed weights, the bias where there is one, and the result.

    Args:
        shape: the convolution and how it is cut.
        bias_shape: of a bias with one element a filter, or None.
        activation: what is done to the results.
        channels_last: whether data and result are NHWC in memory, not NCHW.
    """
    data_shape = (shape.batch, shape.channels, shape.height, shape.width)
    result_shape = (shape.batch, shape.filters, shape.result_height, shape.result_width)
    if channels_last:
        data_shape, result_shape = _moved_last(data_shape), _moved_last(result_shape)
    with IRBuilder() as builder, script.prim_func(private=True, s_tir=True):
        script.func_name("winograd_convolution")
        data = script.arg("data", script.buffer(data_shape, "float32"))
        packed = script.arg("packed", script.buffer(shape.packed_shape, "float32"))
        added = None
        if bias_shape is not None:
            added = script.arg("bias", script.buffer(tuple(bias_shape), "float32"))
        result = script.arg("result", script.buffer(result_shape, "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            source = flat(data, shape.batch * shape.channels * shape.height * shape.width)
            weights = flat(packed, shape.points * shape.filters * shape.channels)
            bias = None if added is None else flat(added, shape.filters)
            target = flat(result, shape.batch * shape.filters * shape.result_height * shape.result_width)
            padded = script.alloc_buffer((shape.batch * _padded_size(shape) * shape.channels,), "float32")
            found = script.alloc_buffer((shape.num_tiles * shape.tile**2 * shape.filters,), "float32")
            _emit_padding(shape, source, padded, channels_last=channels_last)
            with script.parallel(shape.num_blocks) as block:
                patches = script.alloc_buffer((shape.points * shape.block * shape.channels,), "float32")
                products = script.alloc_buffer((shape.points * shape.block * shape.filters,), "float32")
                _emit_data_transform(shape, block, padded, patches)
                _emit_products(shape, patches, weights, products)
                _emit_result_transform(shape, block, products, bias, found, activation)
            if channels_last:
                _emit_cropped(shape, found, target)
            else:
                _emit_channels_first(shape, found, target)
    return builder.get()


def _padded_size(shape: WinogradShape) -> int:
    """Return the pixels of an image with its padding, filled up to whole tiles."""
    return (shape.tile_rows * shape.tile + 2) * (shape.tile_columns * shape.tile + 2)


def _moved_last(shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    return (shape[0], shape[2], shape[3], shape[1])


def _emit_padding(shape: WinogradShape, source: Any, padded: Any, *, channels_last: bool) -> None:
    """Copy images to channels last, within zeros."""
    channels, height, width = shape.channels, shape.height, shape.width
    above, left = shape.padding
    lanes = lanes_of(channels)
    rows, columns = shape.tile_rows * shape.tile + 2, shape.tile_columns * shape.tile + 2
    # The last rows and columns of an image may be in no tile: without padding that is so.
    last_row, last_column = min(height, rows - above), min(width, columns - left)
    zeros = script.Broadcast(script.float32(0), lanes)
    with script.parallel(shape.batch * rows) as row:
        y = script.Bind(row % rows)
        start = script.Bind(row * columns * channels)
        with script.If(tirx.any(y < above, y >= last_row + above)):
            with script.Then(), script.serial(columns * channels // lanes) as step:
                script.buffer_store(padded, zeros, [script.Ramp(start + step * lanes, 1, lanes)])
            with script.Else():
                for column in (*range(left), *range(left + last_column, columns)):
                    with script.serial(channels // lanes) as step:
                        at = start + column * channels + step * lanes
                        script.buffer_store(padded, zeros, [script.Ramp(at, 1, lanes)])
                with script.serial(channels // lanes) as step, script.serial(last_column) as x:
                    if channels_last:
                        first = (
                            row // rows * height * width + (y - above) * width + x
                        ) * channels + step * lanes
                    else:
                        first = (
                            (row // rows * channels + step * lanes) * height * width + (y - above) * width + x
                        )
                    value = source[script.Ramp(first, 1 if channels_last else height * width, lanes)]
                    at = start + (left + x) * channels + step * lanes
                    script.buffer_store(padded, value, [script.Ramp(at, 1, lanes)])


def _emit_data_transform(shape: WinogradShape, block: Any, padded: Any, patches: Any) -> None:
    """Write points x tiles x channels."""
    matrix = _TRANSFORMS[shape.tile].data
    channels, side, tile = shape.channels, shape.side, shape.tile
    lanes = lanes_of(channels)
    columns = shape.tile_columns * tile + 2
    with script.serial(shape.block) as member:
        # What fills the last block up is its last tile again.
        index = script.Bind(script.min(block * shape.block + member, shape.num_tiles - 1))
        image = index // (shape.tile_rows * shape.tile_columns)
        row = index // shape.tile_columns % shape.tile_rows * tile
        column = index % shape.tile_columns * tile
        first = script.Bind((image * _padded_size(shape) + row * columns + column) * channels)
        with script.serial(channels // lanes) as step:
            patch = [
                [
                    script.Bind(
                        padded[script.Ramp(first + (y * columns + x) * channels + step * lanes, 1, lanes)]
                    )
                    for x in range(side)
                ]
                for y in range(side)
            ]
            for point, value in enumerate(_transformed(matrix, patch, lanes)):
                at = (point * shape.block + member) * channels + step * lanes
                script.buffer_store(patches, value, [script.Ramp(at, 1, lanes)])


def _emit_products(shape: WinogradShape, patches: Any, weights: Any, products: Any) -> None:
    """Multiply tiles x channels by channels x filters for each point, a tile of results in registers."""
    lanes, panel = lanes_of(shape.filters), shape.panel
    num_panels = shape.filters // panel
    tile = tuple(itertools.product(range(shape.rows), range(shape.vectors)))
    with (
        script.serial(shape.points) as point,
        script.serial(num_panels) as which,
        script.serial(shape.block // shape.rows) as group,
    ):
        sums = script.alloc_buffer((shape.rows * panel,), "float32", scope="local")
        for row, vector in tile:
            zeros = script.Broadcast(script.float32(0), lanes)
            script.buffer_store(sums, zeros, [script.Ramp(row * panel + vector * lanes, 1, lanes)])
        with script.serial(shape.channels) as channel:
            start = ((point * num_panels + which) * shape.channels + channel) * panel
            right = [
                script.Bind(weights[script.Ramp(start + vector * lanes, 1, lanes)])
                for vector in range(shape.vectors)
            ]
            for row, vector in tile:
                if vector == 0:
                    member = point * shape.block + group * shape.rows + row
                    left = script.Bind(script.Broadcast(patches[member * shape.channels + channel], lanes))
                at = script.Ramp(row * panel + vector * lanes, 1, lanes)
                script.buffer_store(sums, sums[at] + left * right[vector], [at])
        for row, vector in tile:
            member = point * shape.block + group * shape.rows + row
            at = member * shape.filters + which * panel + vector * lanes
            value = sums[script.Ramp(row * panel + vector * lanes, 1, lanes)]
            script.buffer_store(products, value, [script.Ramp(at, 1, lanes)])


def _emit_result_transform(
    shape: WinogradShape, block: Any, products: Any, bias: Any, found: Any, activation: Activation
) -> None:
    """Write tiles of results, channels last, in images filled up to whole tiles."""
    matrix = _TRANSFORMS[shape.tile].results
    filters, side, tile = shape.filters, shape.side, shape.tile
    lanes = lanes_of(filters)
    columns = shape.tile_columns * tile
    with script.serial(shape.block) as member:
        index = script.Bind(block * shape.block + member)
        with script.If(index < shape.num_tiles), script.Then():
            row = index // shape.tile_columns * tile  # images follow each other, each of whole tiles
            column = index % shape.tile_columns * tile
            first = script.Bind((row * columns + column) * filters)
            with script.serial(filters // lanes) as step:
                points = [
                    [
                        script.Bind(
                            products[
                                script.Ramp(
                                    ((y * side + x) * shape.block + member) * filters + step * lanes, 1, lanes
                                )
                            ]
                        )
                        for x in range(side)
                    ]
                    for y in range(side)
                ]
                added = None if bias is None else script.Bind(bias[script.Ramp(step * lanes, 1, lanes)])
                for place, transformed in enumerate(_transformed(matrix, points, lanes)):
                    value = transformed if added is None else transformed + added
                    value = activation.emit(value, lanes)
                    at = first + (place // tile * columns + place % tile) * filters + step * lanes
                    script.buffer_store(found, value, [script.Ramp(at, 1, lanes)])


def _emit_cropped(shape: WinogradShape, found: Any, target: Any) -> None:
    """Copy results, channels last, without what filled images up."""
    height, run = shape.result_height, shape.result_width * shape.filters
    rows, columns = shape.tile_rows * shape.tile, shape.tile_columns * shape.tile
    lanes = lanes_of(shape.filters)
    with script.parallel(shape.batch * height) as row, script.serial(run // lanes) as step:
        first = (row // height * rows + row % height) * columns * shape.filters
        value = found[script.Ramp(first + step * lanes, 1, lanes)]
        script.buffer_store(target, value, [script.Ramp(row * run + step * lanes, 1, lanes)])


def _emit_channels_first(shape: WinogradShape, found: Any, target: Any) -> None:
    """Copy results to NCHW without what filled images up."""
    filters, height, width = shape.filters, shape.result_height, shape.result_width
    rows, columns = shape.tile_rows * shape.tile, shape.tile_columns * shape.tile
    lanes = lanes_of(filters)
    run = max(extent for extent in range(1, 17) if width % extent == 0)
    with script.parallel(shape.batch * height) as row:
        image, y = row // height, row % height
        with (
            script.serial(filters // lanes) as step,
            script.serial(width // run) as part,
            script.serial(lanes) as lane,
        ):
            channel = step * lanes + lane
            first = ((image * rows + y) * columns + part * run) * filters + channel
            at = ((image * filters + channel) * height + y) * width + part * run
            if run == 1:
                script.buffer_store(target, found[first], [at])
            else:
                value = found[script.Ramp(first, filters, run)]
                script.buffer_store(target, value, [script.Ramp(at, 1, run)])


def _transformed(matrix: Matrix, values: Sequence[Sequence[Vector]], lanes: int) -> list[Vector]:
    """Return matrix x values x matrix transposed, row by row; intermediate results are bound to variables."""
    columns = [[row[x] for row in values] for x in range(len(values[0]))]
    half = [[script.Bind(_weighted(weights, column, lanes)) for column in columns] for weights in matrix]
    return [_weighted(weights, row, lanes) for row in half for weights in matrix]


def _weighted(weights: Sequence[float], values: Sequence[Vector], lanes: int) -> Vector:
    """Return the weighted sum of vectors; every row of the matrices has a weight that is not 0."""
    terms = [(weight, value) for weight, value in zip(weights, values, strict=True) if weight]
    total = None
    for weight, value in terms:
        scaled = value if abs(weight) == 1 else value * script.Broadcast(script.float32(abs(weight)), lanes)
        if total is None:
            total = scaled if weight > 0 else script.Broadcast(script.float32(0), lanes) - scaled
        else:
            total = total + scaled if weight > 0 else total - scaled
    return total
