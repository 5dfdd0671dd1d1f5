"""Data that is joined, scaled and bounded as it is read is what it would be in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm

from tuner.backends.cpu.kernels import direct
from tuner.backends.cpu.kernels.clamp import RELU, UNBOUNDED, Bounds
from tuner.backends.cpu.kernels.direct import DirectShape
from tuner.backends.cpu.kernels.fused_concat_input import JoinedShape, joining_kernel
from tuner.targets.resolution import resolve_target, tvm_target

pytestmark = pytest.mark.tvm


def _run(kernel: Any, inputs: Sequence[np.ndarray], result: Sequence[int]) -> np.ndarray:
    target = tvm_target(resolve_target("cpu", num_threads=1))
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    found = tvm.runtime.tensor(np.full(tuple(result), np.nan, "float32"))
    tvm.tirx.build(module, target=target)["main"](*map(tvm.runtime.tensor, inputs), found)
    return found.numpy()


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))]
)
def test_a_convolution_of_joined_data_equals_one_of_the_data(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pixels = (int(rng.integers(1, 3)), *(int(extent) for extent in rng.integers(2, 12, 2)))
    channels = tuple(int(each) for each in rng.choice([4, 8, 16, 24, 32, 48], rng.integers(1, 5)))
    shape = JoinedShape(
        pixels=pixels,
        channels=channels,
        is_scaled=bool(rng.integers(2)),
        activation=(UNBOUNDED, RELU, Bounds(-0.5, 0.5))[int(rng.integers(3))],
        window=((1, 1), (2, 2), (1, 2))[int(rng.integers(3))],
    )
    parts = [rng.standard_normal((*pixels, each)).astype("float32") for each in channels]
    scales = rng.standard_normal((2 if shape.is_scaled else 0, sum(channels))).astype("float32")
    expected = np.concatenate(parts, axis=3)
    if shape.is_scaled:
        expected = expected * scales[0] + scales[1]
    expected = np.clip(expected, shape.activation.lower, shape.activation.upper)
    (batch, height, width, total), (rows, columns) = shape.result, shape.window
    blocks = expected[:, : height * rows, : width * columns].reshape(
        batch, height, rows, width, columns, total
    )
    expected = blocks.mean((2, 4), dtype="float32")
    found = _run(joining_kernel(shape), [*parts, *scales], expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    filters = 4 * int(rng.integers(1, 20))
    weights = rng.standard_normal((filters, sum(channels), 1, 1)).astype("float32")
    other = rng.standard_normal((*shape.result[:3], filters)).astype("float32")
    after = DirectShape(data=expected.shape, filters=filters, window=(1, 1), strides=(1, 1), padding=(0, 0))
    packed = _run(direct.weights_kernel(after), [weights], after.packed_shape)
    kernel = direct.convolution_kernel(after, None, UNBOUNDED, has_other=True, joined=shape)
    result = _run(kernel, [*parts, *scales, packed, other], other.shape)
    wanted = expected.astype("float64") @ weights[:, :, 0, 0].T + other
    assert np.abs(result - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_parts_that_fill_no_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="join them in memory"):
        JoinedShape(pixels=(1, 2, 2), channels=(8, 6), is_scaled=False, activation=UNBOUNDED)
