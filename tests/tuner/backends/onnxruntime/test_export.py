"""Partitions written as ONNX compute what TVM computes, and weights are read once."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from numerics import relative_error
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import function_module, part_of, partition_module
from tuner.backends.protocol import settings_for
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.relax_types import NUM_INPUTS_ATTRIBUTE, WEIGHTS_ATTRIBUTE, weights_of
from tuner.graph.subgraph import SubGraph
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.lowering.outline import extract_function, extract_module
from tuner.lowering.weight_binding import bound_arguments
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tuner.backends.onnxruntime.export import onnx_refusal
from tuner.backends.onnxruntime.library import OnnxRuntime

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]

op = relax.op
IMAGE = [(1, 8, 9, 9)]
ROWS = [(2, 6, 8)]


def _batch_norm(x, gamma, beta, mean, variance):
    normalised = op.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, training=False)
    return op.nn.relu(relax.TupleGetItem(normalised, 0))


PROGRAMS = {
    "arithmetic": ([(4, 5), (4, 5)], lambda x, y: op.subtract(op.multiply(x, y), op.divide(x, op.exp(y)))),
    "pools": (
        IMAGE,
        lambda x: op.nn.adaptive_avg_pool2d(
            op.concat([op.nn.max_pool2d(x, (3, 3), (2, 2)), op.nn.avg_pool2d(x, (3, 3), (2, 2))], axis=1),
            (1, 1),
        ),
    ),
    "depthwise convolution": (
        [*IMAGE, (8, 1, 3, 3)],
        lambda x, w: op.clip(op.nn.conv2d(x, w, strides=2, padding=1, groups=8), 0.0, 6.0),
    ),
    "clamp": (
        ROWS,
        lambda x: op.where(
            op.greater(x, relax.const(0.75)),
            relax.const(0.75),
            op.where(op.less(x, relax.const(0.25)), relax.const(0.25), x),
        ),
    ),
    "batch norm": ([*IMAGE, (8,), (8,), (8,), (8,)], _batch_norm),
    "norms": (
        [*ROWS, (8,), (8,)],
        lambda x, g, b: op.nn.layer_norm(
            op.multiply(x, op.rsqrt(op.mean(op.power(x, relax.const(2.0)), [-1], keepdims=True))),
            g,
            b,
            axes=[-1],
        ),
    ),
    "reductions": (
        ROWS,
        lambda x: op.divide(op.sum(x, [-1], keepdims=True), op.subtract(op.max(x), op.min(x, [1, 2]))),
    ),
    "activations": (
        ROWS,
        lambda x: op.nn.silu(op.nn.gelu_tanh(op.nn.gelu(op.add(op.tanh(x), op.sigmoid(x))))),
    ),
    "movement": (
        ROWS,
        lambda x: op.permute_dims(op.strided_slice(op.expand_dims(x, 0), [2], [1], [5]), [0, 2, 1, 3]),
    ),
    "split": (
        ROWS,
        lambda x: op.nn.softmax(
            op.matmul(
                relax.TupleGetItem(op.split(x, 2, axis=-1), 0),
                op.permute_dims(relax.TupleGetItem(op.split(x, 2, axis=-1), 1), [0, 2, 1]),
            )
        ),
    ),
    "comparisons": (
        [(4, 5), (4, 5)],
        lambda x, y: op.where(
            op.logical_or(
                op.logical_and(op.less_equal(x, y), op.not_equal(op.floor(x), op.ceil(y))),
                op.logical_not(op.greater_equal(op.abs(x), op.square(y))),
            ),
            op.sin(x),
            op.cos(y),
        ),
    ),
    "equal to the largest": (
        ROWS,
        lambda x: op.where(
            op.equal(x, op.max(x, [-1], keepdims=True)),
            x,
            op.astype(op.expand_dims(op.subtract(op.argmax(x, 1), op.argmin(x, 1)), 1), "float32"),
        ),
    ),
    "no numbers": (
        ROWS,
        lambda x: op.where(
            op.isinf(op.log(op.nn.relu(op.subtract(x, relax.const(0.7))))),
            x,
            op.where(op.isnan(op.sqrt(op.subtract(x, relax.const(0.8)))), relax.const(3.0), relax.const(4.0)),
        ),
    ),
    "a row of each": (
        [*ROWS, (8, 4)],
        lambda x, w: op.matmul(op.take(x, relax.const(1, "int64"), axis=1, mode="clip"), w),
    ),
    "any": (
        ROWS,
        lambda x: op.astype(op.max(op.astype(op.less(x, relax.const(0.3)), "int8"), [-1]), "float32"),
    ),
    "one dimension": (
        [(2, 8, 9), (6, 8, 3)],
        lambda x, w: op.nn.adaptive_avg_pool1d(
            op.concat([op.nn.max_pool1d(op.nn.conv1d(x, w), 3, 2), op.nn.avg_pool1d(x, 5, 2)], axis=1), 1
        ),
    ),
    "look-up": (
        [(5, 4)],
        lambda table: op.take(table, relax.const(np.array([7, 0, 3], dtype="int64")), axis=0, mode="clip"),
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_written_computes_what_tvm_computes(program: str) -> None:
    target = resolve_target("cpu", num_threads=1)
    module = partition_module("onnxruntime", *PROGRAMS[program])
    assert OnnxRuntime().refusal(part_of(module), target) is None
    inputs = random_inputs(input_specs(module), seed=3, interval=(0.1, 1.0))
    results = run_module(build_module(lower_module(module, [OnnxRuntime()], target), target), inputs, target)
    expected = run_module(build_reference(module, target), inputs, target)
    assert relative_error(results, expected) < 1e-5


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (([(4, 4)], lambda x: op.sort(x)), "sort has no conversion"),
        (([(1, 8, 8, 4)], lambda x: op.nn.max_pool2d(x, layout="NHWC")), "NHWC"),
        (([(2, 2)], lambda x: op.astype(x, "uint8")), "uint8"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(program, reason: str) -> None:
    assert reason in str(onnx_refusal(part_of(partition_module("onnxruntime", *program))))


def _marked_product() -> DataflowGraph:
    module = function_module([(4, 8), (8, 3)], lambda x, w: op.matmul(x, w))
    module["main"] = module["main"].with_attr(NUM_INPUTS_ATTRIBUTE, 1)
    return DataflowGraph.from_function(module)


def test_weights_of_a_model_that_is_not_trained_are_marked() -> None:
    graph = _marked_product()
    function = extract_function(graph, SubGraph.of(graph, graph.all_indices), "onnxruntime")
    assert weights_of(function) == (1,)
    assert settings_for(OnnxRuntime(), function) == "bound=1"
    plain = function.without_attr(WEIGHTS_ATTRIBUTE)
    assert settings_for(OnnxRuntime(), plain) == ""


def test_stretches_are_proposed_where_weights_can_be_packed() -> None:
    target = resolve_target("cpu", num_threads=1)
    marked = _marked_product()
    plain = DataflowGraph.from_function(function_module([(4, 8), (8, 3)], lambda x, w: op.matmul(x, w)))
    found = [len(list(OnnxRuntime().rule(target).find_candidates(graph))) for graph in (marked, plain)]
    assert found == [2, 1]


def test_other_weights_give_other_results() -> None:
    target = resolve_target("cpu", num_threads=1)
    graph = _marked_product()
    module = extract_module(graph, SubGraph.of(graph, graph.all_indices), "onnxruntime")
    executable = build_module(lower_module(module, [OnnxRuntime()], target), target)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    rng = np.random.default_rng(0)
    for _ in range(3):
        weight = rng.random((8, 3), dtype=np.float32)
        kept = tvm.runtime.tensor(weight)
        for _ in range(2):
            x = rng.random((4, 8), dtype=np.float32)
            found = machine["main"](*bound_arguments(machine, [tvm.runtime.tensor(x), kept])).numpy()
            np.testing.assert_allclose(found, x @ weight, rtol=1e-5)
