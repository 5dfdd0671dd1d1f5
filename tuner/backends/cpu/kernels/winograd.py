"""Winograd's method for 3 x 3 convolutions with stride 1, as two TVM kernels that cost no tuning.

F(m x m, 3 x 3) computes a tile of m x m results from a patch of (m + 2) x (m + 2) data by (m + 2)^2 instead
of 9 m^2 multiplications for each pair of channels: 4 times fewer for m = 4, 2.25 times for m = 2. One kernel
transforms the weights. The other works on a block of tiles at a time, so that all stays in the cache: it
transforms patches, multiplies one matrix for each of the (m + 2)^2 points with a tile of results in vector
registers, transforms back, and adds bias and activation. Data and results are NHWC, read and written where
they lie.

`tuner.backends.cpu.kernels.winograd_shape` chooses m and the blocks;
`tuner.backends.cpu.kernels.winograd_transforms` has the matrices. Results differ from those of a direct
convolution by some 1e-5 (m = 4) or 1e-6 (m = 2) of the largest. Checked in
tests/tuner/backends/cpu/kernels/test_winograd.py.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from tuner.backends.cpu.kernels.accumulators import Sums
from tuner.backends.cpu.kernels.clamp import Bounds
from tuner.backends.cpu.kernels.memory import Vector, flat, prefetch
from tuner.backends.cpu.kernels.winograd_shape import WinogradShape
from tuner.backends.cpu.kernels.winograd_transforms import TRANSFORMS, transformed
from tuner.graph.relax_types import PrimFunc


def weights_kernel(shape: WinogradShape) -> PrimFunc:
    """Return the kernel that transforms OIHW weights into `packed_shape`."""
    matrix = TRANSFORMS[shape.tile].weights
    lanes = shape.filter_lanes
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
                load = partial(_loaded_filters, source, first, stride, lanes)
                for point, value in enumerate(transformed(matrix, load, lanes)):
                    at = ((point * num_panels + panel) * shape.channels + channel) * shape.panel
                    script.buffer_store(target, value, [script.Ramp(at + vector * lanes, 1, lanes)])
    return builder.get()


def _loaded_filters(source: Any, first: Any, stride: int, lanes: int, y: int, x: int) -> Vector:
    return source[script.Ramp(first + 3 * y + x, stride, lanes)]


def convolution_kernel(
    shape: WinogradShape, bias_shape: Sequence[int] | None, activation: Bounds
) -> PrimFunc:
    """Return the kernel of NHWC data, transformed weights, the bias where there is one, and the NHWC result.

    Args:
        shape: the convolution and how it is cut.
        bias_shape: of a bias with one element per filter, or None.
        activation: what is done to the results.
    """
    data_shape = (shape.batch, shape.height, shape.width, shape.channels)
    result_shape = (shape.batch, shape.result_height, shape.result_width, shape.filters)
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
            source = flat(data, math.prod(data_shape))
            target = flat(result, math.prod(result_shape))
            weights = flat(packed, shape.points * shape.filters * shape.channels)
            bias = None if added is None else flat(added, shape.filters)
            with script.parallel(shape.num_blocks) as block:
                patches = script.alloc_buffer((shape.points * shape.block * shape.channels,), "float32")
                products = script.alloc_buffer((shape.points * shape.block * shape.filters,), "float32")
                _emit_data_transform(shape, block, source, patches)
                _emit_products(shape, patches, weights, products)
                _emit_result_transform(shape, block, products, bias, target, activation)
    return builder.get()


def _emit_data_transform(shape: WinogradShape, block: Any, source: Any, patches: Any) -> None:
    """Write points x tiles x channels."""
    height, width = shape.height, shape.width
    side = shape.side
    with script.serial(shape.block) as member:
        # What fills the last block up is its last tile again.
        index = script.Bind(script.min(block * shape.block + member, shape.num_tiles - 1))
        image, row, column = _place(shape, index)
        top = script.Bind(row - shape.padding[0])
        left = script.Bind(column - shape.padding[1])
        first = script.Bind(((image * height + top) * width + left) * shape.channels)
        emit = partial(_emit_patch, shape, width, source, first, patches, member)
        last_row, last_column = shape.tile_rows * shape.tile + 2, shape.tile_columns * shape.tile + 2
        if shape.padding == (0, 0) and last_row <= height and last_column <= width:
            emit(None)
            return
        whole = tirx.all(top >= 0, top + side <= height, left >= 0, left + side <= width)
        with script.If(whole):
            with script.Then():
                emit(None)
            with script.Else():
                rows = [script.Bind(tirx.all(top + y >= 0, top + y < height)) for y in range(side)]
                columns = [script.Bind(tirx.all(left + x >= 0, left + x < width)) for x in range(side)]
                emit([[tirx.all(row, column) for column in columns] for row in rows])


def _place(shape: WinogradShape, index: Any) -> tuple[Any, Any, Any]:
    """Return a tile's image, and its first row and column there."""
    row = index // shape.tile_columns % shape.tile_rows * shape.tile
    return index // (shape.tile_rows * shape.tile_columns), row, index % shape.tile_columns * shape.tile


def _emit_patch(
    shape: WinogradShape,
    width: int,
    source: Any,
    first: Any,
    patches: Any,
    member: Any,
    is_inside: Sequence[Sequence[Any]] | None,
) -> None:
    """Transform the patch of one tile; what is not inside the image is zeros."""
    matrix = TRANSFORMS[shape.tile].data
    channels, side = shape.channels, shape.side
    lanes = shape.channel_lanes
    zeros = script.Broadcast(script.float32(0), lanes)
    with script.serial(channels // lanes) as step:

        def loaded(y: int, x: int) -> Vector:
            value = source[script.Ramp(first + (y * width + x) * channels + step * lanes, 1, lanes)]
            return value if is_inside is None else tirx.if_then_else(is_inside[y][x], value, zeros)

        # The next tile's pixels, but for those that it shares with this one or the tiles above.
        for y, x in itertools.product(range(2, side), range(side, side + shape.tile)):
            prefetch(source, first + (y * width + x) * channels + step * lanes, writes=False)
        for point, value in enumerate(transformed(matrix, loaded, lanes)):
            at = (point * shape.block + member) * channels + step * lanes
            script.buffer_store(patches, value, [script.Ramp(at, 1, lanes)])


def _emit_products(shape: WinogradShape, patches: Any, weights: Any, products: Any) -> None:
    """Multiply tiles x channels by channels x filters for each point, a tile of results in registers."""
    lanes, panel = shape.filter_lanes, shape.panel
    num_panels = shape.filters // panel
    with (
        script.serial(shape.points) as point,
        script.serial(num_panels) as which,
        script.serial(shape.block // shape.rows) as group,
    ):
        first = point * shape.block + group * shape.rows
        sums = Sums(shape.rows, shape.vectors, lanes)

        def add(channel: Any) -> None:
            start = ((point * num_panels + which) * shape.channels + channel) * panel
            right = sums.bound(weights, start)
            sums.add(lambda row: patches[(first + row) * shape.channels + channel], right)

        with script.serial(shape.channels) as channel:
            add(channel)
        for row, vector in sums.places:
            at = (first + row) * shape.filters + which * panel + vector * lanes
            script.buffer_store(products, sums.load(row, vector), [script.Ramp(at, 1, lanes)])


def _emit_result_transform(
    shape: WinogradShape,
    block: Any,
    products: Any,
    bias: Any,
    target: Any,
    activation: Bounds,
) -> None:
    """Write tiles of results, channels last, as far as they are in the image."""
    height, width = shape.result_height, shape.result_width
    tile = shape.tile
    with script.serial(shape.block) as member:
        index = script.Bind(block * shape.block + member)
        with script.If(index < shape.num_tiles), script.Then():
            image, first_row, first_column = _place(shape, index)
            row, column = script.Bind(first_row), script.Bind(first_column)
            first = script.Bind(((image * height + row) * width + column) * shape.filters)
            emit = partial(_emit_tile, shape, width, products, bias, activation, target, first, member)
            if height % tile == 0 and width % tile == 0:
                emit(None)
            else:
                with script.If(tirx.all(row + tile <= height, column + tile <= width)):
                    with script.Then():
                        emit(None)
                    with script.Else():
                        rows = [script.Bind(row + y < height) for y in range(tile)]
                        columns = [script.Bind(column + x < width) for x in range(tile)]
                        emit([[tirx.all(row, column) for column in columns] for row in rows])


def _emit_tile(
    shape: WinogradShape,
    width: int,
    products: Any,
    bias: Any,
    activation: Bounds,
    target: Any,
    first: Any,
    member: Any,
    is_inside: Sequence[Sequence[Any]] | None,
) -> None:
    """Transform one tile of results back, and write those that are inside the image."""
    matrix = TRANSFORMS[shape.tile].results
    filters, side, tile = shape.filters, shape.side, shape.tile
    lanes = shape.filter_lanes
    with script.serial(filters // lanes) as step:

        def loaded(y: int, x: int) -> Vector:
            at = ((y * side + x) * shape.block + member) * filters + step * lanes
            return products[script.Ramp(at, 1, lanes)]

        added = None if bias is None else script.Bind(bias[script.Ramp(step * lanes, 1, lanes)])
        for place, without_bias in enumerate(transformed(matrix, loaded, lanes)):
            y, x = divmod(place, tile)
            value = activation.emit(without_bias if added is None else without_bias + added, lanes)
            at = script.Ramp(first + (y * width + x) * filters + step * lanes, 1, lanes)
            if is_inside is None:
                script.buffer_store(target, value, [at])
            else:
                with script.If(is_inside[y][x]), script.Then():
                    script.buffer_store(target, value, [at])
