"""Kernels with any decisions compute what they do by their rule; a name is enough to know their space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numerics import relative_error
from tvm import relax

from cost_model.draft.packed_families import PackedFamily
from tests.harness.run_module import run_module
from tests.samples.partition_samples import Body, partition_module
from tuner.backends.cpu.attention import Attention
from tuner.backends.cpu.kernels.clamp import RELU
from tuner.backends.cpu.nhwc import Nhwc
from tuner.backends.cpu.packed_matmul import PackedMatmul
from tuner.backends.cpu.tuned.chosen_tiles import ChosenTiles
from tuner.backends.cpu.tuned.families import family_of, kernel_of, space_of
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target
from tuner.targets.vector_registers import vector_registers

pytestmark = pytest.mark.tvm

op = relax.op


def _residual(x: Any, wide: Any, window: Any, narrow: Any) -> Any:
    y = op.nn.conv2d(op.clip(op.nn.conv2d(x, wide), 0.0, 6.0), window, padding=1, groups=48)
    return op.add(x, op.nn.conv2d(op.clip(y, 0.0, 6.0), narrow))


def _joined(x: Any, first: Any, second: Any, after: Any) -> Any:
    y = op.nn.relu(op.concat([op.nn.conv2d(x, first), op.nn.conv2d(x, second)], axis=1))
    return op.nn.relu(op.nn.conv2d(y, after))


def _attention(rows: Any, mask: Any) -> Any:
    parts = op.split(rows, 3, axis=-1)
    query, key, value = (
        op.permute_dims(op.reshape(parts[each], (2, 37, 3, 32)), [0, 2, 1, 3]) for each in range(3)
    )
    scores = op.multiply(op.matmul(query, op.permute_dims(key, [0, 1, 3, 2])), relax.const(0.2, "float32"))
    mixed = op.matmul(op.nn.softmax(op.add(scores, mask)), value)
    return op.reshape(op.permute_dims(mixed, [0, 2, 1, 3]), (2, 37, 96))


PROGRAMS: dict[str, tuple[str, PackedFamily, Sequence[Sequence[int]], Body]] = {
    "product with bias and gelu": (
        "packed_matmul",
        PackedFamily.PRODUCT,
        [(1, 13, 96), (40, 96), (40,)],
        lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, op.permute_dims(w)), b)),
    ),
    "product of several blocks with a sum": (
        "packed_matmul",
        PackedFamily.PRODUCT,
        [(50, 192), (192, 72), (50, 72)],
        lambda x, w, y: op.add(op.matmul(x, w), y),
    ),
    "strided convolution with a sum": (
        "nhwc",
        PackedFamily.DIRECT,
        [(2, 8, 9, 11), (24, 8, 3, 3), (1, 24, 1, 1), (2, 24, 5, 6)],
        lambda x, w, b, y: op.nn.relu(op.add(op.add(op.nn.conv2d(x, w, strides=2, padding=1), b), y)),
    ),
    "images of three channels": (
        "nhwc",
        PackedFamily.DIRECT,
        [(1, 3, 20, 20), (12, 3, 7, 7)],
        lambda x, w: op.nn.conv2d(x, w, strides=2, padding=3),
    ),
    "what is joined as it is read": (
        "nhwc",
        PackedFamily.DIRECT,
        [(1, 8, 7, 9), (16, 8, 1, 1), (8, 8, 1, 1), (20, 24, 1, 1)],
        _joined,
    ),
    "depthwise": (
        "nhwc",
        PackedFamily.DEPTHWISE,
        [(2, 24, 9, 11), (24, 1, 3, 3)],
        lambda x, w: op.nn.relu(op.nn.conv2d(x, w, strides=2, padding=1, groups=24)),
    ),
    "Winograd's method": (
        "nhwc",
        PackedFamily.WINOGRAD,
        [(1, 12, 9, 7), (32, 12, 3, 3), (1, 32, 1, 1)],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, padding=1), b)),
    ),
    "row by row": (
        "nhwc",
        PackedFamily.ROWWISE,
        [(1, 16, 20, 10), (48, 16, 1, 1), (48, 1, 3, 3), (16, 48, 1, 1)],
        _residual,
    ),
    "attention of rows with a mask": (
        "attention",
        PackedFamily.ATTENTION,
        [(2, 37, 288), (2, 1, 37, 37)],
        _attention,
    ),
}

MAKERS = {"packed_matmul": PackedMatmul, "nhwc": Nhwc, "attention": Attention}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_with_any_decisions_give_the_same_results(name: str, threads: int) -> None:
    backend, family, shapes, body = PROGRAMS[name]
    target = resolve_target("cpu", num_threads=threads)
    module = partition_module(backend, shapes, body)
    inputs = random_inputs(input_specs(module), seed=0)
    (expected,) = run_module(build_reference(module, target), inputs, target)
    kernels = {each.name: each for each in MAKERS[backend]().kernels_of(module, ["part"], target)}
    assert family in map(family_of, kernels)
    rng = np.random.default_rng([threads, len(name)])
    for _ in range(2):
        chosen = {each: space_of(each).decisions_of(space_of(each).sample(1, rng)[0]) for each in kernels}
        tuned = MAKERS[backend](ChosenTiles(chosen).text)
        lowered = lower_module(module, [tuned], target)
        (found,) = run_module(build_module(lowered, target), inputs, target)
        assert relative_error(found, expected) < 2e-5, chosen


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_kernel_is_made_again_from_its_name(name: str) -> None:
    backend, _, shapes, body = PROGRAMS[name]
    target = resolve_target("cpu", num_threads=1)
    for kernel in MAKERS[backend]().kernels_of(partition_module(backend, shapes, body), ["part"], target):
        made = kernel_of(kernel.name, RELU, vector_registers(target))
        assert made.operations == kernel.operations
        assert made.name == kernel.name.removesuffix(",joined")
        assert set(kernel.rule) == {kind.name for kind in space_of(kernel.name).kinds}
        stored = {"stores_sums"}  # by the activation, which a name does not say
        assert {key: made.rule[key] for key in set(made.rule) - stored} == {
            key: kernel.rule[key] for key in set(kernel.rule) - stored
        }


@pytest.mark.parametrize("name", PROGRAMS)
def test_decisions_are_undone(name: str) -> None:
    backend, _, shapes, body = PROGRAMS[name]
    target = resolve_target("cpu", num_threads=1)
    for kernel in MAKERS[backend]().kernels_of(partition_module(backend, shapes, body), ["part"], target):
        row = space_of(kernel.name).rows[-1]
        tuned = kernel.with_decisions(space_of(kernel.name).decisions_of(row))
        assert tuned != kernel
        assert tuned.name == kernel.name
        assert tuned.with_decisions({}) == kernel


@pytest.mark.parametrize(
    "name", ["", "product", "product:1x2", "other:1x2x3", "product:1x2x3x4", "product:1x2x99999999999", "a:b"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="kernel "):
        space_of(name)


@pytest.mark.parametrize(
    "name",
    [
        "product:13x96x40",
        "direct:1x9x11x8x24x3x3x2x2x1x1",
        "direct:1x20x20x3x12x7x7x2x2x3x3,planar",
        "depthwise:1x14x14x72x3x3x1x1x1x1",
        "winograd:1x16x14x14x32x1x1",
        "rowwise:1x14x14x16x96x1x1x1x1x0x0x3x3x1x1x1x1x16x1",
        "attention:1x2x32x37x37",
    ],
)
def test_bytes_of_packed_weights_are_those_that_the_kernel_reads(name: str) -> None:
    kernel = kernel_of(name, RELU)
    packed = [each for each in kernel.function().params if each.name.startswith("packed")]
    assert kernel.packed_bytes == sum(4 * math.prod(map(int, each.shape)) for each in packed)
    assert bool(packed) == (not name.startswith("attention"))
