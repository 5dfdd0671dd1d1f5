"""What the cost model takes for a product's tile is the tile that its schedule has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tvm import relax, s_tir

from cost_model.features import anchor_of
from cost_model.product_tile import NO_TILE, ProductTile, product_tile
from tests.samples.partition_samples import Body, function_module, kernels_of
from tuner.backends.tvm import cpu_schedule
from tuner.backends.tvm.cpu_schedule import _axis_kinds, _inline_producers, _nests
from tuner.backends.tvm.native import fuse_function
from tuner.backends.tvm.register_tile import ResultAxis, Tile, choose_tile
from tuner.lowering.workload_of import workload_of
from tuner.targets.vector_registers import WIDE

pytestmark = pytest.mark.tvm

op = relax.op


def convolved(
    shape: Sequence[int], weight: Sequence[int], strides: int = 1, groups: int = 1
) -> tuple[Sequence[Sequence[int]], Body]:
    padding = weight[-1] // 2
    return [shape, weight], lambda x, w: op.nn.conv2d(x, w, strides=strides, padding=padding, groups=groups)


CASES: dict[str, tuple[Sequence[Sequence[int]], Body]] = {
    "product": ([(128, 64), (64, 768)], lambda x, w: op.matmul(x, w)),
    "of a transposed weight": ([(128, 64), (768, 64)], lambda x, w: op.matmul(x, op.permute_dims(w))),
    "of transposed rows": ([(64, 128), (64, 768)], lambda x, w: op.matmul(op.permute_dims(x), w)),
    "of a large vocabulary": ([(64, 32), (50257, 32)], lambda x, w: op.matmul(x, op.permute_dims(w))),
    "of a vector": ([(1, 64), (64, 96)], lambda x, w: op.matmul(x, w)),
    "that nothing divides": ([(7, 9), (9, 13)], lambda x, w: op.matmul(x, w)),
    "of columns that no vector divides": ([(2, 49, 64), (2, 64, 49)], lambda x, w: op.matmul(x, w)),
    "of a prime number of rows": ([(197, 64), (64, 96)], lambda x, w: op.matmul(x, w)),
    "of thirteen rows": ([(13, 64), (64, 96)], lambda x, w: op.matmul(x, w)),
    "of a weight too large to be padded": (
        [(64, 48), (50257, 48)],
        lambda x, w: op.matmul(x, op.permute_dims(w)),
    ),
    "of a batch and a weight": ([(4, 20, 48), (48, 36)], lambda x, w: op.matmul(x, w)),
    "of a batch": ([(4, 20, 48), (4, 48, 24)], lambda x, w: op.matmul(x, w)),
    "of heads": (
        [(2, 4, 20, 32), (2, 4, 20, 32)],
        lambda q, k: op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])),
    ),
    "of swapped heads": (
        [(2, 20, 4, 32), (2, 4, 32, 20)],
        lambda q, k: op.matmul(op.permute_dims(q, [0, 2, 1, 3]), k),
    ),
    "with an epilogue": ([(32, 24), (24, 48), (48,)], lambda x, w, b: op.add(op.matmul(x, w), b)),
    "convolution": convolved((1, 8, 28, 28), (16, 8, 3, 3)),
    "convolution of a wide image": convolved((1, 8, 32, 32), (20, 8, 3, 3)),
    "convolution of single pixels": convolved((2, 24, 7, 7), (80, 24, 1, 1)),
    "convolution in steps of two": convolved((1, 3, 32, 32), (8, 3, 7, 7), strides=2),
    "convolution in groups": convolved((1, 16, 12, 12), (24, 8, 3, 3), groups=2),
    "convolution of each channel": convolved((1, 16, 14, 14), (16, 1, 3, 3), groups=16),
    "convolution of each channel, wide": convolved((1, 24, 32, 32), (24, 1, 3, 3), groups=24),
    "convolution of each channel, in steps": convolved((4, 24, 28, 28), (24, 1, 3, 3), 2, 24),
}


@pytest.mark.parametrize("name", CASES)
def test_the_workload_tells_the_tile_of_the_schedule(name: str) -> None:
    shapes, body = CASES[name]
    function = function_module(shapes, body)["main"]
    workload = workload_of(function)
    anchor = anchor_of(workload)
    assert anchor is not None
    assert product_tile(workload, anchor) == scheduled_tile(function)


def test_only_products_have_a_tile() -> None:
    workload = workload_of(function_module([(32, 64)], lambda x: op.nn.softmax(x))["main"])
    assert product_tile(workload, workload.operators[0]) == NO_TILE


def scheduled_tile(function: object) -> ProductTile:
    (kernel,) = kernels_of(fuse_function(function))
    schedule = s_tir.Schedule(kernel)
    _inline_producers(schedule)
    (block,) = (block for block in _nests(schedule) if "R" in _axis_kinds(schedule, block))
    chosen = []

    def remember(axes: Sequence[ResultAxis], *, packs: bool, registers: int) -> Tile | None:
        chosen.append((axes, choose_tile(axes, packs=packs, registers=registers)))
        return chosen[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_schedule, "choose_tile", remember)
        cpu_schedule._schedule_nest(schedule, str(schedule.get(block).name_hint), WIDE)
    axes, tile = chosen[0]
    if tile is None:
        return NO_TILE
    return ProductTile(
        lanes=tile.lanes,
        packs=int(tile.packed_read is not None),
        axis=len(axes) - tile.vector,
        rows=tile.row_tile,
        vectors=tile.vector_tile // tile.lanes,
    )
