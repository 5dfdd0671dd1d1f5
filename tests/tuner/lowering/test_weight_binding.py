"""Weights are bound once: what a program does with them alone is done before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from numerics import relative_error
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import Body, function_module
from tuner.backends.protocol import PackingBackend, settings_for
from tuner.backends.registry import available_backends, make_backend
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_types import NUM_INPUTS_ATTRIBUTE
from tuner.graph.subgraph import SubGraph
from tuner.lowering.lower import build_module, build_reference, flat_arrays, lower_module
from tuner.lowering.machine import library_of
from tuner.lowering.outline import extract_function, extract_module, outline_partitions
from tuner.lowering.weight_binding import BIND_NAME, bound_arguments, bound_bytes, split_program
from tuner.measuring.worker.inputs import input_specs, own_intervals, random_inputs
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.rules.single import HostRule
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

op = relax.op

PROGRAMS: dict[str, tuple[Sequence[Sequence[int]], Body]] = {
    "matmul": ([(16, 32), (32, 48)], lambda x, w: op.matmul(x, w)),
    "transposed": ([(2, 8, 32), (48, 32)], lambda x, w: op.matmul(x, op.permute_dims(w))),
    "linear": (
        [(16, 32), (48, 32), (48,)],
        lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, op.permute_dims(w)), b)),
    ),
    "convolution": (
        [(1, 8, 9, 9), (16, 8, 3, 3), (1, 16, 1, 1)],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, padding=1, strides=2), b)),
    ),
    "window": ([(1, 16, 8, 8), (16, 16, 3, 3)], lambda x, w: op.nn.conv2d(x, w, padding=1)),
    "depthwise": (
        [(1, 8, 8, 8), (8, 1, 3, 3)],
        lambda x, w: op.nn.conv2d(x, w, padding=1, groups=8),
    ),
    "attention": (
        [(2, 16, 8), (2, 8, 16), (2, 16, 8)],
        lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, k)), v),
    ),
}


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


def marked_graph(shapes: Sequence[Sequence[int]], body: Body, dtypes: Sequence[str] = ()) -> DataflowGraph:
    """Return the graph of a function whose parameters are weights, except for the first."""
    module = function_module(shapes, body, dtypes)
    module["main"] = module["main"].with_attr(NUM_INPUTS_ATTRIBUTE, 1)
    return DataflowGraph.from_function(module)


def lowered_parts(graph: DataflowGraph, name: str, target: Target) -> tuple[Any, Any]:
    """Return the module of a graph, each product of which is one backend's, and what it is lowered to."""
    free = list(HostRule().find_candidates(graph))
    chosen = [CandidatePartition(each, FREE, "host") for each in free]
    for index in graph.all_indices - NodeSet.of(i for each in free for i in each.inside):
        is_product = graph.nodes[index].operator.endswith("matmul")
        part = SubGraph.of(graph, NodeSet.of([index]))
        chosen.append(CandidatePartition(part, name if is_product else "tvm", "test"))
    module = outline_partitions(graph, chosen)
    return module, lower_module(module, [make_backend(name), make_backend("tvm")], target)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", [each.name for each in available_backends(resolve_target("cpu"))])
def test_a_program_with_bound_weights_computes_the_same(program: str, name: str, target: Target) -> None:
    graph = marked_graph(*PROGRAMS[program])
    backend, whole = make_backend(name), SubGraph.of(graph, graph.all_indices)
    if backend.refusal(extract_function(graph, whole, name), target) is not None:
        return
    module = extract_module(graph, whole, name)
    arguments = random_inputs(input_specs(module), seed=1, own=own_intervals(module))
    results = run_module(build_module(lower_module(module, [backend], target), target), arguments, target)
    expected = run_module(build_reference(module, target), arguments, target)
    assert relative_error(results, expected) < 1e-5


@pytest.mark.parametrize("name", ["torch", "onnxruntime", "blas"])
def test_a_packed_weight_is_no_argument_of_a_call(name: str, target: Target) -> None:
    backend = make_backend(name)
    reason = backend.unavailable_reason(target)
    if reason is not None:
        pytest.skip(reason)
    graph = marked_graph(*PROGRAMS["transposed"])
    module = extract_module(graph, SubGraph.of(graph, graph.all_indices), name)
    machine = relax.VirtualMachine(build_module(lower_module(module, [backend], target), target), tvm.cpu())
    x, w = random_inputs(input_specs(module), seed=1)
    weight = tvm.runtime.tensor(w)
    _, *bound = arguments = bound_arguments(machine, [tvm.runtime.tensor(x), weight])
    assert bound
    assert all(not isinstance(each, tvm.runtime.Tensor) for each in bound)
    (first,) = flat_arrays(machine["main"](*arguments))
    assert relative_error([first], [x @ w.T]) < 1e-5
    # Other data, the same weights.
    (second,) = flat_arrays(machine["main"](tvm.runtime.tensor(2 * x), *bound))
    assert relative_error([second], [2 * x @ w.T]) < 1e-5


@pytest.mark.parametrize("program", ["transposed", "linear", "convolution", "window"])
@pytest.mark.parametrize("name", ["tvm", "nhwc", "packed_matmul", "torch"])
def test_bytes_that_are_bound_are_those_of_the_tensors_that_were_made(
    program: str, name: str, target: Target
) -> None:
    graph = marked_graph(*PROGRAMS[program])
    backend, whole = make_backend(name), SubGraph.of(graph, graph.all_indices)
    if backend.refusal(extract_function(graph, whole, name), target) is not None:
        return
    module = extract_module(graph, whole, name)
    lowered = lower_module(module, [backend], target)
    machine = relax.VirtualMachine(build_module(lowered, target), tvm.cpu())
    arguments = [tvm.runtime.tensor(each) for each in random_inputs(input_specs(module), seed=1)]
    given = {each.__array_interface__["data"][0] for each in map(np.from_dlpack, arguments)}
    made = [
        np.from_dlpack(each)
        for each in bound_arguments(machine, arguments)
        if isinstance(each, tvm.runtime.Tensor)
    ]
    assert bound_bytes(lowered) == sum(
        each.nbytes for each in made if each.__array_interface__["data"][0] not in given
    )


@pytest.mark.parametrize("program", ["matmul", "window"])
def test_two_programs_keep_weights_of_their_own(program: str, target: Target) -> None:
    shapes, body = PROGRAMS[program]
    ran = []
    for name in (each.name for each in available_backends(target) if isinstance(each, PackingBackend)):
        backend, graph = make_backend(name), marked_graph(shapes, body)
        whole = SubGraph.of(graph, graph.all_indices)
        if backend.refusal(extract_function(graph, whole, name), target) is not None:
            continue
        ran.append(name)
        module = extract_module(graph, whole, name)
        executable = build_module(lower_module(module, [backend], target), target)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        x = tvm.runtime.tensor(np.ones(shapes[0], "float32"))
        bound = [
            bound_arguments(machine, [x, tvm.runtime.tensor(np.full(shapes[1], value, "float32"))])
            for value in (1.0, 2.0)
        ]
        one, two, *again = [flat_arrays(machine["main"](*arguments))[0] for arguments in (*bound, *bound)]
        assert one.min() >= 1
        np.testing.assert_allclose(two, 2 * one, rtol=1e-5)
        for result, first in zip(again, (one, two), strict=True):
            np.testing.assert_array_equal(result, first)
    assert {"matmul": "blas", "window": "nhwc"}[program] in ran


def test_what_reads_weights_alone_is_done_when_they_are_bound(target: Target) -> None:
    module = function_module([(4, 8), (8, 8)], lambda x, w: op.matmul(x, op.exp(w)))
    module["main"] = module["main"].with_attr(NUM_INPUTS_ATTRIBUTE, 1)
    lowered = lower_module(module, [], target)
    bindings = [binding.value for block in lowered["main"].body.blocks for binding in block.bindings]
    assert [value.op.name for value in bindings if isinstance(value, relax.Call)] == ["relax.matmul"]
    x, w = random_inputs(input_specs(module), seed=1)
    (result,) = run_module(build_module(lowered, target), (x, w), target)
    assert relative_error([result], [x @ np.exp(w)]) < 1e-5


@pytest.mark.parametrize("name", ["blas", "tvm"])
def test_a_weight_that_several_steps_read_is_made_once(name: str, target: Target) -> None:
    def three_steps(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = op.tanh(op.matmul(x, op.permute_dims(w)))
        return x

    module, lowered = lowered_parts(marked_graph([(4, 8), (8, 8)], three_steps), name, target)
    machine = relax.VirtualMachine(build_module(lowered, target), tvm.cpu())
    x, w = random_inputs(input_specs(module), seed=1)
    arguments = bound_arguments(machine, [tvm.runtime.tensor(x), tvm.runtime.tensor(w)])
    assert len(arguments) == 2
    (result,) = flat_arrays(machine["main"](*arguments))
    expected = np.tanh(np.tanh(np.tanh(x @ w.T) @ w.T) @ w.T)
    assert relative_error([result], [expected]) < 1e-5


@pytest.mark.parametrize("num_inputs", [1, 2])
def test_a_program_apart_from_its_weights_has_no_constant(num_inputs: int, target: Target, capfd) -> None:
    def body(x: Any, w: Any) -> Any:
        product = op.matmul(x, op.permute_dims(w))
        return op.take(op.add(product, relax.const(np.arange(6, dtype="float32"))), relax.const(1), 1, "clip")

    module = function_module([(4, 8), (6, 8)], body)
    module["main"] = module["main"].with_attr(NUM_INPUTS_ATTRIBUTE, num_inputs)
    split = split_program(lower_module(module, [], target), num_inputs)
    assert [each.shape for each in split.constants] == [(6,), ()]
    x, w = random_inputs(input_specs(module), seed=1)
    executable = build_module(split.module, target)
    assert library_of(executable)
    assert "Scope" not in capfd.readouterr().err
    inputs, weights = (x, w)[:num_inputs], (x, w)[num_inputs:]
    made = run_module(build_module(split.maker, target), weights, target) if split.maker else list(weights)
    kept = [*made, *split.constants]
    (result,) = run_module(executable, (*inputs, *(kept[each.position] for each in split.bound)), target)
    assert relative_error([result], [(x @ w.T + np.arange(6))[:, 1]]) < 1e-5


def test_a_weight_that_is_stored_transposed_is_transposed_once_and_for_free(target: Target) -> None:
    graph = marked_graph([(4, 8), (6, 8)], lambda x, w: op.matmul(x, op.permute_dims(w)))
    (transposition,) = HostRule().find_candidates(graph)
    (product,) = graph.all_indices - transposition.inside
    assert graph.operators_of(transposition.inside) == ("permute_dims",)
    chosen = [
        CandidatePartition(transposition, FREE, "host"),
        CandidatePartition(SubGraph.of(graph, NodeSet.of([product])), "blas", "test"),
    ]
    module = outline_partitions(graph, chosen)
    executable = build_module(lower_module(module, [make_backend("blas")], target), target)
    x, w = random_inputs(input_specs(module), seed=1)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    _, *bound = bound_arguments(machine, [tvm.runtime.tensor(x), tvm.runtime.tensor(w)])
    assert all(not isinstance(each, tvm.runtime.Tensor) for each in bound), "the library packed what was made"
    (result,) = run_module(executable, (x, w), target)
    assert relative_error([result], [x @ w.T]) < 1e-5


def test_a_weight_of_bfloat16_is_widened_once_and_for_free_and_then_packed(target: Target) -> None:
    def product(x: Any, w: Any) -> Any:
        return op.matmul(x, op.permute_dims(op.astype(w, "float32")))

    graph = marked_graph([(4, 8), (32, 8)], product, ["float32", "bfloat16"])
    free = {graph.operators_of(each.inside): each for each in HostRule().find_candidates(graph)}
    assert set(free) == {("astype",), ("permute_dims",)}
    packed = make_backend("packed_matmul")
    (candidate,) = packed.rule(target).find_candidates(graph)
    assert graph.operators_of(candidate.inside) == ("permute_dims", "matmul")
    chosen = [
        CandidatePartition(free["astype",], FREE, "host"),
        CandidatePartition(candidate, "packed_matmul", "test"),
    ]
    module = outline_partitions(graph, chosen)
    lowered = lower_module(module, [packed], target)
    assert "astype" not in lowered["main"].script()
    assert "pack_panels" not in lowered["main"].script()
    executable = build_module(lowered, target)
    x, w = random_inputs(input_specs(module), seed=1)
    (result,) = run_module(executable, (x, w), target)
    assert relative_error([result], [x @ w.astype("float32").T]) < 1e-5


def test_what_is_widened_at_each_run_is_neither_free_nor_packed(target: Target) -> None:
    graph = marked_graph(
        [(8, 32), (4, 8)], lambda x, w: op.matmul(w, op.astype(x, "float32")), ["bfloat16", "float32"]
    )
    assert not list(HostRule().find_candidates(graph))
    assert not list(make_backend("packed_matmul").rule(target).find_candidates(graph))


@pytest.mark.parametrize("name", ["torch", "onnxruntime", "blas"])
def test_weights_made_when_they_are_bound_are_copied(name: str, target: Target, monkeypatch) -> None:
    # The memory plan uses a transposed weight's memory again for the next one, once the library has read it.
    backend = make_backend(name)
    reason = backend.unavailable_reason(target)
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(
        "tuner.runtime.blas_calls._least_s", lambda run: 0.0
    )  # the first way: as the matrix lies
    if name == "torch":
        monkeypatch.setattr("tuner.runtime.torch_calls._fastest", lambda runs: 0)

    def summed_products(x: Any, *weights: Any) -> Any:
        first, *others = [op.matmul(x, op.permute_dims(weight)) for weight in weights]
        for each in others:
            first = op.add(first, each)
        return first

    graph = marked_graph([(4, 16), *[(16, 16)] * 4], summed_products)
    module, lowered = lowered_parts(graph, name, target)
    executable = build_module(lowered, target)
    x, *weights = random_inputs(input_specs(module), seed=1)
    (result,) = run_module(executable, (x, *weights), target)
    assert relative_error([result], [x @ sum(weight.T for weight in weights)]) < 1e-5


def test_what_trains_or_depends_on_an_input_is_transposed_each_time(target: Target) -> None:
    shapes = [(4, 8), (6, 8)]

    def turned_product(x: Any, w: Any) -> Any:
        return op.matmul(x, op.permute_dims(w))

    trained = DataflowGraph.from_function(function_module(shapes, turned_product))
    assert not list(HostRule().find_candidates(trained))
    other = marked_graph(shapes, lambda x, w: op.matmul(w, op.permute_dims(x)))
    assert not list(HostRule().find_candidates(other))


def test_a_candidate_that_reads_weights_alone_runs(target: Target) -> None:
    graph = marked_graph([(4, 8), (6, 8)], lambda x, w: op.matmul(x, op.permute_dims(w)))
    (index,) = (index for index, node in enumerate(graph.nodes) if node.operator.endswith("permute_dims"))
    module = extract_module(graph, SubGraph.of(graph, NodeSet.of([index])), "tvm")
    lowered = lower_module(module, [make_backend("tvm")], target)
    (w,) = random_inputs(input_specs(module), seed=1)
    (result,) = run_module(build_module(lowered, target), (w,), target)
    assert relative_error([result], [w.T]) == 0.0


def test_a_function_that_does_not_know_its_weights_stays_whole(target: Target) -> None:
    module = function_module(*PROGRAMS["linear"])
    lowered = lower_module(module, [], target)
    assert BIND_NAME not in [variable.name_hint for variable, _ in lowered.functions_items()]


def test_records_tell_bound_weights_from_arguments(target: Target) -> None:
    shapes, body = PROGRAMS["transposed"]
    bound, free = marked_graph(shapes, body), DataflowGraph.from_function(function_module(shapes, body))
    keys = {
        (name, kind): settings_for(
            make_backend(name), extract_function(graph, SubGraph.of(graph, graph.all_indices), name)
        )
        for name in ("torch", "blas", "tvm")
        for kind, graph in (("bound", bound), ("free", free))
    }
    assert keys["torch", "bound"] == keys["blas", "bound"] == keys["tvm", "bound"] == "bound=0"
    assert keys["torch", "free"] == keys["blas", "free"] == keys["tvm", "free"] == ""
