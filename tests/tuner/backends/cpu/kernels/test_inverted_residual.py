"""A block's kernel equals its convolutions one after another, whatever the shape and the strips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from tuner.backends.cpu.kernels import depthwise, direct
from tuner.backends.cpu.kernels.clamp import RELU, UNBOUNDED, Bounds
from tuner.backends.cpu.kernels.depthwise import DepthwiseShape
from tuner.backends.cpu.kernels.direct import DirectShape
from tuner.backends.cpu.kernels.inverted_residual import Block, Stage, block_kernel
from tuner.backends.tvm.schedule import as_finished
from tuner.targets.resolution import resolve_target, tvm_target

pytestmark = pytest.mark.tvm

ACTIVATIONS = (UNBOUNDED, RELU, Bounds(0.0, 0.5))


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 10))]
)
def test_it_equals_one_kernel_after_another(seed: int) -> None:
    rng = np.random.default_rng(seed)
    block = _random_block(rng)
    kernels = {"block": block_kernel(block, num_strips=int(rng.integers(1, 6)))}
    for index, stage in enumerate(block.stages):
        is_last = index == len(block.stages) - 1
        kernels[f"stage_{index}"] = _alone(stage, has_other=block.has_other and is_last)
    program = _compiled(kernels, num_threads=1 + seed % 2)
    data = _random(rng, _direct(block).data_in_memory)
    weights = [_random(rng, stage.shape.packed_shape) for stage in block.stages]
    biases = [[_random(rng, stage.bias_shape)] if stage.bias_shape else [] for stage in block.stages]
    shape = block.stages[-1].shape.result
    other = [_random(rng, shape)] if block.has_other else []
    found = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    operands = [each for pair in zip(weights, biases, strict=True) for each in (pair[0], *pair[1])]
    program["block"](data, *operands, *other, found)
    for index, stage in enumerate(block.stages):
        result = tvm.runtime.tensor(np.full(stage.shape.result, np.nan, "float32"))
        added = other if index == len(block.stages) - 1 else []
        program[f"stage_{index}"](data, weights[index], *biases[index], *added, result)
        data = result
    expected = data.numpy()
    assert np.abs(expected).max() > 0.1
    assert np.abs(found.numpy() - expected).max() <= 1e-5 * np.abs(expected).max()


def _random_block(rng: np.random.Generator) -> Block:
    channels, wide, filters = (
        int(rng.integers(1, 4)),
        4 * int(rng.integers(1, 13)),
        4 * int(rng.integers(1, 9)),
    )
    window = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    first = DirectShape(
        data=(int(rng.integers(1, 3)), int(rng.integers(5, 24)), int(rng.integers(5, 24)), channels),
        filters=wide,
        window=window,
        strides=(int(rng.integers(1, 3)), int(rng.integers(1, 3))),
        padding=(window[0] // 2, window[1] // 2),
        is_planar=bool(rng.integers(2)),
    )
    size = int(rng.integers(1, 6))
    middle = DepthwiseShape(
        data=first.result,
        window=(size, size),
        strides=(int(rng.integers(1, 4)), int(rng.integers(1, 3))),
        padding=(size // 2, int(rng.integers(size // 2, 3 + size // 2))),
    )
    last = DirectShape(data=middle.result, filters=filters, window=(1, 1), strides=(1, 1), padding=(0, 0))
    has_narrow = bool(rng.integers(4))
    return Block(
        wide=_stage(first, rng),
        depthwise=_stage(middle, rng),
        narrow=_stage(last, rng) if has_narrow else None,
        has_other=has_narrow and bool(rng.integers(2)),
    )


def _stage(shape: DirectShape | DepthwiseShape, rng: np.random.Generator) -> Stage:
    bias_shape = (1, shape.result[3], 1, 1) if rng.integers(2) else None
    return Stage(shape=shape, bias_shape=bias_shape, activation=ACTIVATIONS[rng.integers(len(ACTIVATIONS))])


def _alone(stage: Stage, *, has_other: bool) -> Any:
    if isinstance(stage.shape, DepthwiseShape):
        return depthwise.convolution_kernel(stage.shape, stage.bias_shape, stage.activation)
    return direct.convolution_kernel(stage.shape, stage.bias_shape, stage.activation, has_other=has_other)


def _direct(block: Block) -> DirectShape:
    assert isinstance(block.wide.shape, DirectShape)
    return block.wide.shape


def _compiled(kernels: dict[str, Any], num_threads: int) -> Any:
    finished = {name: as_finished(each).with_attr("global_symbol", name) for name, each in kernels.items()}
    return tvm.compile(
        tvm.IRModule(finished), target=tvm_target(resolve_target("cpu", num_threads=num_threads))
    )


def _random(rng: np.random.Generator, shape: Any) -> Any:
    return tvm.runtime.tensor(rng.uniform(-1, 1, tuple(shape)).astype("float32"))
