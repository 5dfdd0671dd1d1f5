"""The register tile that the untuned CPU schedule gives a product, read off a workload, without TVM.

The speed of an untuned matrix product or convolution depends on which axis of the result is vectorised, and
on the divisors of its extents, or of what these are padded to; the choice itself is
`cost_model.register_tile`. Transpositions that feed the product count, because the schedule inlines them;
reshapes between a product and its operands are left out. Compared with the tiles of real schedules in
tests/tuner/backends/tvm/test_product_tile.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from cost_model.register_tile import OperandStep, TileAxis, choose_padding, choose_tile
from records import Operator, Tensor, Workload


class ProductTile(NamedTuple):
    """A tile of results in vector registers; all 0 where no axis fills a vector.

    Attributes:
        lanes: elements of a vector step.
        packs: 1 if an operand is packed so that vectors can be loaded from it.
        axis: of the result, counted from the last (1), along which vectors lie.
        vectors: vectors in a row.
    """

    lanes: int
    packs: int
    axis: int
    rows: int
    vectors: int


NO_TILE = ProductTile(0, 0, 0, 0, 0)


def product_tile(workload: Workload, product: Operator) -> ProductTile:
    """Return the tile of a product or convolution of the workload; `NO_TILE` for any other operator."""
    if product.name not in ("matmul", "nn.conv2d"):
        return NO_TILE
    values = workload.values
    inputs = [values[number] for number in product.inputs]
    if len(inputs) < 2 or min(len(tensor.shape) for tensor in inputs[:2]) < 2:
        return NO_TILE
    output = product.outputs[0].shape
    if product.name == "matmul":
        axes = _product_axes(output, inputs, transpositions(workload, product))
        points = math.prod(output) * inputs[0].shape[-1]
    elif len(output) == 4:
        axes = _convolution_axes(output, dict(product.attributes))
        points = math.prod(output) * math.prod(inputs[1].shape[1:])
    else:
        return NO_TILE
    operands = [tensor.num_elements for tensor in inputs[:2]]
    packs = points > 4 * max(operands)
    extents = choose_padding(axes, operands, packs=packs) if product.name == "matmul" else None
    if extents is not None:
        axes = [axis._replace(extent=extent) for axis, extent in zip(axes, extents, strict=True)]
    tile = choose_tile(axes, packs=packs)
    if tile is None:
        return NO_TILE
    return ProductTile(tile.lanes, int(tile.packs), len(axes) - tile.vector_axis, tile.rows, tile.vectors)


def transpositions(workload: Workload, product: Operator) -> tuple[bool, bool]:
    """Say of both operands whether a transposition of their last two axes feeds the product."""
    turned = set()
    number = len(workload.inputs)
    for operator in workload.operators:
        if operator.name == "permute_dims" and _swaps_last_axes(operator):
            turned.add(number)
        number += len(operator.outputs)
    left, right = product.inputs[:2]
    return left in turned, right in turned


def _swaps_last_axes(transposition: Operator) -> bool:
    rank = len(transposition.outputs[0].shape)
    axes = [int(axis) for axis in re.findall(r"-?\d+", dict(transposition.attributes).get("axes", ""))]
    return rank > 1 and (not axes or axes[-1] % rank == rank - 2)


def _product_axes(
    output: Sequence[int], inputs: Sequence[Tensor], transposed: tuple[bool, bool]
) -> list[TileAxis]:
    both = len(inputs[1].shape) > 2
    batch = (OperandStep(0, 1, False), OperandStep(1, 1, False)) if both else (OperandStep(0, 1, False),)
    return [
        *(TileAxis(extent, batch) for extent in output[:-2]),
        TileAxis(output[-2], (OperandStep(0, 1, transposed[0]),)),
        TileAxis(output[-1], (OperandStep(1, 1, not transposed[1]),)),
    ]


def _convolution_axes(output: Sequence[int], attributes: dict[str, str]) -> list[TileAxis]:
    """Return the axes N, C, H, W; in groups, the channel moves through the image in no plain step."""
    stride, groups = (
        int((re.findall(r"\d+", attributes.get(name, "")) or ["1"])[0]) for name in ("strides", "groups")
    )
    weight = OperandStep(1, 1, False)
    batch, channels, height, width = output
    return [
        TileAxis(batch, (OperandStep(0, 1, False),)),
        TileAxis(channels, (weight,) if groups == 1 else (OperandStep(0, 2, False), weight)),
        TileAxis(height, (OperandStep(0, stride, False),)),
        TileAxis(width, (OperandStep(0, stride, stride == 1),)),
    ]
