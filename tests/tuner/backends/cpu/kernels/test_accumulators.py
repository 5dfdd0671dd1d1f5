"""A tile of sums equals a product of matrices, and tiles leave as little over as they can."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

from tuner.backends.cpu.kernels.accumulators import Sums, avx2_tile, tile_rows, tile_vectors
from tuner.backends.cpu.kernels.memory import flat
from tuner.targets.resolution import resolve_target, tvm_target

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize(("rows", "vectors", "lanes", "depth"), [(1, 1, 4, 1), (5, 2, 16, 9), (12, 1, 8, 3)])
def test_sums_are_a_product_of_matrices(rows: int, vectors: int, lanes: int, depth: int) -> None:
    columns = vectors * lanes
    with IRBuilder() as builder, script.prim_func(s_tir=True):
        script.func_name("main")
        shapes = {"left": (rows, depth), "right": (depth, columns), "result": (rows, columns)}
        arguments = [script.arg(name, script.buffer(shape, "float32")) for name, shape in shapes.items()]
        with script.sblock("root"):
            left, right, result = (
                flat(argument, shape[0] * shape[1])
                for argument, shape in zip(arguments, shapes.values(), strict=True)
            )
            sums = Sums(rows, vectors, lanes)
            with script.serial(depth) as step:
                sums.add(lambda row: left[row * depth + step], sums.bound(right, step * columns))
            for row, vector in sums.places:
                at = script.Ramp(row * columns + vector * lanes, 1, lanes)
                script.buffer_store(result, sums.load(row, vector), [at])
    target = tvm_target(resolve_target("cpu", num_threads=1))
    rng = np.random.default_rng(rows)
    values = [rng.standard_normal(shape).astype("float32") for shape in list(shapes.values())[:2]]
    found = tvm.runtime.tensor(np.full((rows, columns), np.nan, "float32"))
    tvm.compile(builder.get(), target=target)["main"](*map(tvm.runtime.tensor, values), found)
    np.testing.assert_allclose(found.numpy(), values[0] @ values[1], rtol=1e-5, atol=1e-5)


def test_tiles_divide_rows_as_well_as_they_can() -> None:
    assert tile_rows(3, 7) == 3  # fewer than a tile has: all
    assert tile_rows(49, 8) == 7  # no other number of rows from 5 to 12 divides 49
    assert tile_rows(120, 8) == 8
    assert tile_rows(13, 7) == 7  # 14 rows are computed, as few as with any
    assert tile_rows(56, 14, most=14) == 14
    assert tile_rows(121, 8, most=9) == 5  # 11 would compute fewer, and need registers


def test_tiles_of_avx2_are_wide_where_little_is_left_over() -> None:
    assert avx2_tile(128, 768) == (4, 3, 8)
    assert avx2_tile(3136, 128) == (6, 1, 16)  # six panels of 24 have 16 columns too many
    assert avx2_tile(5, 3072) == (5, 1, 16)
    assert avx2_tile(3, 512) == (3, 3, 8)
    assert avx2_tile(2, 320) == (2, 5, 8)
    assert avx2_tile(100, 12) == (10, 1, 8)
    assert avx2_tile(28, 512, 24) == (4, 3, 8)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("columns", [8, 20, 24, 40, 1000])
def test_tiles_of_avx2_fit_into_its_registers_and_the_results(rows: int, columns: int) -> None:
    tile = avx2_tile(rows, columns)
    halves = tile.vectors * tile.lanes // 8
    assert tile.rows <= rows
    assert 8 * halves <= columns
    assert tile.rows * halves + halves < 16


def test_tiles_for_fewer_registers_have_one_vector_and_fewer_rows() -> None:
    assert [tile_rows(rows, 8, 8) for rows in (2, 7, 28, 49, 64, 77)] == [2, 4, 6, 5, 6, 6]
    assert tile_rows(64, 8, 4) == 2
    assert [tile_vectors(2, lanes, 8) for lanes in (16, 8, 4)] == [1, 2, 2]
    assert tile_vectors(3, 16, 32) == 3
