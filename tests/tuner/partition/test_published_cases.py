"""The 43 cases of the published implementation's own unit tests, on this project's graphs.

Written anew: same graphs, rules, costs and expected answers, by the numbers of this project. Where the two
differ by design the case says how: tuples, projections, constants and parameters are nodes there and none
here, so that sets with and without them are one set here, and what the host runs there is nothing.

Source: TVM v0.18, the tests of `relay.collage`: 14 of rules, 5 of costs, 9 of sub-graphs, 15 of the
partitioner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tvm
from dataflow_samples import (
    ANCHOR,
    BROADCAST,
    GPT2_FRAGMENT,
    INJECTIVE,
    REDUCTION,
    gpt2_fragment,
    graph_of,
    relax_module,
    sub_graph,
)
from tvm import relax
from tvm.relax.dpl import DFPattern, is_op, wildcard

from tests.harness.mock_pricer import MockPricer
from tests.harness.run_module import run_module
from tuner.graph import DataflowGraph, NodeSet, PatternKind, SubGraph, SubGraphLimits
from tuner.graph.relax_types import PARTITION_ATTRIBUTE
from tuner.lowering.lower import build_module, lower_module
from tuner.lowering.outline import extract_function, extract_module, outline_partitions, with_composites
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.partition.candidate import CandidatePartition
from tuner.partition.coalesce import coalesce
from tuner.partition.find_partition import Candidates, Partition, find_candidates, find_partition
from tuner.partition.partition_spec import PartitionSpec
from tuner.partition.price import Invalid
from tuner.partition.pruning import prune_candidates
from tuner.plan import Figure
from tuner.pricing.measured import workload_of_candidate
from tuner.rules.combinators import Composite, OnlyValid, Union
from tuner.rules.combine import ByKind, Combine, TupleArgument
from tuner.rules.pattern import LabelledPattern, PatternRule
from tuner.rules.protocol import Rule
from tuner.rules.single import HostRule, OperatorByKind
from tuner.rules.styles import FusionStyle, library_rule, tvm_native_rule
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op

Build = Callable[..., Any]
Sets = list[tuple[int, ...]]

RELU, ABS = is_op("relax.nn.relu"), is_op("relax.abs")


def graph_from(build: Build, *names: str, shape: tuple[int, ...] = (10, 10)) -> DataflowGraph:
    """Return the graph of a function of tensors, all of one shape."""
    return DataflowGraph.from_function(relax_module(build, **dict.fromkeys(names or ("x",), shape)))


def found(rule: Rule, graph: DataflowGraph) -> Sets:
    return sorted(tuple(each.inside) for each in rule.find_candidates(graph))


# Rules: 14 cases.


def standard(builder: Any, x: Any) -> Any:
    return builder.emit(op.nn.relu(builder.emit(op.nn.relu(builder.emit(op.abs(x))))))


def numbers(text: str) -> set[frozenset[int]]:
    return {frozenset(int(number) for number in group.split(",")) for group in text.split()}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (PatternRule("relu", RELU(wildcard())), [(1,), (2,)]),
        (PatternRule("pair", RELU(RELU(wildcard()) | ABS(wildcard()))), [(0, 1), (1, 2)]),
        (
            Union("both", (PatternRule("a", ABS(wildcard())), PatternRule("r", RELU(wildcard())))),
            [(0,), (1,), (2,)],
        ),
    ],
    ids=["DFPatternSingleOp", "DFPatternOverlap", "Union"],
)
def test_patterns(rule: Rule, expected: Sets) -> None:
    assert found(rule, graph_from(standard)) == expected


@pytest.mark.parametrize("label", ["composite", ""], ids=["Composite", "PrimitiveTVM and PrimitiveExternal"])
def test_each_match_becomes_a_function(label: str) -> None:
    # There a primitive function carries its compiler's name, here every part its backend's.
    graph = graph_from(standard)
    rule = PatternRule("relu", RELU(wildcard()))
    matches = list((Composite(label, rule) if label else rule).find_candidates(graph))
    parts = [CandidatePartition(each, "foo", "relu") for each in matches]
    parts.append(CandidatePartition(sub_graph(graph, 0), "host", "host"))
    module = outline_partitions(graph, parts)
    (function,) = (
        each for _, each in module.functions_items() if each.attrs and PARTITION_ATTRIBUTE in each.attrs
    )
    assert str(function.attrs[PARTITION_ATTRIBUTE]) == "foo"  # equal parts share one function
    assert [name for _, name in shape_of(with_composites(function))] == ([label] if label else [""])
    values = [binding.value for binding in module["main"].body.blocks[0].bindings]
    called = [isinstance(each.op, tvm.ir.GlobalVar) for each in values if isinstance(each, relax.Call)]
    assert called == [False, True, True]


def test_by_kind() -> None:  # OpCallByKind: a sum counts as broadcasting, a shape is no operator
    kinds = [PatternKind.ELEMENTWISE, BROADCAST, PatternKind.OPAQUE]
    graph = graph_of([(), (0,), (1,)], kinds=kinds, operators=["abs", "add", "shape_of"])
    assert found(OperatorByKind(), graph) == [(0,), (1,)]


SINGLES = {frozenset([number]) for number, _, _ in GPT2_FRAGMENT}
BY_KIND = """
    6,8 9,11 9,15 9,11,15 9,15,17 9,11,15,17 11,24 15,17 17,18 18,20 20,21 21,23 23,24
    15,17,18 17,18,20 18,20,21 20,21,23 21,23,24
"""
TVM_KINDS = (ByKind(ANCHOR, BROADCAST), ByKind(BROADCAST, REDUCTION), ByKind(INJECTIVE, INJECTIVE))


@pytest.mark.parametrize(
    ("combiners", "max_depth", "expected"),
    [
        (TVM_KINDS[:1], None, BY_KIND),
        ((), None, ""),  # constants are no nodes: {5, 6} is {6} and {7, 8} is {8}
        (TVM_KINDS, None, f"{BY_KIND} 8,9 8,9,11 8,9,15"),  # of upstream's 8 sets with constants, 5 are these
        (TVM_KINDS[:1], 2, "6,8 11,24 15,17 17,18 18,20 20,21 21,23 23,24"),
    ],
    ids=["Combine_ByKind", "Combine_Constant", "Combine_Mixed", "OnlyValid"],
)
def test_combining_on_the_gpt2_fragment(
    combiners: tuple[ByKind, ...], max_depth: int | None, expected: str
) -> None:
    graph, upstream = gpt2_fragment()
    rule: Rule = Combine(rule=OperatorByKind(), combiners=combiners, max_depth=3, published=True)
    if max_depth is not None:
        rule = OnlyValid(rule, SubGraphLimits(max_depth=max_depth))
    assert {upstream(each) for each in rule.find_candidates(graph)} == SINGLES | numbers(expected)


def fields(builder: Any, x: Any) -> Any:
    """Upstream's tuples: 6 split, 8 and 12 reshape, 9 and 13 transpose, 10 and 14 expand_dims, 16 concat."""
    parts = builder.emit(op.split(x, 3, axis=2))
    ends = []
    for index in (1, 2):
        value = builder.emit(op.reshape(builder.emit(relax.TupleGetItem(parts, index)), (5, 3, 2, 4)))
        ends.append(builder.emit(op.expand_dims(builder.emit(op.permute_dims(value, (0, 2, 1, 3))), 0)))
    return builder.emit(op.concat(ends, axis=0))


@pytest.mark.parametrize(
    ("combiners", "expected"),
    [
        ((TupleArgument(),), [(3, 6, 7)]),  # {10, 14, 15, 16}; 15 is the tuple
        ((), []),  # a projection belongs to its split: {6}, {6, 7}, {6, 11} and {6, 7, 11} are one set
    ],
    ids=["Combine_TupleArg", "Combine_TupleProj"],
)
def test_combining_through_tuples(combiners: tuple[TupleArgument, ...], expected: Sets) -> None:
    graph = graph_from(fields, shape=(5, 3, 24))
    rule = Combine(rule=OperatorByKind(), combiners=combiners, max_depth=3, published=True)
    sets = found(rule, graph)
    assert [each for each in sets if len(each) == 1] == [(index,) for index in range(8)]
    assert [each for each in sets if len(each) > 1] == expected


def test_the_host_runs_what_is_no_call() -> None:
    # Host: parameters, operators' names, tuples and projections, none of which is a node here.
    assert found(HostRule(), graph_from(fields, shape=(5, 3, 24))) == []


# Costs: 5 cases.


def repeated(builder: Any, x: Any) -> Any:
    first = builder.emit(op.nn.relu(builder.emit(op.abs(x))))
    second = builder.emit(op.nn.relu(builder.emit(op.abs(first))))
    return builder.emit(op.add(first, second))


def test_costs() -> None:
    graph = graph_from(repeated)
    pairs = [CandidatePartition(sub_graph(graph, *pair), "llvm", "") for pair in ((0, 1), (2, 3))]
    prices = MockPricer({"llvm": 3.0}).price(pairs)
    assert [price.latency_us for price in prices if isinstance(price, Figure)] == pytest.approx([5.7] * 2)
    # EstimateCost_AlreadyCached: a price is given to the search, which asks nobody again.
    given = find_partition(
        graph_of([()]),
        [CandidatePartition(sub_graph(graph_of([()]), 0), "llvm", "")],
        [Figure(latency_us=42.0, source="given")],
        launch_penalty_us=0.0,
    )
    assert given.cost_us == 42.0
    # EstimateCost_Cached: equal structure is one workload, measured once.
    assert len({workload_of_candidate(graph, pair).fingerprint for pair in pairs}) == 1


def test_what_a_spec_refuses_is_no_candidate() -> None:  # EstimateCost_Invalid
    graph = graph_from(standard)
    refused = find_candidates(graph, [PartitionSpec("llvm", OperatorByKind(), lambda *_: "invalid")])
    assert not refused.candidates
    assert {each.reason for each in refused.report.refused} == {"invalid"}
    assert Invalid("invalid").reason == "invalid"


def test_a_tuple_of_arguments_is_costed_by_its_reader() -> None:  # EstimateCost_EtaExpandTuples
    def build(builder: Any, x: Any) -> Any:
        one = builder.emit(op.abs(x))
        return builder.emit(op.concat([one, builder.emit(op.nn.relu(one))], axis=0))

    graph = graph_from(build)
    part = CandidatePartition(sub_graph(graph, 2), "llvm", "")
    (price,) = MockPricer({"llvm": 3.0}).price([part])
    assert isinstance(price, Figure)
    assert price.latency_us == 3.0
    assert len(extract_function(graph, part.sub_graph, "llvm").params) == 2


# Sub-graphs: 9 cases.


def shape_of(function: Any) -> list[tuple[int, str]]:
    """Return what a function computes in order: operators (0, ""), composites (operators inside, label)."""
    known = {}
    listed = []
    for binding in function.body.blocks[0].bindings:
        value = binding.value
        if isinstance(value, relax.Function):
            known[binding.var] = value
        elif isinstance(value, relax.Call) and value.op in known:
            inner = known[value.op]
            listed.append((sum(count or 1 for count, _ in shape_of(inner)), str(inner.attrs["Composite"])))
        elif isinstance(value, relax.Call):
            listed.append((0, ""))
    return listed


def sums(builder: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    one, other = builder.emit(op.add(a, b)), builder.emit(op.add(c, d))
    return builder.emit(op.subtract(one, other))


def diamond_of_relus(builder: Any, a: Any, b: Any) -> Any:
    first = builder.emit(op.nn.conv2d(a, b))
    one = builder.emit(op.nn.relu(builder.emit(op.nn.relu(first))))
    return builder.emit(op.add(one, builder.emit(op.nn.leakyrelu(first, 0.0))))


def tapped(builder: Any, a: Any, b: Any) -> Any:
    first = builder.emit(op.nn.conv2d(a, b))
    return builder.emit(op.add(builder.emit(op.nn.relu(first)), first))


def convolution(builder: Any, a: Any, b: Any) -> Any:
    summed = builder.emit(op.add(builder.emit(op.nn.conv2d(a, b)), a))
    return builder.emit(op.subtract(builder.emit(op.nn.relu(summed)), a))


def chained(builder: Any, a: Any, b: Any) -> Any:
    first = builder.emit(op.add(a, b))
    return builder.emit(op.add(builder.emit(op.add(first, b)), b))


IMAGES = {"a": (1, 3, 8, 8), "b": (3, 3, 1, 1)}
VECTORS = dict.fromkeys("ab", (5, 7))


@pytest.mark.parametrize(
    ("build", "shapes", "inside", "exits", "taps", "outputs"),
    [
        (sums, dict.fromkeys("abcd", (5, 7)), (1,), 1, False, 1),
        (sums, dict.fromkeys("abcd", (5, 7)), (0, 1), 1, False, 0),
        (sums, dict.fromkeys("abcd", (5, 7)), (0, 1), 2, False, 2),
        (convolution, IMAGES, (0, 1, 2), 1, False, 1),
        (diamond_of_relus, IMAGES, (0, 1, 2, 3, 4), 1, False, 1),
        (diamond_of_relus, IMAGES, (0, 1, 2, 3), 2, False, 2),
        (tapped, IMAGES, (0, 1), 2, False, 0),
        (tapped, IMAGES, (0, 1), 2, True, 2),
        (chained, VECTORS, (0, 2), 2, False, 0),
        (chained, VECTORS, (0, 1, 2), 2, False, 1),
    ],
)
def test_a_valid_sub_graph_becomes_a_function(
    build: Build,
    shapes: dict[str, tuple[int, ...]],
    inside: tuple[int, ...],
    exits: int,
    taps: bool,
    outputs: int,
) -> None:
    graph = DataflowGraph.from_function(relax_module(build, **shapes))
    part = sub_graph(graph, *inside)
    assert part.is_valid(graph, SubGraphLimits(max_exits=exits, allow_taps=taps)) == bool(outputs)
    if not outputs:
        return
    returned = extract_function(graph, part, "foo").ret_ty
    assert (len(returned.fields) if isinstance(returned, relax.TupleType) else 1) == outputs


def labelled(builder: Any, a: Any) -> Any:
    relu = lambda value: builder.emit(op.nn.relu(value))  # noqa: E731 - nine of them
    first = relu(relu(a))
    second, third = relu(first), relu(first)
    joined = builder.emit(op.add(second, third))
    last = builder.emit(op.add(relu(joined), relu(joined)))
    return second, relu(last), last


@pytest.mark.parametrize(
    ("inside", "labels", "expected", "outputs"),
    [
        # labels_direct_connection: relu, a: 1–4, b: 5–7, relu
        (range(9), {"a": range(1, 5), "b": range(5, 8)}, [(0, ""), (4, "a"), (3, "b"), (0, "")], 1),
        # labels_nested_tap: a: 1–4 has two results, one of them read by b: 5–7 and one from outside
        (range(1, 8), {"a": range(1, 5), "b": range(5, 8)}, [(4, "a"), (3, "b")], 2),
    ],
    ids=["labels_direct_connection", "labels_nested_tap"],
)
def test_nested_labels_become_composites(
    inside: range, labels: dict[str, range], expected: list[tuple[int, str]], outputs: int
) -> None:
    def build(builder: Any, a: Any) -> Any:
        second, after, last = labelled(builder, a)
        return after if outputs == 1 else builder.emit(op.add(second, last))

    graph = graph_from(build, "a", shape=(5, 7))
    nested = tuple(SubGraph.of(graph, NodeSet.of(each), label=label) for label, each in labels.items())
    part = SubGraph.of(graph, NodeSet.of(inside), nested=nested)
    function = extract_function(graph, part, "foo")
    composed = with_composites(function)
    assert shape_of(composed) == expected
    returned = composed.ret_ty
    assert (len(returned.fields) if isinstance(returned, relax.TupleType) else 1) == outputs
    # A composite in a composite, and the same numbers whether they are called or written out.
    outer = with_composites(extract_function(graph, part.with_label(graph, "outer"), "foo"))
    assert [label for _, label in shape_of(outer)] == ["outer"]
    (inner,) = (b.value for b in outer.body.blocks[0].bindings if isinstance(b.value, relax.Function))
    assert [label for _, label in shape_of(inner)] == [label for _, label in expected]
    target = resolve_target("cpu", num_threads=1)
    module = extract_module(graph, part, "foo")
    inputs = random_inputs(input_specs(module), seed=0)
    results = [
        run_module(build_module(lower_module(each, [Plain()], target), target), inputs, target)
        for each in (module, _with(module, composed))
    ]
    assert all((one == other).all() for one, other in zip(*results, strict=True))


class Plain:
    """Leaves operators to TVM's own pipeline, and writes composites out."""

    name = "foo"

    def lower(self, module: Any, functions: Sequence[str], target: Any) -> Any:
        lifted = relax.transform.LambdaLift()(module)
        for variable, function in lifted.functions_items():
            if function.attrs and "Composite" in function.attrs:
                lifted.update_func(variable, function.without_attr("Composite"))
        return lifted


def _with(module: Any, function: Any) -> Any:
    """Return the module with another body for its partition."""
    other = module.clone()
    (variable,) = (each for each in other.get_global_vars() if each.name_hint != "main")
    other.update_func(variable, function.with_attr(PARTITION_ATTRIBUTE, "foo"))
    return other


# The partitioner: 15 cases.


def pattern_table() -> list[LabelledPattern]:
    """What the other backend's library has: relu, add, and concatenations."""
    table: dict[str, DFPattern] = {
        "relu": RELU(wildcard()),
        "add": is_op("relax.add")(wildcard(), wildcard()),
        "concat": is_op("relax.concat")(wildcard()),
    }
    return [LabelledPattern(label, pattern) for label, pattern in table.items()]


def specs(tvm_depth: int, other_depth: int) -> list[PartitionSpec]:
    limits = SubGraphLimits(max_depth=other_depth)
    other = library_rule(pattern_table(), FusionStyle.ANY, limits=limits, published=True)
    native = tvm_native_rule(tvm_depth, groups=False, published=True)
    return [PartitionSpec("tvm", native), PartitionSpec("other", other)]


def partitioned(
    graph: DataflowGraph, candidates: Candidates, *, through_tuples: bool = True, **cost_us: float
) -> Partition:
    """Return the cheapest partition, pruned and with neighbours merged as upstream does it."""
    pricer = MockPricer(cost_us)
    pruned = prune_candidates(candidates, published=True)
    partition = find_partition(
        graph, pruned.candidates, pricer.price(pruned.candidates), launch_penalty_us=0.0
    )
    return coalesce(graph, partition, pricer, launch_penalty_us=0.0, through_tuples=through_tuples).partition


def called(partition: Partition) -> Sets:
    """Return the other backend's parts; what is TVM's is left to TVM, however it is cut."""
    return [tuple(each.sub_graph.inside) for each in partition.chosen if each.backend == "other"]


def chain(*operators: Build) -> Build:
    def build(builder: Any, x: Any) -> Any:
        for operator in operators:
            x = builder.emit(operator(x))
        return x

    return build


def diamond(builder: Any, x: Any) -> Any:
    first = builder.emit(op.abs(builder.emit(op.nn.relu(x))))
    return builder.emit(op.add(first, builder.emit(op.nn.relu(first))))


def output_tuple(builder: Any, x: Any) -> Any:
    first = builder.emit(op.nn.relu(x))
    second = builder.emit(op.nn.relu(first))
    return first, second, builder.emit(op.abs(second))


def intermediate_tuple(builder: Any, x: Any) -> Any:
    first = builder.emit(op.nn.relu(x))
    return builder.emit(op.concat([first, builder.emit(op.nn.relu(first))], axis=0))


def double_residual(builder: Any, x: Any) -> Any:
    first = builder.emit(op.nn.relu(x))
    second = builder.emit(op.abs(first))
    return builder.emit(op.add(second, builder.emit(op.add(first, second))))


RELUS = chain(*[op.nn.relu] * 3)


@pytest.mark.parametrize(
    ("build", "cost_us", "depths", "expected"),
    [
        (chain(op.nn.relu), (1.0, 2.0), (8, 8), []),
        (chain(op.nn.relu), (2.0, 1.0), (8, 8), [(0,)]),
        (diamond, (2.0, 1.0), (1, 1), [(0,), (2, 3)]),
        (diamond, (2.0, 1.0), (1, 3), [(0,), (2, 3)]),
        (RELUS, (100.0, 99.0), (1, 1), [(0, 1, 2)]),
        (RELUS, (100.0, 99.0), (2, 1), [(0,)]),
        (RELUS, (100.0, 99.0), (3, 1), []),
        (RELUS, (99.0, 100.0), (1, 1), []),
        (RELUS, (99.0, 100.0), (1, 2), [(1, 2)]),
        (RELUS, (99.0, 100.0), (1, 3), [(0, 1, 2)]),
        (output_tuple, (2.0, 1.0), (2, 2), [(0, 1)]),
        (double_residual, (2.0, 1.0), (4, 4), [(0,), (2, 3)]),
    ],
)
def test_the_partitioner(
    build: Build, cost_us: tuple[float, float], depths: tuple[int, int], expected: Sets
) -> None:
    graph = graph_from(build)
    candidates = find_candidates(graph, specs(*depths))
    partition = partitioned(graph, candidates, tvm=cost_us[0], other=cost_us[1])
    assert called(partition) == expected


def test_an_intermediate_tuple_keeps_its_reader_apart() -> None:
    graph = graph_from(intermediate_tuple)
    candidates = find_candidates(graph, specs(3, 5))
    partition = partitioned(graph, candidates, through_tuples=False, tvm=2.0, other=1.0)
    assert called(partition) == [(0, 1), (2,)]
    # By default the reader of a tuple may be joined with what makes its fields, which is cheaper.
    rule = library_rule(pattern_table(), FusionStyle.ANY, limits=SubGraphLimits(max_depth=5))
    ours = find_candidates(graph, [PartitionSpec("other", rule)])
    assert called(partitioned(graph, ours, other=1.0)) == [(0, 1, 2)]


def fusion_benefit(builder: Any, x: Any) -> Any:
    one = builder.emit(op.nn.relu(builder.emit(op.nn.relu(x))))
    other = builder.emit(op.nn.relu(builder.emit(op.abs(x))))
    return builder.emit(op.abs(builder.emit(op.nn.relu(builder.emit(op.add(one, other))))))


@pytest.mark.parametrize(("groups", "cost_us"), [(False, 34.5706), (True, 26.0851)])
def test_both_optima_of_fusion_are_reachable(groups: bool, cost_us: float) -> None:
    # fusion_benefit: without TVM's own groups, which are as deep as TVM makes them, upstream's answer.
    graph = graph_from(fusion_benefit)
    limits = SubGraphLimits(max_depth=5)
    rule = library_rule(pattern_table(), FusionStyle.ANY, limits=limits, published=True)
    native = PartitionSpec("tvm", tvm_native_rule(1, groups=groups))
    candidates = find_candidates(graph, [native, PartitionSpec("other", rule)])
    partition = partitioned(graph, candidates, tvm=5.0, other=6.0)
    assert partition.cost_us == pytest.approx(cost_us, abs=1e-3)
    if not groups:
        assert sorted(graph.operators_of(called(partition)[0])) == ["add", *["nn.relu"] * 4]


def pruned(builder: Any, x: Any) -> Any:
    first = builder.emit(op.nn.relu(x))
    second = builder.emit(op.nn.relu(first))
    return builder.emit(op.add(second, builder.emit(op.add(first, second))))


def test_pruning_leaves_two_of_fourteen() -> None:
    graph = graph_from(pruned)
    candidates = find_candidates(graph, specs(4, 4))
    left = prune_candidates(candidates, published=True)
    assert (len(candidates.candidates), len(left.candidates)) == (14, 2)
    assert called(partitioned(graph, candidates, tvm=2.0, other=1.0)) == [(0, 1, 2, 3)]
