"""Constraints by operator and by layer: others' candidates are refused, and the search stays exact."""

from __future__ import annotations

import pytest
from dataflow_samples import graph_of

from tests.harness.mock_pricer import MockPricer
from tuner.errors import UnpriceableError
from tuner.graph import DataflowGraph, PatternKind
from tuner.partition.assignment import Assignment, constrained
from tuner.partition.candidate import FREE
from tuner.partition.find_partition import find_candidates, find_partition
from tuner.partition.partition_spec import PartitionSpec
from tuner.rules.single import OperatorByKind
from tuner.rules.styles import tvm_native_rule

pytestmark = pytest.mark.tvm


def chain() -> DataflowGraph:
    graph = graph_of(
        [(), (0,), (1,)],
        kinds=[PatternKind.ELEMENTWISE] * 3,
        operators=["nn.relu", "nn.softmax", "nn.relu"],
    )
    return graph.with_layers(["h.0.mlp", "h.0.attn.score", "h.1.mlp"])


def parts(*texts: str) -> list[tuple[str, tuple[int, ...]]]:
    graph = chain()
    specs = [PartitionSpec("tvm", tvm_native_rule()), PartitionSpec("other", OperatorByKind())]
    assignments = [Assignment.parse(text) for text in texts]
    found = find_candidates(graph, [constrained(spec, assignments) for spec in specs])
    prices = MockPricer({"tvm": 1.0, "other": 5.0}).price(found.candidates)
    partition = find_partition(
        graph, found.candidates, prices, launch_penalty_us=0.0, refused=found.report.refused
    )
    assert partition.proven
    return [(each.backend, tuple(each.sub_graph.inside)) for each in partition.chosen]


def test_an_operator_runs_where_it_may() -> None:
    assert parts() == [("tvm", (0, 1, 2))]
    assert parts("nn.softmax=other") == [("tvm", (0,)), ("other", (1,)), ("tvm", (2,))]
    assert parts("*.attn.*=other") == parts("nn.softmax=other")
    assert parts("h.?.mlp=other", "nn.softmax=tvm,other") == [("other", (0,)), ("tvm", (1,)), ("other", (2,))]


def test_what_nobody_may_run_names_the_assignment() -> None:
    with pytest.raises(UnpriceableError, match=r"nn\.softmax.*assigned by nn\.softmax=torch"):
        parts("nn.softmax=torch")


def test_the_host_keeps_what_costs_nothing() -> None:
    host = PartitionSpec(FREE, OperatorByKind())
    assert constrained(host, [Assignment("*", ("tvm",))]) is host


@pytest.mark.parametrize("text", ["", "nn.softmax", "=tvm", "nn.softmax=", "nn.softmax= ,"])
def test_a_text_without_operators_or_backends_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write OPERATORS=BACKEND"):
        Assignment.parse(text)
