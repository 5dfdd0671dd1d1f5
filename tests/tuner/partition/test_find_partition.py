"""Partition search: upstream's cases, exhaustive search, and what it says when nothing can be done."""

import dataclasses
from collections.abc import Iterator, Sequence

import pytest
from dataflow_samples import GivenSubGraphs, graph_of, graphs, sub_graph, transformer_block
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.mock_pricer import MockPricer
from tuner.errors import UnpriceableError
from tuner.graph import DataflowGraph, NodeSet, PatternKind, SubGraph, SubGraphLimits
from tuner.lowering.outline import order_partitions
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.find_partition import (
    Partition,
    RefusedCandidate,
    SearchProgress,
    find_candidates,
    find_partition,
)
from tuner.partition.partition_spec import PartitionSpec
from tuner.partition.price import Invalid, Price, Unknown
from tuner.plan import Figure
from tuner.rules.combinators import OnlyValid
from tuner.rules.combine import ByKind, Combine
from tuner.rules.protocol import Rule
from tuner.rules.single import OperatorByKind, OperatorByPredicate
from tuner.rules.styles import tvm_native_rule

pytestmark = pytest.mark.tvm

RELU3 = graph_of([(), (0,), (1,)], kinds=[PatternKind.ELEMENTWISE] * 3, operators=["nn.relu"] * 3)


def test_the_mock_discounts_each_further_operator() -> None:
    graph = graph_of([(), (0,), (1,)])
    pair = CandidatePartition(sub_graph(graph, 0, 1), "tvm", "test")
    (price,) = MockPricer({"tvm": 3.0}).price([pair])
    assert isinstance(price, Figure)
    assert price.latency_us == pytest.approx(5.7)
    assert MockPricer({}).price([pair]) == (Unknown(),)


def grown(rule: Rule, max_depth: int) -> Rule:
    limits = SubGraphLimits(max_depth=max_depth)
    anything = (ByKind(PatternKind.ANCHOR, PatternKind.ANCHOR),)
    return OnlyValid(Combine(rule=rule, combiners=anything, max_depth=max_depth), limits)


def solve(graph: DataflowGraph, specs: Sequence[PartitionSpec], **cost_us: float) -> Partition:
    found = find_candidates(graph, specs)
    prices = MockPricer(cost_us).price(found.candidates)
    return find_partition(graph, found.candidates, prices, launch_penalty_us=0.0)


def parts(partition: Partition) -> list[tuple[str, tuple[int, ...]]]:
    return [(candidate.backend, tuple(candidate.sub_graph.inside)) for candidate in partition.chosen]


@pytest.mark.parametrize(("tvm", "other", "expected"), [(1.0, 2.0, "tvm"), (2.0, 1.0, "other")])
def test_the_cheaper_backend_is_chosen(tvm: float, other: float, expected: str) -> None:
    graph = graph_of([()], operators=["nn.relu"])
    specs = [PartitionSpec("tvm", OperatorByKind()), PartitionSpec("other", OperatorByKind())]
    partition = solve(graph, specs, tvm=tvm, other=other)
    assert parts(partition) == [(expected, (0,))]
    (runner_up,) = partition.runner_ups
    assert runner_up == ("other" if expected == "tvm" else "tvm", 2.0)
    assert (partition.cost_us, partition.proven) == (1.0, True)


def test_the_diamond_mixes_backends() -> None:
    # r = relu(x); a = abs(r); q = relu(a); add(a, q)
    graph = graph_of(
        [(), (0,), (1,), (1, 2)],
        kinds=[PatternKind.ELEMENTWISE] * 4,
        operators=["nn.relu", "abs", "nn.relu", "add"],
    )
    can_do = OperatorByPredicate("other", lambda node: node.operator != "abs")
    specs = [PartitionSpec("tvm", OperatorByKind()), PartitionSpec("other", grown(can_do, 3))]
    partition = solve(graph, specs, tvm=2.0, other=1.0)
    assert parts(partition) == [("other", (0,)), ("tvm", (1,)), ("other", (2, 3))]


@pytest.mark.parametrize(
    ("tvm_depth", "expected"),
    [
        (1, [("other", (0,)), ("other", (1,)), ("other", (2,))]),
        (2, [("other", (0,)), ("tvm", (1, 2))]),
        (3, [("tvm", (0, 1, 2))]),
    ],
)
def test_depth_decides(tvm_depth: int, expected: list[tuple[str, tuple[int, ...]]]) -> None:
    specs = [
        PartitionSpec("tvm", grown(OperatorByKind(), tvm_depth)),
        PartitionSpec("other", OperatorByKind()),
    ]
    assert parts(solve(RELU3, specs, tvm=100.0, other=99.0)) == expected


def test_an_operator_that_only_a_fault_of_the_machine_stopped_is_to_be_tried_again() -> None:
    candidates = [CandidatePartition(sub_graph(RELU3, index), "tvm", "test") for index in range(3)]
    figure = Figure(latency_us=1.0, source="given")
    prices: list[Price] = [figure, Invalid("error: not by the program: the process was killed"), figure]
    with pytest.raises(UnpriceableError, match="run the same command again: what was measured is in the rec"):
        find_partition(RELU3, candidates, prices, launch_penalty_us=0.0)


def test_an_operator_that_nobody_runs_is_named_with_every_reason() -> None:
    candidates = [CandidatePartition(sub_graph(RELU3, index), "tvm", "test") for index in range(3)]
    figure = Figure(latency_us=1.0, source="given")
    refused = RefusedCandidate(CandidatePartition(sub_graph(RELU3, 1), "blas", "test"), "it is no product")
    prices: list[Price] = [figure, Invalid("it crashed"), figure]
    with pytest.raises(
        UnpriceableError, match=r"nn\.relu \(node 1\).*blas: it is no product; tvm: it crashed"
    ):
        find_partition(RELU3, candidates, prices, launch_penalty_us=0.0, refused=[refused])
    with pytest.raises(UnpriceableError, match="none proposes it"):
        find_partition(RELU3, candidates[:2], [figure, figure], launch_penalty_us=0.0)
    with pytest.raises(UnpriceableError, match="has not been measured"):
        find_partition(RELU3, candidates, [figure, Unknown(), figure], launch_penalty_us=0.0)


def test_candidates_that_only_overlap_are_an_error() -> None:
    candidates = [
        CandidatePartition(sub_graph(RELU3, 0, 1), "tvm", "test"),
        CandidatePartition(sub_graph(RELU3, 1, 2), "tvm", "test"),
    ]
    figure = Figure(latency_us=1.0, source="given")
    with pytest.raises(UnpriceableError, match="overlap"):
        find_partition(RELU3, candidates, [figure, figure], launch_penalty_us=0.0)


def test_refused_candidates_are_reported_with_their_reason() -> None:
    spec = PartitionSpec(
        "other", OperatorByKind(), lambda graph, part: None if 1 in part.inside else "not the one"
    )
    found = find_candidates(RELU3, [spec])
    assert [tuple(each.sub_graph.inside) for each in found.candidates] == [(1,)]
    assert [each.reason for each in found.report.refused] == ["not the one"] * 2
    assert found.report.num_by_rule == {("other", "operator"): 1}


def test_what_is_not_convex_is_refused() -> None:
    found = find_candidates(RELU3, [PartitionSpec("other", GivenSubGraphs("given", (NodeSet.of([0, 2]),)))])
    assert not found.candidates
    assert "comes back" in found.report.refused[0].reason


def test_the_host_costs_nothing() -> None:
    candidates = [
        *(CandidatePartition(sub_graph(RELU3, index), "tvm", "test") for index in range(3)),
        CandidatePartition(sub_graph(RELU3, 1), FREE, "host"),
    ]
    prices: list[Price] = [Figure(latency_us=1.0, source="given")] * 3 + [Unknown()]
    partition = find_partition(RELU3, candidates, prices, launch_penalty_us=10.0)
    assert partition.cost_us == pytest.approx(22.0)
    assert parts(partition)[1] == (FREE, (1,))


def test_penalties_are_not_negative_and_prices_are_one_each() -> None:
    with pytest.raises(ValueError, match="below 0"):
        find_partition(RELU3, [], [], launch_penalty_us=-1.0)
    with pytest.raises(ValueError, match="1 prices"):
        find_partition(RELU3, [], [Unknown()], launch_penalty_us=0.0)


@st.composite
def priced(draw: st.DrawFn) -> tuple[DataflowGraph, list[CandidatePartition], list[Price]]:
    """Draw a graph, TVM's candidates and another backend's single operators, and whole prices."""
    graph = draw(graphs(max_nodes=8))
    specs = [PartitionSpec("tvm", tvm_native_rule()), PartitionSpec("other", OperatorByKind())]
    candidates = list(find_candidates(graph, specs).candidates)
    prices: list[Price] = [
        Figure(latency_us=float(draw(st.integers(1, 9))), source="given") for _ in candidates
    ]
    return graph, candidates, prices


Priced = tuple[DataflowGraph, list[CandidatePartition], list[Price]]


@settings(max_examples=60, deadline=None)
@given(priced(), st.sampled_from([0.0, 0.5, 3.0]), st.sampled_from([0.0, 2.0]))
def test_the_search_equals_exhaustive_search(case: Priced, launch_us: float, transition_us: float) -> None:
    graph, candidates, prices = case
    partition = find_partition(
        graph, candidates, prices, launch_penalty_us=launch_us, transition_penalty_us=transition_us
    )
    assert partition.proven
    cheapest = min(
        sum(latency_us[part] for part in cover)
        + launch_us * len(cover)
        + transition_us * num_transitions(graph, cover)
        for latency_us in [
            dict(zip(candidates, (price.latency_us for price in figures(prices)), strict=True))
        ]
        for cover in covers(graph, candidates)
    )
    assert partition.cost_us == pytest.approx(cheapest, abs=1e-4)


NOTHING = NodeSet()


def figures(prices: Sequence[Price]) -> list[Figure]:
    return [price for price in prices if isinstance(price, Figure)]


def covers(
    graph: DataflowGraph, candidates: Sequence[CandidatePartition], covered: NodeSet = NOTHING
) -> Iterator[tuple[CandidatePartition, ...]]:
    """Yield every exact cover; those of one exit and no taps can all run in some order."""
    uncovered = graph.all_indices - covered
    if not uncovered:
        yield ()
        return
    for part in candidates:
        inside = part.sub_graph.inside
        if uncovered.first in inside and inside.is_disjoint(covered):
            for rest in covers(graph, candidates, covered | inside):
                yield (part, *rest)


@settings(max_examples=40, deadline=None)
@given(priced(), st.randoms(use_true_random=False))
def test_order_of_candidates_does_not_change_the_cost(case: Priced, random: st.DataObject) -> None:
    graph, candidates, prices = case
    pairs = list(zip(candidates, prices, strict=True))
    straight = find_partition(graph, candidates, prices, launch_penalty_us=0.5)
    random.shuffle(pairs)  # type: ignore[attr-defined]  # hypothesis' randoms are random.Random
    shuffled = find_partition(graph, [c for c, _ in pairs], [p for _, p in pairs], launch_penalty_us=0.5)
    assert shuffled.cost_us == straight.cost_us
    assert find_partition(graph, candidates, prices, launch_penalty_us=0.5) == straight


@settings(max_examples=40, deadline=None)
@given(priced(), st.lists(st.integers(0, 20), min_size=2, max_size=4))
def test_a_larger_launch_penalty_never_makes_more_parts(case: Priced, penalties: list[int]) -> None:
    graph, candidates, prices = case
    counts = [
        len(find_partition(graph, candidates, prices, launch_penalty_us=float(penalty)).chosen)
        for penalty in sorted(penalties)
    ]
    assert counts == sorted(counts, reverse=True)


@settings(max_examples=40, deadline=None)
@given(priced(), st.lists(st.integers(0, 20), min_size=2, max_size=4))
def test_a_larger_transition_penalty_never_makes_more_transitions(case: Priced, penalties: list[int]) -> None:
    graph, candidates, prices = case
    counts = []
    for penalty in sorted(set(penalties)):
        partition = find_partition(
            graph, candidates, prices, launch_penalty_us=0.0, transition_penalty_us=float(penalty)
        )
        counts.append(num_transitions(graph, partition.chosen))
        latency_us = sum(figure.latency_us for figure in partition.figures)
        assert partition.cost_us == pytest.approx(latency_us + penalty * counts[-1])
    assert counts == sorted(counts, reverse=True)


def num_transitions(graph: DataflowGraph, parts: Sequence[CandidatePartition]) -> int:
    """Count the values that a part reads from another backend."""
    owner = {index: part for part in parts for index in part.sub_graph.inside}
    read = {(index, part) for part in parts for index in part.sub_graph.input}
    return sum(owner[index].backend != part.backend for index, part in read)


@settings(max_examples=40, deadline=None)
@given(priced())
def test_the_mix_is_never_worse_than_a_single_backend(case: Priced) -> None:
    graph, candidates, prices = case
    mix = find_partition(graph, candidates, prices, launch_penalty_us=1.0)
    order_partitions(graph, [part.sub_graph for part in mix.chosen])
    pairs = [(c, p) for c, p in zip(candidates, prices, strict=True) if c.backend == "tvm"]
    alone = find_partition(graph, [c for c, _ in pairs], [p for _, p in pairs], launch_penalty_us=1.0)
    assert mix.cost_us <= alone.cost_us


def test_more_candidates_of_the_same_nodes_keep_the_cheapest() -> None:
    part = SubGraph.of(RELU3, NodeSet.of([0, 1, 2]))
    candidates = [CandidatePartition(part, "tvm", rule) for rule in ("one", "two")]
    prices = [Figure(latency_us=latency_us, source="given") for latency_us in (3.0, 2.0)]
    partition = find_partition(RELU3, candidates, prices, launch_penalty_us=0.0)
    assert [each.rule for each in partition.chosen] == ["two"]


def test_a_runner_up_may_take_several_parts() -> None:
    whole = CandidatePartition(sub_graph(RELU3, 0, 1, 2), "tvm", "test")
    singles = [CandidatePartition(sub_graph(RELU3, index), "other", "test") for index in range(3)]
    prices = [Figure(latency_us=latency_us, source="given") for latency_us in (3.0, 2.0, 2.0, 2.0)]
    partition = find_partition(RELU3, [whole, *singles], prices, launch_penalty_us=0.5)
    assert partition.runner_ups == (("other", 7.0),)
    assert partition.penalty_us == pytest.approx(0.5)


def test_progress_reports_states() -> None:
    graph = graph_of([(index - 1,) if index else () for index in range(1100)])
    candidates = [CandidatePartition(sub_graph(graph, index), "tvm", "test") for index in range(1100)]
    prices = [Figure(latency_us=1.0, source="given")] * 1100
    told: list[SearchProgress] = []
    find_partition(graph, candidates, prices, launch_penalty_us=0.0, on_progress=told.append)
    assert told == [SearchProgress(states=1000, covered=999, total=1100)]


def test_a_transformer_block_is_partitioned_within_few_states() -> None:
    graph = DataflowGraph.from_function(transformer_block())
    products = OperatorByPredicate("blas", lambda node: node.operator == "matmul")
    partition = solve(
        graph, [PartitionSpec("tvm", tvm_native_rule()), PartitionSpec("blas", products)], tvm=2.0, blas=1.0
    )
    assert partition.proven
    assert partition.states <= 4 * len(graph)
    assert dataclasses.replace(partition).chosen == partition.chosen
