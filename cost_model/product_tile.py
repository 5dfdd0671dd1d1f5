"""The register tile that the untuned CPU schedule gives a product, from shapes alone, without TVM.

How fast the loops of an untuned matrix product or convolution are depends on which axis of the result fills
vectors, and on which divisors its extents have; the tuner's rule chooses by both (`choose_tile` in
tuner/backends/kernels/register_tile.py). This module asks the same of a workload. Transpositions that feed
the product count, because the schedule inlines them; reshapes between a product and its operands are left
out. Held to the tuner's rule in tests/tuner/backends/kernels/test_product_tile.py.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from records import Operator, Tensor, Workload

_NUM_ACCUMULATORS, _MAX_ROWS, _LANES, _MAX_VECTORS = 24, 7, (16, 8, 4), 16


class ProductTile(NamedTuple):
    """A tile of results in vector registers; all 0 where no axis fills a vector.

    Attributes:
        lanes: elements of a vector step.
        packs: 1 if an operand is packed so that vectors can be loaded from it.
        axis: of the result, counted from the last (1), along which vectors lie.
        rows: rows of the tile.
        vectors: vectors in a row.
    """

    lanes: int
    packs: int
    axis: int
    rows: int
    vectors: int


NO_TILE = ProductTile(0, 0, 0, 0, 0)


class _Step(NamedTuple):
    """How an operand is read as an axis of the result advances by one."""

    operand: int
    step: int
    is_contiguous: bool


class _Axis(NamedTuple):
    extent: int
    steps: tuple[_Step, ...]


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
    return _choose(axes, packs=points > 4 * max(tensor.num_elements for tensor in inputs[:2]))


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


@functools.lru_cache(maxsize=1 << 16)
def largest_divisor(extent: int, limit: int) -> int:
    """Return the largest divisor of the extent up to the limit; 0 where the extent is 0."""
    return next((size for size in range(min(extent, limit), 0, -1) if extent % size == 0), 0)


def _swaps_last_axes(transposition: Operator) -> bool:
    rank = len(transposition.outputs[0].shape)
    axes = [int(axis) for axis in re.findall(r"-?\d+", dict(transposition.attributes).get("axes", ""))]
    return rank > 1 and (not axes or axes[-1] % rank == rank - 2)


def _product_axes(
    output: Sequence[int], inputs: Sequence[Tensor], transposed: tuple[bool, bool]
) -> list[_Axis]:
    both = len(inputs[1].shape) > 2
    batch = (_Step(0, 1, False), _Step(1, 1, False)) if both else (_Step(0, 1, False),)
    return [
        *(_Axis(extent, batch) for extent in output[:-2]),
        _Axis(output[-2], (_Step(0, 1, transposed[0]),)),
        _Axis(output[-1], (_Step(1, 1, not transposed[1]),)),
    ]


def _convolution_axes(output: Sequence[int], attributes: dict[str, str]) -> list[_Axis]:
    """Return the axes N, C, H, W; in groups, the channel moves through the image in no plain step."""
    stride, groups = (
        int((re.findall(r"\d+", attributes.get(name, "")) or ["1"])[0]) for name in ("strides", "groups")
    )
    weight = _Step(1, 1, False)
    batch, channels, height, width = output
    return [
        _Axis(batch, (_Step(0, 1, False),)),
        _Axis(channels, (weight,) if groups == 1 else (_Step(0, 2, False), weight)),
        _Axis(height, (_Step(0, stride, False),)),
        _Axis(width, (_Step(0, stride, stride == 1),)),
    ]


def _choose(axes: Sequence[_Axis], *, packs: bool) -> ProductTile:
    """Return the tile with the widest vectors; of equals, one without packing, then the last axis."""
    choices = []
    for index, axis in enumerate(axes):
        lanes = next((lanes for lanes in _LANES if axis.extent % lanes == 0), 0)
        to_pack = [step for step in axis.steps if not step.is_contiguous]
        if lanes and len(to_pack) <= int(packs) and all(step.step == 1 for step in to_pack):
            choices.append((lanes, -len(to_pack), index))
    if not choices:
        return NO_TILE
    lanes, packing, vector = max(choices)
    rows = largest_divisor(_row_extent(axes, vector), _MAX_ROWS)
    most_vectors = min(_MAX_VECTORS, _NUM_ACCUMULATORS // rows)
    vectors = largest_divisor(axes[vector].extent // lanes, most_vectors)
    return ProductTile(lanes, -packing, len(axes) - vector, rows, vectors)


def _row_extent(axes: Sequence[_Axis], vector: int) -> int:
    """Return the extent of the last axis along which the operand that vectors are loaded from stays."""
    loaded = {step.operand for step in axes[vector].steps}
    for index in reversed(range(len(axes))):
        if index != vector and axes[index].extent > 1:
            moved = {step.operand for step in axes[index].steps}
            if not moved & loaded:
                return axes[index].extent
    return 1
