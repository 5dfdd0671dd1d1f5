"""Winograd's method equals a direct convolution, whatever the shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.signal import correlate
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import part_of, partition_module
from tuner.backends.cpu.kernels.winograd_shape import choose_shape
from tuner.backends.cpu.nhwc import Nhwc
from tuner.graph.relax_types import NUM_INPUTS_ATTRIBUTE
from tuner.lowering.lower import build_module, lower_module
from tuner.lowering.weight_binding import BIND_NAME
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op


def _program(
    data: Sequence[int],
    filters: int,
    padding: Sequence[int],
    *,
    has_bias: bool,
    has_relu: bool,
) -> Any:
    def body(x: Any, weights: Any, *bias: Any) -> Any:
        result = op.nn.conv2d(x, weights, padding=tuple(padding))
        result = op.add(result, bias[0]) if bias else result
        return op.nn.relu(result) if has_relu else result

    shapes = [tuple(data), (filters, data[1], 3, 3), *([(1, filters, 1, 1)] if has_bias else [])]
    return partition_module(Nhwc.name, shapes, body)


def _expected(
    data: np.ndarray, weights: np.ndarray, bias: np.ndarray | None, padding: Sequence[int], *, has_relu: bool
) -> np.ndarray:
    up, left = padding
    padded = np.pad(data.astype("float64"), ((0, 0), (0, 0), (up, up), (left, left)))
    result = np.stack(
        [[correlate(image, kernel, "valid")[0] for kernel in weights.astype("float64")] for image in padded]
    )
    result = result if bias is None else result + bias
    return np.maximum(result, 0) if has_relu else result


@pytest.mark.parametrize(
    "seed", [0, 2, 5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 3, 4))]
)
def test_it_equals_a_direct_convolution_of_random_shape(seed: int) -> None:
    rng = np.random.default_rng(seed)
    has_bias, has_relu = (bool(rng.integers(2)) for _ in range(2))
    padding = tuple(int(extent) for extent in rng.integers(0, 3, 2))
    data = (
        int(rng.integers(1, 4)),
        4 * int(rng.integers(1, 9)),
        int(rng.integers(3, 20)),
        int(rng.integers(3, 20)),
    )
    filters = 4 * int(rng.integers(1, 9))
    target = resolve_target("cpu", num_threads=1 + seed % 2)
    module = _program(data, filters, padding, has_bias=has_bias, has_relu=has_relu)
    backend = Nhwc()
    assert backend.refusal(part_of(module), target) is None
    arrays = [rng.standard_normal(data), rng.standard_normal((filters, data[1], 3, 3))]
    arrays += [rng.standard_normal((1, filters, 1, 1))] if has_bias else []
    inputs = [array.astype("float32") for array in arrays]
    lowered = lower_module(module, [backend], target)
    (found,) = run_module(build_module(lowered, target), inputs, target)
    expected = _expected(*inputs[:2], inputs[2] if has_bias else None, padding, has_relu=has_relu)
    assert np.abs(found - expected).max() <= 3e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    "tile_of",
    [
        (2, (1, 512, 7, 7), 512),
        (4, (1, 128, 28, 28), 128),
        (4, (1, 128, 7, 7), 32),
        (4, (1, 48, 13, 13), 192),
        (4, (1, 256, 14, 14), 256),
    ],
)
def test_many_weights_and_few_tiles_ask_for_small_tiles(tile_of: tuple[int, Sequence[int], int]) -> None:
    tile, data, filters = tile_of
    assert choose_shape(data, filters, (1, 1)).tile == tile


@pytest.mark.parametrize(
    ("filters", "vectors", "rows", "registers"),
    [(64, 2, 7, 32), (48, 3, 7, 32), (72, 3, 7, 32), (16, 1, 7, 32), (40, 1, 25, 32), (48, 1, 5, 8)],
)
def test_tiles_in_registers_are_of_as_many_vectors_as_filters_fill(
    filters: int, vectors: int, rows: int, registers: int
) -> None:
    shape = choose_shape((1, 64, 28, 28), filters, (1, 1), registers=registers)
    assert (shape.vectors, shape.rows) == (vectors, rows)


def test_its_weights_are_transformed_once() -> None:
    target = resolve_target("cpu", num_threads=1)
    module = _program((1, 8, 6, 6), 16, (1, 1), has_bias=True, has_relu=True)
    main = module["main"].with_attr(NUM_INPUTS_ATTRIBUTE, 1)
    module.update_func(module.get_global_var("main"), main)
    lowered = lower_module(module, [Nhwc()], target)
    assert sorted(_called(lowered["main"])) == ["convolution", "transpose", "transpose1"]
    assert _called(lowered["main_transform_params"]) == ["pack_weights"]
    assert BIND_NAME in {variable.name_hint for variable in lowered.get_global_vars()}


def _called(function: Any) -> list[str]:
    names: list[str] = []

    def note(expression: Any) -> None:
        if isinstance(expression, relax.Call) and getattr(expression.op, "name", "") == "relax.call_tir":
            names.append(expression.args[0].name_hint.removeprefix("part_"))

    relax.analysis.post_order_visit(function, note)
    return names
