"""Outlined modules compute what the original does, whatever the partition."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from dataflow_samples import branchy_network, relax_module, transformer_block
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_module import plain_machine
from tvm import relax

from tuner.graph import DataflowGraph, NodeSet, SubGraph
from tuner.graph.relax_types import PARTITION_ATTRIBUTE
from tuner.lowering.outline import _LABEL_ATTRIBUTE, extract_module, order_partitions, outline_partitions
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.find_partition import find_partition

pytestmark = pytest.mark.tvm


def run(module: Any, arguments: Sequence[np.ndarray], function: str = "main") -> list[np.ndarray]:
    """Build with TVM's default pipeline and run; partitions are plain private functions to it."""
    plain = relax.transform.InlinePrivateFunctions()(module)
    machine = plain_machine(plain)
    result = machine[function](*[tvm.runtime.tensor(argument) for argument in arguments])
    return [result.numpy()] if hasattr(result, "numpy") else [field.numpy() for field in result]


def inputs_of(module: Any, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal([int(extent) for extent in parameter.ty.shape]).astype("float32")
        for parameter in module["main"].params
    ]


def parts_of(graph: DataflowGraph, *groups: Sequence[int], backend: str = "tvm") -> list[CandidatePartition]:
    return [CandidatePartition(SubGraph.of(graph, NodeSet.of(group)), backend, "test") for group in groups]


@st.composite
def partitions(draw: st.DrawFn, graph: DataflowGraph) -> list[CandidatePartition]:
    """Draw a partition of a graph: runs of nodes that stay convex, so that they can run in order."""
    chosen: list[CandidatePartition] = []
    start = 0
    while start < len(graph):
        end = draw(st.integers(start + 1, min(start + 5, len(graph))))
        backend = draw(st.sampled_from(["one", "other", FREE]))
        chosen += parts_of(graph, range(start, end), backend=backend)
        start = end
    return draw(st.permutations(chosen))


TRANSFORMER = transformer_block()
NETWORK = branchy_network()


@functools.cache
def expected(module: Any) -> np.ndarray:
    """Run a module as it is, once."""
    return run(module, inputs_of(module))[0]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from([TRANSFORMER, NETWORK]))
def test_any_partition_computes_the_same(data: st.DataObject, module: Any) -> None:
    graph = DataflowGraph.from_function(module)
    outlined = outline_partitions(graph, data.draw(partitions(graph)))
    arguments = inputs_of(module)
    (found,) = run(outlined, arguments)
    np.testing.assert_allclose(found, expected(module), rtol=1e-4, atol=1e-5)


def test_equal_partitions_share_one_function() -> None:
    graph = DataflowGraph.from_function(TRANSFORMER)
    groups = [[node.index] for node in graph.nodes]
    module = outline_partitions(graph, parts_of(graph, *groups))
    reshapes = [name for name in functions(module) if name.startswith("tvm_reshape")]
    assert len(reshapes) == 2  # three that split heads are one, and one merges them


def functions(module: Any) -> list[str]:
    return [
        variable.name_hint
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
        and function.attrs
        and PARTITION_ATTRIBUTE in function.attrs.keys()  # noqa: SIM118 - TVM's attributes are not a Mapping
    ]


def test_an_extracted_module_calls_one_partition_and_keeps_constants() -> None:
    weight = relax.const(np.eye(3, dtype="float32") * 2)

    def build(builder: Any, x: Any, y: Any) -> Any:
        unrelated = builder.emit(relax.op.abs(y))
        product = builder.emit(relax.op.matmul(x, weight))
        return builder.emit(relax.op.add(builder.emit(relax.op.nn.relu(product)), unrelated))

    graph = DataflowGraph.from_function(relax_module(build, x=(2, 3), y=(2, 3)))
    sub_graph = SubGraph.of(graph, NodeSet.of([1, 2])).with_label(graph, "matmul_relu")
    module = extract_module(graph, sub_graph, "blas")
    (name,) = functions(module)
    assert name == "blas_matmul_relu"
    assert str(module[name].attrs[_LABEL_ATTRIBUTE]) == "matmul_relu"
    assert [parameter.name for parameter in module["main"].params] == ["x"]
    (found,) = run(module, [np.full((2, 3), 1.5, "float32")])
    np.testing.assert_allclose(found, 3.0)


def test_several_exits_become_a_tuple() -> None:
    module = relax_module(
        lambda builder, x: builder.emit(
            relax.op.subtract(builder.emit(relax.op.nn.relu(x)), builder.emit(relax.op.abs(x)))
        ),
        x=(4,),
    )
    graph = DataflowGraph.from_function(module)
    outlined = outline_partitions(graph, parts_of(graph, [0, 1], [2]))
    x = np.asarray([-1.0, 2.0, -3.0, 4.0], "float32")
    np.testing.assert_allclose(run(outlined, [x])[0], np.maximum(x, 0) - np.abs(x))


def test_a_host_partition_stays_in_place() -> None:
    graph = DataflowGraph.from_function(NETWORK)
    module = outline_partitions(graph, parts_of(graph, range(len(graph)), backend=FREE))
    assert functions(module) == []


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 2], [1, 3]], "waits for itself"),
        ([[0], [1], [2]], "is in no partition"),
        ([[0, 1], [1, 2], [3]], "is in two partitions"),
    ],
)
def test_what_is_no_partition_is_refused(groups: list[list[int]], message: str) -> None:
    def build(builder: Any, x: Any) -> Any:
        a, b = builder.emit(relax.op.nn.relu(x)), builder.emit(relax.op.abs(x))
        return builder.emit(relax.op.add(a, b)), builder.emit(relax.op.subtract(b, a))

    graph = DataflowGraph.from_function(relax_module(build, x=(4,)))
    with pytest.raises(ValueError, match=message):
        order_partitions(graph, [part.sub_graph for part in parts_of(graph, *groups)])


def test_a_function_without_operators_is_partitioned_into_nothing() -> None:
    module = relax_module(lambda builder, x: x, x=(4,))
    graph = DataflowGraph.from_function(module)
    partition = find_partition(graph, [], [], launch_penalty_us=1.0)
    assert (partition.chosen, partition.cost_us, partition.proven) == ((), 0.0, True)
    x = np.arange(4, dtype="float32")
    np.testing.assert_array_equal(run(outline_partitions(graph, partition.chosen), [x])[0], x)
