"""Stretches with channels last compute what they did with channels first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numerics import relative_error
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import Body, function_module, part_of, partition_module
from tests.samples.programs.random_stretches import random_stretch
from tuner.backends.cpu.nhwc import Nhwc
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.relax_types import NUM_INPUTS_ATTRIBUTE
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

op = relax.op


def _residual(x: Any, wide: Any, narrow: Any, window: Any, bias: Any) -> Any:
    """Two convolutions whose results are added, and one of them is read again."""
    first = op.nn.conv2d(x, wide)
    second = op.nn.conv2d(op.nn.relu(op.nn.conv2d(first, narrow)), window, padding=1)
    return op.nn.relu(op.add(op.add(second, bias), first))


def _normalised(x: Any, weights: Any, gamma: Any, beta: Any, mean: Any, variance: Any, after: Any) -> Any:
    result = op.nn.conv2d(x, weights)
    normalised = op.nn.batch_norm(result, gamma, beta, mean, op.exp(variance), axis=1, training=False)
    return op.nn.conv2d(op.nn.relu(normalised[0]), after)


def _dense(x: Any, first: Any, wide: Any, window: Any, after: Any, scale: Any, shift: Any) -> Any:
    """What a layer of DenseNet does, then a transition, which pools what it convolves."""
    statistics = (op.multiply(scale, shift), op.exp(shift))
    y = op.nn.conv2d(x, first)
    normalised = op.nn.batch_norm(y, scale, shift, *statistics, axis=1, training=False)
    new = op.nn.conv2d(op.nn.relu(op.nn.conv2d(op.nn.relu(normalised[0]), wide)), window, padding=1)
    y = op.concat([y, new, op.concat([new, y], axis=1)], axis=1)
    parameters = [op.concat([each] * 4, axis=0) for each in (scale, shift, *statistics)]
    y = op.nn.relu(op.nn.batch_norm(y, *parameters, axis=1, training=False)[0])
    return op.nn.avg_pool2d(op.nn.conv2d(y, after), (2, 2), (2, 2))


def _joined(x: Any, v: Any, w: Any, after: Any) -> Any:
    """A concatenation that is read by operators of many kinds."""
    y = op.concat([op.nn.conv2d(x, v), op.nn.conv2d(x, w)], axis=1)
    pooled = op.nn.max_pool2d(y, (3, 3), (1, 1), (1, 1))
    return op.concat([op.nn.conv2d(op.clip(y, 0.0, 0.5), after), op.add(pooled, y), op.tanh(y)], axis=1)


PROGRAMS: dict[str, tuple[Sequence[Sequence[int]], Body]] = {
    "strides, padding, bias and a batch": (
        [(2, 12, 9, 11), (16, 12, 3, 3), (1, 16, 1, 1)],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, strides=2, padding=1), b)),
    ),
    "images of one column, with a sum": (
        [(2, 16, 11, 1), (32, 16, 5, 1), (1, 32, 1, 1), (32, 32, 1, 1)],
        lambda x, w, b, v: op.nn.relu(
            op.add(
                op.add(op.nn.conv2d(x, w, padding=(2, 0)), b),
                op.nn.conv2d(op.nn.conv2d(x, w, padding=(2, 0)), v),
            )
        ),
    ),
    "weights larger than a core's own cache": (
        [(1, 256, 64, 1), (512, 256, 5, 1)],
        lambda x, w: op.nn.conv2d(x, w),
    ),
    "images of one column and three channels, without padding": (
        [(1, 3, 20, 1), (24, 3, 4, 1)],
        lambda x, w: op.nn.conv2d(x, w, strides=(2, 1)),
    ),
    "three channels, a wide window, and a pool": (
        [(1, 3, 20, 20), (12, 3, 7, 7)],
        lambda x, w: op.nn.max_pool2d(op.nn.conv2d(x, w, strides=2, padding=3), (3, 3), (2, 2), (1, 1)),
    ),
    "images of three channels, without padding and pixelwise": (
        [(2, 3, 12, 9), (16, 3, 5, 2), (8, 3, 1, 1)],
        lambda x, v, w: op.concat(
            [op.nn.conv2d(x, v, strides=(2, 1)), op.nn.conv2d(op.nn.max_pool2d(x, (5, 2), (2, 1)), w)], axis=1
        ),
    ),
    "Winograd's method and a sum": (
        [(1, 16, 9, 7), (32, 16, 1, 1), (16, 32, 1, 1), (32, 16, 3, 3), (1, 32, 1, 1)],
        _residual,
    ),
    "a sum of two direct convolutions": (
        [(1, 8, 5, 5), (24, 8, 1, 1), (24, 8, 1, 1)],
        lambda x, v, w: op.nn.relu(op.add(op.nn.conv2d(x, v), op.nn.conv2d(x, w))),
    ),
    "filters that fill no whole panels": (
        [(1, 8, 5, 5), (44, 8, 1, 1), (48, 44, 1, 1), (1, 48, 1, 1)],
        lambda x, v, w, b: op.add(op.nn.conv2d(op.nn.conv2d(x, v), w), b),
    ),
    "a sum with itself": (
        [(1, 8, 5, 5), (8, 8, 1, 1)],
        lambda x, w: (lambda y: op.add(y, y))(op.nn.conv2d(x, w)),
    ),
    "joined channels, then their mean": (
        [(1, 16, 6, 6), (8, 16, 1, 1), (16, 8, 1, 1), (16, 8, 3, 3)],
        lambda x, squeeze, one, three: (
            lambda y: op.mean(
                op.concat([op.nn.conv2d(y, one), op.nn.relu(op.nn.conv2d(y, three, padding=1))], axis=1),
                [2, 3],
            )
        )(op.nn.conv2d(x, squeeze)),
    ),
    "normalisation between convolutions": (
        [(1, 8, 5, 5), (16, 8, 1, 1), (16,), (16,), (16,), (16,), (8, 16, 1, 1)],
        _normalised,
    ),
    "what else a normalisation returns": (
        [(1, 8, 5, 5), (16, 8, 1, 1), (16,), (16,), (16,), (16,)],
        lambda x, w, g, b, m, v: (lambda y: op.add(y[0], op.reshape(y[1], (1, 16, 1, 1))))(
            op.nn.batch_norm(op.nn.conv2d(x, w), g, b, m, op.exp(v), axis=1, training=False)
        ),
    ),
    "a clip, a factor, and an operator with axes": (
        [(1, 8, 5, 5), (16, 8, 1, 1), (1, 16, 1, 1)],
        lambda x, w, f: op.nn.softmax(op.multiply(op.clip(op.nn.conv2d(x, w), 0.0, 6.0), f), axis=1),
    ),
    "an inverted residual: wider, depthwise, narrower, and a sum": (
        [(1, 8, 9, 9), (24, 8, 1, 1), (1, 24, 1, 1), (24, 1, 3, 3), (1, 24, 1, 1), (8, 24, 1, 1)],
        lambda x, wide, b, depthwise, c, narrow: (
            lambda y: op.add(x, op.nn.conv2d(op.clip(op.add(y, c), 0.0, 0.5), narrow))
        )(op.nn.conv2d(op.clip(op.add(op.nn.conv2d(x, wide), b), 0.0, 0.5), depthwise, padding=1, groups=24)),
    ),
    "depthwise convolutions that are added": (
        [(2, 12, 9, 7), (12, 1, 3, 3), (12, 1, 5, 5)],
        lambda x, v, w: op.nn.relu(
            op.add(
                op.nn.conv2d(x, v, strides=2, padding=1, groups=12),
                op.nn.conv2d(x, w, strides=2, padding=2, groups=12),
            )
        ),
    ),
    "Winograd's method and a clip": (
        [(1, 16, 9, 7), (16, 16, 3, 3), (1, 16, 1, 1)],
        # A third of the sums lie beyond the bounds, which are near the largest: errors are relative to these.
        lambda x, w, b: op.clip(op.add(op.nn.conv2d(x, w, padding=1), b), -5.0, 2.5),
    ),
    "a layer that joins, and a transition": (
        [(2, 8, 6, 8), (16, 8, 1, 1), (32, 16, 1, 1), (16, 32, 3, 3), (24, 64, 1, 1), (16,), (16,)],
        _dense,
    ),
    "joined channels, read in many ways": (
        [(1, 8, 5, 6), (16, 8, 1, 1), (4, 8, 1, 1), (12, 20, 1, 1)],
        _joined,
    ),
    "a normalisation of joined channels that fill no vectors": (
        [(1, 8, 5, 5), (16, 8, 1, 1), (1, 6, 5, 5), (22,), (22,), (8, 22, 1, 1)],
        lambda x, w, y, g, v, after: op.nn.conv2d(
            op.nn.batch_norm(
                op.concat([op.nn.conv2d(x, w), y], axis=1), g, g, v, op.exp(v), axis=1, training=False
            )[0],
            after,
        ),
    ),
    "joined pools, then a convolution": (
        [(1, 8, 9, 9), (16, 8, 1, 1), (4, 8, 1, 1), (1, 16, 1, 1), (8, 20, 1, 1)],
        lambda x, v, w, b, after: op.nn.conv2d(
            op.nn.max_pool2d(
                op.concat([op.nn.relu(op.add(op.nn.conv2d(x, v), b)), op.nn.conv2d(x, w)], axis=1),
                (3, 3),
                (2, 2),
                ceil_mode=True,
            ),
            after,
        ),
    ),
    "pools and strides of pixels": (
        [(1, 16, 9, 9), (32, 16, 1, 1)],
        lambda x, w: op.nn.adaptive_avg_pool2d(
            op.nn.avg_pool2d(op.nn.conv2d(x, w, strides=2), (2, 2), (2, 2)), (1, 1)
        ),
    ),
}


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


ALIKE = (
    "images of one column, with a sum",
    "images of one column and three channels, without padding",
    "images of three channels, without padding and pixelwise",
    "Winograd's method and a clip",
    "a sum with itself",
    "what else a normalisation returns",
    "depthwise convolutions that are added",
    "joined channels, read in many ways",
    "a normalisation of joined channels that fill no vectors",
    "pools and strides of pixels",
)
"""Those that are slow: of each, others and random stretches have the parts."""


@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in PROGRAMS]
)
def test_a_stretch_computes_what_it_did(program: str, target: Target) -> None:
    module = partition_module("nhwc", *PROGRAMS[program])
    assert Nhwc().refusal(part_of(module), target) is None
    inputs = random_inputs(input_specs(module), seed=1)
    results = run_module(build_module(lower_module(module, [Nhwc()], target), target), inputs, target)
    expected = run_module(build_reference(module, target), inputs, target)
    assert np.abs(expected[0]).max() > 0.1
    assert relative_error(results, expected) < 1e-5


@pytest.mark.parametrize("activation", [op.nn.relu, lambda x: op.clip(x, 0.0, 6.0)])
def test_bias_sum_and_activation_are_in_the_kernel_of_their_convolution(
    activation: Any, target: Target
) -> None:
    shapes = [(1, 8, 5, 5), (16, 8, 1, 1), (1, 16, 1, 1), (1, 16, 5, 5)]
    module = partition_module(
        "nhwc",
        shapes,
        lambda x, w, b, y: activation(op.add(op.add(op.nn.conv2d(x, w), b), y)),
    )
    lowered = Nhwc().lower(module, ["part"], target)
    names = [variable.name_hint for variable, _ in lowered.functions_items()]
    kernels = [name for name in names if name not in ("main", "part")]
    # What else there is turns x and y, and the result.
    assert sorted("transpose" in name for name in kernels) == [False, False, *[True] * (len(kernels) - 2)]


def test_it_refuses_what_has_no_convolution_of_its_own(target: Target) -> None:
    grouped = partition_module(
        "nhwc", [(1, 8, 5, 5), (8, 2, 3, 3)], lambda x, w: op.nn.conv2d(x, w, groups=4)
    )
    assert "one group" in (Nhwc().refusal(part_of(grouped), target) or "")


def test_its_rule_proposes_stretches_where_weights_are_known(target: Target) -> None:
    module = function_module([(1, 8, 5, 5), (8, 8, 1, 1)], _four_convolutions)
    spec, _ = gather_specs([Nhwc()], target)
    assert not list(spec.rule.find_candidates(DataflowGraph.from_function(module)))
    module.update_func(module.get_global_var("main"), module["main"].with_attr(NUM_INPUTS_ATTRIBUTE, 1))
    graph = DataflowGraph.from_function(module)
    found = list(spec.rule.find_candidates(graph))
    assert {sub_graph.inside for sub_graph in found} > {graph.all_indices}


def _four_convolutions(x: Any, weights: Any) -> Any:
    for _ in range(4):
        x = op.nn.conv2d(x, weights)
    return x


ROUNDING = 1e-3
"""Of random stretches: sums of large terms that a clip leaves small differ by 1e-4 in another order."""


def _differs_by(seed: int, target: Target) -> float:
    """Return the relative error of a random stretch."""
    module = partition_module("nhwc", *random_stretch(seed))
    inputs = random_inputs(input_specs(module), seed=seed)
    results = run_module(build_module(lower_module(module, [Nhwc()], target), target), inputs, target)
    expected = run_module(build_reference(module, target), inputs, target)
    return relative_error(results, expected)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_random_stretches_compute_what_they_did(seed: int, target: Target) -> None:
    assert _differs_by(seed, target) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_many_random_stretches_compute_what_they_did(threads: int) -> None:
    target = resolve_target("cpu", num_threads=threads)
    errors = {seed: _differs_by(seed, target) for seed in range(150)}
    assert {seed: error for seed, error in errors.items() if not error < ROUNDING} == {}
