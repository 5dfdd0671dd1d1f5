"""Batch normalisation is folded into a convolution where both never change, and computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from numerics import relative_error
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import function_module
from tuner.backends.registry import make_backend
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_types import NUM_INPUTS_ATTRIBUTE, PREPARE_NAME
from tuner.graph.subgraph import SubGraph
from tuner.lowering.batch_norm_folding import fold_batch_norms
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.lowering.outline import outline_partitions
from tuner.measuring.worker.inputs import POSITIVE, input_specs, own_intervals, random_inputs
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op

CHANNEL = [(8,)] * 4
SHAPES = [(1, 4, 9, 9), (8, 4, 3, 3), *CHANNEL]


def normalised(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any, epsilon: float = 1e-5) -> Any:
    whole = op.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, epsilon=epsilon, training=False)
    return relax.TupleGetItem(whole, 0)


def plain(x: Any, w: Any, *parameters: Any) -> Any:
    return op.nn.relu(normalised(op.nn.conv2d(x, w, padding=1, strides=2), *parameters, epsilon=1e-3))


def grouped(x: Any, w: Any, *parameters: Any) -> Any:
    return normalised(op.nn.conv2d(x, w, groups=8), *parameters)


def shared_filters(x: Any, w: Any, *parameters: Any) -> Any:
    first = normalised(op.nn.conv2d(x, w, padding=1), *parameters)
    return op.add(first, op.nn.conv2d(x, w, padding=1))


def twice(x: Any, w: Any, *parameters: Any) -> Any:
    first = normalised(op.nn.conv2d(x, w, padding=1), *parameters[:4])
    return normalised(op.nn.conv2d(op.nn.relu(first), parameters[4], padding=1), *parameters[5:])


def before_and_after(x: Any, w: Any, *parameters: Any) -> Any:
    first = op.nn.relu(normalised(x, *parameters[:4]))
    return normalised(op.nn.conv2d(first, w, padding=1), *parameters[4:])


def biased(x: Any, w: Any, bias: Any, *parameters: Any) -> Any:
    sums = op.add(op.nn.conv2d(x, w, padding=1), op.reshape(bias, (1, -1, 1, 1)))
    return op.nn.relu(normalised(sums, *parameters))


def biased_from_the_left(x: Any, w: Any, bias: Any, *parameters: Any) -> Any:
    return normalised(op.add(bias, op.nn.conv2d(x, w, padding=1)), *parameters)


def biased_by_a_row(x: Any, w: Any, bias: Any, *parameters: Any) -> Any:
    return normalised(op.add(op.nn.conv2d(x, w, padding=1), bias), *parameters)


def with_a_bias_of_two(x: Any, w: Any, bias: Any, *parameters: Any) -> Any:
    shaped = op.reshape(bias, (1, -1, 1, 1))
    first = normalised(op.add(op.nn.conv2d(x, w, padding=1), shaped), *parameters)
    return op.add(first, op.reshape(bias, (1, 8, 1, 1)))


def along_one_axis(x: Any, w: Any, bias: Any, *parameters: Any) -> Any:
    return normalised(op.add(op.nn.conv1d(x, w, padding=1), op.reshape(bias, (1, -1, 1))), *parameters)


def along_three_axes(x: Any, w: Any, *parameters: Any) -> Any:
    return normalised(op.nn.conv3d(x, w, padding=1), *parameters)


def marked(shapes: Any, body: Any) -> Any:
    module = function_module(shapes, body)
    module["main"] = module["main"].with_attr(NUM_INPUTS_ATTRIBUTE, 1)
    return module


def operators(module: Any) -> list[str]:
    return [node.operator for node in DataflowGraph.from_function(module).nodes]


@pytest.mark.parametrize(
    ("shapes", "body", "expected"),
    [
        (SHAPES, plain, ["nn.conv2d", "add", "nn.relu"]),
        ([(1, 8, 9, 9), (8, 1, 3, 3), *CHANNEL], grouped, ["nn.conv2d", "add"]),
        ([(1, 4, 9), (8, 4, 3), (8,), *CHANNEL], along_one_axis, ["nn.conv1d", "add"]),
        ([(1, 4, 5, 5, 5), (8, 4, 3, 3, 3), *CHANNEL], along_three_axes, ["nn.conv3d", "add"]),
        ([*SHAPES[:2], (8,), *CHANNEL], biased, ["nn.conv2d", "add", "nn.relu"]),
        ([*SHAPES[:2], (1, 8, 1, 1), *CHANNEL], biased_from_the_left, ["nn.conv2d", "add"]),
        ([*SHAPES[:2], (8,), *CHANNEL], with_a_bias_of_two, ["nn.conv2d", "add", "reshape", "add"]),
        (SHAPES, shared_filters, ["nn.conv2d", "add", "nn.conv2d", "add"]),
        (
            [(1, 8, 9, 9), (8, 8, 3, 3), *CHANNEL, *CHANNEL],
            before_and_after,
            ["nn.batch_norm", "nn.relu", "nn.conv2d", "add"],
        ),
        (
            [*SHAPES, (8, 8, 3, 3), *CHANNEL],
            twice,
            ["nn.conv2d", "add", "nn.relu", "nn.conv2d", "add"],
        ),
    ],
)
def test_a_folded_function_computes_what_it_did(shapes: Any, body: Any, expected: list[str]) -> None:
    module, target = marked(shapes, body), resolve_target("cpu", num_threads=1)
    folded = fold_batch_norms(module)
    assert sorted(name.removeprefix("relax.") for name in operators(folded)) == sorted(expected)
    graph = DataflowGraph.from_function(folded)
    parts = [
        CandidatePartition(SubGraph.of(graph, NodeSet.of([index])), FREE, "host")
        for index in graph.all_indices
    ]
    outlined = outline_partitions(graph, parts)
    # It takes the weights that the model has, variances among them.
    assert input_specs(outlined) == input_specs(module)
    variances = {position for position, each in own_intervals(outlined).items() if each == POSITIVE}
    assert variances == {position for position, each in own_intervals(module).items() if each == POSITIVE}
    arguments = random_inputs(input_specs(outlined), seed=1, own=own_intervals(outlined))
    results = run_module(build_module(lower_module(outlined, [], target), target), arguments, target)
    expected_results = run_module(build_reference(module, target), arguments, target)
    assert np.isfinite(results[0]).all()
    assert relative_error(results, expected_results) < 1e-5


def test_a_partition_reads_folded_weights_once() -> None:
    module, target = marked(SHAPES, plain), resolve_target("cpu", num_threads=1)
    graph = DataflowGraph.from_function(fold_batch_norms(module))
    whole = CandidatePartition(SubGraph.of(graph, graph.all_indices), "tvm", "rule")
    outlined = outline_partitions(graph, [whole])
    lowered = lower_module(outlined, [make_backend("tvm")], target)
    # The input, filters and shift.
    assert len(lowered["main"].params) == 3
    arguments = random_inputs(input_specs(outlined), seed=2, own=own_intervals(outlined))
    results = run_module(build_module(lowered, target), arguments, target)
    assert relative_error(results, run_module(build_reference(module, target), arguments, target)) < 1e-5


def test_what_is_read_before_it_is_normalised_is_not_folded() -> None:
    builder = relax.BlockBuilder()
    parameters = [
        relax.Var(f"p{number}", relax.TensorType(shape, "float32")) for number, shape in enumerate(SHAPES)
    ]
    with builder.function("main", parameters, attrs={NUM_INPUTS_ATTRIBUTE: 1}):
        with builder.dataflow():
            convolved = builder.emit(op.nn.conv2d(parameters[0], parameters[1], padding=1))
            result = builder.emit_output(op.add(normalised(convolved, *parameters[2:]), convolved))
        builder.emit_func_output(result)
    module = builder.get()
    assert fold_batch_norms(module) is module


@pytest.mark.parametrize("shape", [(9,), (1, 8, 9, 9), (1, 1, 1, 1)])
def test_a_sum_with_another_tensor_is_no_bias(shape: tuple[int, ...]) -> None:
    module = marked([*SHAPES[:2], shape, *CHANNEL], biased_by_a_row)
    assert fold_batch_norms(module) is module


def test_a_sum_of_unknown_extents_is_no_bias() -> None:
    rows = tvm.tirx.Var("rows", "int64")
    module = marked([(1, 4, rows, 9), (8, 4, 3, 3), (1, 8, rows, 9), *CHANNEL], biased_by_a_row)
    assert fold_batch_norms(module) is module


def test_weights_that_are_trained_are_not_folded() -> None:
    module = function_module(SHAPES, plain)
    assert fold_batch_norms(module) is module


def test_statistics_of_the_batch_are_not_folded() -> None:
    def body(x: Any, w: Any, *parameters: Any) -> Any:
        whole = op.nn.batch_norm(op.nn.conv2d(x, w, padding=1), *parameters, axis=1, training=True)
        return relax.TupleGetItem(whole, 0)

    module = marked(SHAPES, body)
    folded = fold_batch_norms(module)
    assert PREPARE_NAME not in [variable.name_hint for variable in folded.get_global_vars()]
