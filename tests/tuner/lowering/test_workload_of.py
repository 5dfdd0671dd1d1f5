"""Descriptions: names and order do not matter, operators, attributes, shapes and scalars do."""

from typing import Any

import numpy as np
import pytest
from dataflow_samples import relax_module, transformer_block
from tvm import relax, tirx

from records.workload import Workload
from tuner.graph import DataflowGraph, NodeSet, SubGraph
from tuner.lowering.outline import extract_function
from tuner.lowering.workload_of import describe_graph, workload_of

pytestmark = pytest.mark.tvm


def described(build: Any, **shapes: tuple[int, ...]) -> Workload:
    return workload_of(relax_module(build, **shapes)["main"])


def scaled(factor: float) -> Workload:
    scalar = relax.const(factor, "float32")
    return described(lambda builder, x: builder.emit(relax.op.multiply(x, scalar)), x=(4, 8))


def test_names_and_order_do_not_matter() -> None:
    def one(builder: Any, x: Any, y: Any) -> Any:
        left = builder.emit(relax.op.nn.relu(x))
        return builder.emit(relax.op.subtract(left, builder.emit(relax.op.abs(y))))

    def other(builder: Any, b: Any, a: Any) -> Any:
        right = builder.emit(relax.op.abs(b))
        return builder.emit(relax.op.subtract(builder.emit(relax.op.nn.relu(a)), right))

    assert described(one, x=(4, 8), y=(4, 8)) == described(other, b=(4, 8), a=(4, 8))


def test_shapes_scalars_and_attributes_do_matter() -> None:
    def softmax(axis: int) -> Workload:
        return described(lambda builder, x: builder.emit(relax.op.nn.softmax(x, axis=axis)), x=(4, 8))

    assert scaled(0.5) == scaled(0.5)
    assert len({scaled(0.5).fingerprint, scaled(0.25).fingerprint}) == 2
    assert softmax(0) != softmax(1)


def test_which_side_a_scalar_is_on_matters() -> None:
    scalar = relax.const(2.0, "float32")
    right = described(lambda builder, x: builder.emit(relax.op.subtract(x, scalar)), x=(4,))
    left = described(lambda builder, x: builder.emit(relax.op.subtract(scalar, x)), x=(4,))
    assert right != left


def test_weights_are_marked_and_their_values_do_not_matter() -> None:
    def product(seed: int) -> Workload:
        weight = relax.const(np.random.default_rng(seed).random((8, 3), dtype=np.float32))
        return described(lambda builder, x: builder.emit(relax.op.matmul(x, weight)), x=(4, 8))

    assert product(0) == product(1)
    assert [tensor.constant for tensor in product(0).inputs] == [False, True]
    assert product(0).flops == 2 * 4 * 8 * 3
    assert product(0).constant_bytes == 8 * 3 * 4


def test_repeated_parts_have_one_fingerprint() -> None:
    graph = DataflowGraph.from_function(transformer_block())
    reshapes = [node.index for node in graph.nodes if node.operator == "reshape"][:3]
    parts = [SubGraph.of(graph, NodeSet.of([index])) for index in reshapes]
    prints = {workload_of(extract_function(graph, part, "tvm")).fingerprint for part in parts}
    assert len(prints) == 1


def test_parameters_and_role_are_part_of_it() -> None:
    graph = DataflowGraph.from_function(transformer_block())
    plain = describe_graph(graph)
    assert describe_graph(graph, "model") != plain
    assert describe_graph(graph, "kernel", (("threads", "1"),)) != plain
    assert Workload.from_json(plain.to_json()) == plain


def test_symbolic_shapes_are_refused() -> None:
    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.relu(x))
        builder.emit_func_output(result)
    with pytest.raises(ValueError, match="symbolic"):
        workload_of(builder.get()["main"])


def test_numbers_that_say_where_a_slice_begins_are_attributes() -> None:
    def sliced(begin: int) -> Workload:
        return described(
            lambda builder, x: builder.emit(relax.op.strided_slice(x, [1], [begin], [begin + 2])), x=(4, 8)
        )

    assert len(sliced(0).inputs) == 1
    assert sliced(0) != sliced(1)
