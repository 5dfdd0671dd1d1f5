"""What every backend must do, registered or one's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest
from numerics import relative_error
from tvm import relax

from tests.harness.run_module import run_module
from tests.samples.partition_samples import Body, function_module, part_of, partition_module
from tuner.backends.protocol import Backend
from tuner.backends.registry import available_backends, backend_names, make_backend
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_types import PARTITION_ATTRIBUTE
from tuner.graph.subgraph import SubGraph
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.lowering.outline import extract_function, outline_partitions
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

op = relax.op

PROGRAMS: dict[str, tuple[Sequence[Sequence[int]], Body]] = {
    "linear": (
        [(16, 32), (48, 32), (48,)],
        lambda x, w, b: op.nn.relu(op.add(op.matmul(x, op.permute_dims(w)), b)),
    ),
    "attention": (
        [(2, 16, 8), (2, 16, 8), (2, 16, 8)],
        lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 2, 1]))), v),
    ),
    "batch of rows": ([(2, 4, 32), (32, 16)], lambda x, w: op.matmul(x, w)),
    "both transposed": ([(32, 16), (24, 32)], lambda x, w: op.matmul(op.permute_dims(x), op.permute_dims(w))),
    "convolution": (
        [(1, 8, 8, 8), (16, 8, 3, 3), (1, 16, 1, 1)],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, padding=1), b)),
    ),
    "normalised": (
        [(4, 32), (32,), (32,)],
        lambda x, g, b: op.nn.softmax(op.nn.layer_norm(x, g, b, axes=[-1])),
    ),
}


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


def references() -> list[str]:
    """Return every backend that can run here, and one of one's own."""
    found = available_backends(resolve_target("cpu", num_threads=1))
    return [*(backend.reference for backend in found), "examples.own_backend:OwnBackend"]


@pytest.fixture(params=references())
def backend(request: pytest.FixtureRequest) -> Backend:
    return make_backend(request.param)


@pytest.mark.parametrize("name", backend_names())
def test_a_registered_backend_runs_here_or_says_why_not(name: str, target: Target) -> None:
    reason = make_backend(name).unavailable_reason(target)
    assert reason is None or (reason and "\n" not in reason)


def test_its_reference_makes_it_again(backend: Backend) -> None:
    again = make_backend(backend.reference)
    assert (again.name, again.settings, again.reference) == (
        backend.name,
        backend.settings,
        backend.reference,
    )


def test_its_versions_are_pairs_sorted_by_name(backend: Backend) -> None:
    versions = backend.versions()
    assert list(versions) == sorted(versions)
    assert all(name and version for name, version in versions)


@pytest.mark.parametrize("program", PROGRAMS)
def test_whatever_it_does_not_refuse_it_computes_right(
    program: str, backend: Backend, target: Target
) -> None:
    module = partition_module(backend.name, *PROGRAMS[program])
    if backend.refusal(part_of(module), target) is not None:
        return
    inputs = random_inputs(input_specs(module), seed=1)
    lowered = lower_module(module, [backend], target)
    results = run_module(build_module(lowered, target), inputs, target)
    expected = run_module(build_reference(module, target), inputs, target)
    assert relative_error(results, expected) < 1e-5


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(name, marks=() if name in ("linear", "attention", "convolution") else pytest.mark.slow)
        for name in PROGRAMS
    ],
)
def test_each_of_its_candidates_runs_where_the_rest_is_left_to_tvm(
    program: str, backend: Backend, target: Target
) -> None:
    shapes, body = PROGRAMS[program]
    graph = DataflowGraph.from_function(function_module(shapes, body))
    (spec, _) = gather_specs([backend], target)
    inputs = None
    for sub_graph in islice(spec.rule.find_candidates(graph), 2):
        if backend.refusal(extract_function(graph, sub_graph, backend.name), target) is not None:
            continue
        rest = [
            CandidatePartition(SubGraph.of(graph, NodeSet.of([index])), FREE, "rest")
            for index in graph.all_indices
            if index not in sub_graph.inside
        ]
        try:
            module = outline_partitions(graph, [CandidatePartition(sub_graph, backend.name, "rule"), *rest])
        except ValueError:
            continue  # the candidate waits for itself through others: not a valid partition
        inputs = inputs or random_inputs(input_specs(module), seed=2)
        results = run_module(build_module(lower_module(module, [backend], target), target), inputs, target)
        expected = run_module(build_reference(module, target), inputs, target)
        assert relative_error(results, expected) < 1e-5


def test_lowering_leaves_no_partition_of_its_own(backend: Backend, target: Target) -> None:
    for shapes, body in PROGRAMS.values():
        module = partition_module(backend.name, shapes, body)
        if backend.refusal(part_of(module), target) is not None:
            continue
        before = module.script()
        lowered = backend.lower(module, ["part"], target)
        assert module.script() == before, "lowering returns another module and leaves its argument alone"
        attributes = lowered["part"].attrs
        assert attributes is None or PARTITION_ATTRIBUTE not in attributes.keys()  # noqa: SIM118 - TVM's maps
