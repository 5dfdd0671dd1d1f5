"""One search over several targets: equal to exhaustive search, copies between targets included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from dataflow_samples import graph_of, graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import UnpriceableError
from tuner.graph import DataflowGraph, PatternKind
from tuner.partition.assignment import Assignment, constrained
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.find_partition import Partition, find_candidates, find_partition
from tuner.partition.partition_spec import PartitionSpec
from tuner.partition.several_targets import numbered_by_target, specs_of_targets, target_of
from tuner.plan import Figure
from tuner.rules.single import OperatorByKind
from tuner.rules.styles import tvm_native_rule

pytestmark = pytest.mark.tvm

SPECS = specs_of_targets(
    {
        "cuda": [PartitionSpec("tvm", tvm_native_rule()), PartitionSpec("cudnn", OperatorByKind())],
        "llvm": [PartitionSpec("tvm", OperatorByKind())],
    }
)


def solve(
    graph: DataflowGraph,
    candidates: Sequence[CandidatePartition],
    latency_us: Sequence[float],
    copy_us: float,
) -> Partition:
    prices = [Figure(latency_us=each, source="given") for each in latency_us]
    return find_partition(graph, candidates, prices, launch_penalty_us=0.5, transition_penalty_us=copy_us)


def covers(
    graph: DataflowGraph, candidates: Sequence[CandidatePartition], covered: frozenset[int] = frozenset()
) -> Iterator[tuple[int, ...]]:
    """Yield every exact cover, as places of candidates."""
    missing = sorted(set(range(len(graph.nodes))) - covered)
    if not missing:
        yield ()
    for place, candidate in enumerate(candidates if missing else ()):
        inside = frozenset(candidate.sub_graph.inside)
        if missing[0] in inside and not inside & covered:
            yield from ((place, *rest) for rest in covers(graph, candidates, covered | inside))


def num_copies(candidates: Sequence[CandidatePartition], cover: Sequence[int]) -> int:
    """Count values by the targets that read them and did not make them; a part reads each once."""
    target = {
        node: candidates[place].backend.partition("@")[2]
        for place in cover
        for node in candidates[place].sub_graph.inside
    }
    return sum(
        target[value] != candidates[place].backend.partition("@")[2]
        for place in cover
        for value in candidates[place].sub_graph.input
    )


@settings(max_examples=40, deadline=None)
@given(st.data(), graphs(max_nodes=6), st.sampled_from([0.0, 1.0, 4.0]))
def test_the_search_equals_exhaustive_search(
    data: st.DataObject, graph: DataflowGraph, copy_us: float
) -> None:
    layered = graph.with_layers([f"h.{index}" for index in range(len(graph.nodes))])
    pinned = data.draw(st.lists(st.sampled_from(["", "*@llvm", "cudnn@cuda"]), max_size=len(graph.nodes)))
    assignments = [Assignment(f"h.{index}", (name,)) for index, name in enumerate(pinned) if name]
    candidates = find_candidates(layered, [constrained(spec, assignments) for spec in SPECS]).candidates
    latency_us = [float(data.draw(st.integers(1, 9))) for _ in candidates]
    partition = solve(layered, candidates, latency_us, copy_us)
    assert partition.proven
    best = min(
        sum(latency_us[place] + 0.5 for place in cover) + copy_us * num_copies(candidates, cover)
        for cover in covers(layered, candidates)
    )
    assert partition.cost_us == pytest.approx(best, abs=1e-4)
    for candidate in partition.chosen:
        names = {pinned[node] for node in candidate.sub_graph.inside if node < len(pinned)} - {""}
        assert names <= {"*@llvm"} if candidate.backend == "tvm@llvm" else names <= {candidate.backend}


def run(copy_us: float, *texts: str) -> list[str]:
    """Price the host half as fast, but for `cumsum`, which it runs faster; return who runs what."""
    graph = graph_of(
        [(), (0,), (1,)], kinds=[PatternKind.ELEMENTWISE] * 3, operators=["nn.relu", "cumsum", "nn.relu"]
    )
    specs = [constrained(spec, [Assignment.parse(text) for text in texts]) for spec in SPECS]
    found = find_candidates(graph, specs)
    candidates = [each for each in found.candidates if len(each.sub_graph.inside) == 1]
    slow = {("tvm@llvm", 0), ("tvm@llvm", 2), ("tvm@cuda", 1), ("cudnn@cuda", 1)}
    latency_us = [6.0 if (each.backend, each.sub_graph.inside.first) in slow else 3.0 for each in candidates]
    prices = [Figure(latency_us=each, source="given") for each in latency_us]
    partition = find_partition(
        graph,
        candidates,
        prices,
        launch_penalty_us=0.0,
        transition_penalty_us=copy_us,
        refused=found.report.refused,
    )
    return [target_of(each.backend) for each in partition.chosen]


def test_an_operator_goes_to_another_target_where_its_copies_are_worth_it() -> None:
    assert run(1.0) == ["cuda", "llvm", "cuda"]
    assert run(2.0) == ["cuda", "cuda", "cuda"]
    assert run(2.0, "cumsum=*@llvm") == ["cuda", "llvm", "cuda"]
    assert run(9.0, "cumsum=*@llvm") == ["llvm", "llvm", "llvm"]
    with pytest.raises(UnpriceableError, match=r"cumsum.*assigned by cumsum=\*@metal"):
        run(1.0, "cumsum=*@metal")


def test_what_costs_nothing_belongs_to_no_target() -> None:
    host = PartitionSpec(FREE, OperatorByKind())
    specs = specs_of_targets({"cuda": [host], "llvm": [host, PartitionSpec("tvm", OperatorByKind())]})
    assert [spec.backend for spec in specs] == [FREE, "tvm@llvm"]
    assert numbered_by_target(["tvm@a", "blas@a", "tvm@b", FREE]) == {
        "tvm@a": 0,
        "blas@a": 0,
        "tvm@b": 1,
        FREE: -1,
    }
    assert numbered_by_target(["tvm", "blas"]) == {"tvm": 1, "blas": 0, FREE: -1}


@pytest.mark.parametrize("specs", [{"": []}, {"a@b": []}, {"a": [PartitionSpec("x@y", OperatorByKind())]}])
def test_names_that_could_not_be_told_apart_are_refused(specs: dict[str, list[PartitionSpec]]) -> None:
    with pytest.raises(ValueError, match="joined by an @"):
        specs_of_targets(specs)
