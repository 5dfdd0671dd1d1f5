"""A depthwise kernel equals a sum over shifted images, whatever the shape."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import tvm

from tuner.backends.cpu.kernels.clamp import RELU, UNBOUNDED, Bounds
from tuner.backends.cpu.kernels.depthwise import DepthwiseShape, convolution_kernel, weights_kernel
from tuner.backends.tvm.schedule import as_finished
from tuner.targets.resolution import resolve_target, tvm_target

pytestmark = pytest.mark.tvm

ACTIVATIONS = (UNBOUNDED, RELU, Bounds(0.0, 6.0), Bounds(upper=1.5), Bounds(-0.5, 0.25))


def _found(
    shape: DepthwiseShape,
    data: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray | None,
    activation: Bounds,
    num_threads: int,
) -> np.ndarray:
    kernels = {
        "pack": weights_kernel(shape),
        "run": convolution_kernel(shape, None if bias is None else bias.shape, activation),
    }
    target = tvm_target(resolve_target("cpu", num_threads=num_threads))
    module = tvm.IRModule(
        {name: as_finished(kernel).with_attr("global_symbol", name) for name, kernel in kernels.items()}
    )
    program = tvm.compile(module, target=target)
    packed, result = (
        tvm.runtime.tensor(np.full(extents, np.nan, "float32"))
        for extents in (shape.packed_shape, shape.result)
    )
    program["pack"](tvm.runtime.tensor(weights), packed)
    operands = [data, *([] if bias is None else [bias])]
    first, *rest = (tvm.runtime.tensor(operand) for operand in operands)
    program["run"](first, packed, *rest, result)
    return result.numpy()


def _expected(
    shape: DepthwiseShape,
    data: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray | None,
    activation: Bounds,
) -> np.ndarray:
    above, left = shape.padding
    padded = np.pad(data.astype("float64"), ((0, 0), (above, above), (left, left), (0, 0)))
    height, width = (extent - size + 1 for extent, size in zip(padded.shape[1:3], shape.window, strict=True))
    total = sum(
        padded[:, y : y + height, x : x + width] * weights[:, 0, y, x]
        for y, x in itertools.product(*map(range, shape.window))
    )[:, :: shape.strides[0], :: shape.strides[1]]
    total = total if bias is None else total + bias.reshape(-1)
    return np.clip(total, activation.lower, activation.upper)


def _check(shape: DepthwiseShape, rng: np.random.Generator, activation: Bounds, num_threads: int) -> None:
    channels = shape.data[3]
    data = rng.standard_normal(shape.data).astype("float32")
    weights = rng.standard_normal((channels, 1, *shape.window)).astype("float32")
    bias = rng.standard_normal((1, channels, 1, 1)).astype("float32") if rng.integers(2) else None
    found = _found(shape, data, weights, bias, activation, num_threads)
    expected = _expected(shape, data, weights, bias, activation)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 12))]
)
def test_it_equals_a_sum_over_shifted_images(seed: int) -> None:
    rng = np.random.default_rng(seed)
    window = (int(rng.integers(1, 6)), int(rng.integers(1, 6)))
    padding = (int(rng.integers(0, 4)), int(rng.integers(0, 4)))
    shape = DepthwiseShape(
        data=(
            int(rng.integers(1, 3)),
            max(1, window[0] - 2 * padding[0]) + int(rng.integers(0, 20)),
            max(1, window[1] - 2 * padding[1]) + int(rng.integers(0, 50)),
            4 * int(rng.integers(1, 25)),
        ),
        window=window,
        strides=(int(rng.integers(1, 4)), int(rng.integers(1, 4))),
        padding=padding,
    )
    _check(shape, rng, ACTIVATIONS[seed % len(ACTIVATIONS)], num_threads=1 + seed % 2)


@pytest.mark.parametrize(
    ("data", "window", "strides", "padding"),
    [
        ((1, 1, 1, 4), (3, 3), (1, 1), (1, 1)),  # the window is larger than the data
        ((2, 3, 2, 16), (3, 3), (1, 1), (3, 3)),  # results that meet padding alone
        ((1, 29, 90, 48), (3, 3), (1, 1), (1, 1)),  # several tiles inside, and one that overlaps another
        ((1, 28, 57, 32), (3, 3), (2, 2), (1, 1)),
        ((1, 14, 14, 24), (7, 7), (1, 1), (3, 3)),
        ((1, 5, 9, 512), (3, 3), (1, 1), (1, 1)),  # pixels that share sets of a cache
        ((1, 6, 15, 1024), (5, 5), (2, 2), (2, 2)),
    ],
)
def test_edges_and_insides_have_code_of_their_own(
    data: tuple[int, int, int, int],
    window: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int],
) -> None:
    shape = DepthwiseShape(data=data, window=window, strides=strides, padding=padding)
    _check(shape, np.random.default_rng(0), ACTIVATIONS[2], num_threads=2)


@pytest.mark.parametrize(("channels", "lanes"), [(512, 32), (1536, 32), (256, 16), (480, 16), (24, 8)])
def test_pixels_that_share_sets_of_a_cache_are_fewer_and_of_two_vectors(channels: int, lanes: int) -> None:
    shape = DepthwiseShape(data=(1, 14, 14, channels), window=(3, 3), strides=(1, 1), padding=(1, 1))
    assert shape.lanes == lanes
    assert (shape.pixels == 7) == (lanes == 32)
    narrow = DepthwiseShape(
        data=(1, 14, 14, channels), window=(3, 3), strides=(1, 1), padding=(1, 1), registers=8
    )
    assert narrow.lanes <= 16


@pytest.mark.parametrize("bounds", [(6.0, 0.0), (float("nan"), 1.0)])
def test_bounds_that_nothing_lies_within_are_refused(bounds: Sequence[float]) -> None:
    with pytest.raises(ValueError, match="no result lies within"):
        Bounds(*bounds)
