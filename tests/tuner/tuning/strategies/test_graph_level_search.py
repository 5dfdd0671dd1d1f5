"""Groups of equal parts, their choices, and evolving whole modules."""

from typing import Any

import numpy as np
import pytest
from dataflow_samples import relax_module
from tvm import relax

from tuner.graph import DataflowGraph
from tuner.lowering.outline import order_partitions
from tuner.partition.candidate import CandidatePartition
from tuner.partition.evolution import EvolutionSettings
from tuner.partition.find_partition import Partition, find_candidates, find_partition
from tuner.partition.partition_spec import PartitionSpec
from tuner.partition.price import Price
from tuner.plan import Figure
from tuner.rules.single import OperatorByKind, OperatorByPredicate
from tuner.rules.styles import tvm_native_rule
from tuner.tuning.strategies.graph_level_search import Group, chosen_parts, evolve_partition, find_groups

pytestmark = pytest.mark.tvm


def two_layers() -> DataflowGraph:
    """Return two equal layers, product and activation, and an exponential."""

    def build(builder: Any, x: Any, one: Any, two: Any) -> Any:
        for weight in (one, two):
            x = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, weight))))
        return builder.emit(relax.op.exp(x))

    return DataflowGraph.from_function(relax_module(build, x=(4, 4), one=(4, 4), two=(4, 4)))


def first_level(graph: DataflowGraph) -> tuple[Partition, list[CandidatePartition], list[Price]]:
    products = OperatorByPredicate("products", lambda node: node.operator == "matmul")
    specs = [
        PartitionSpec("tvm", tvm_native_rule()),
        PartitionSpec("blas", products),
        PartitionSpec("other", OperatorByKind()),
    ]
    candidates = list(find_candidates(graph, specs).candidates)
    cost_us = {"tvm": 1.0, "blas": 3.0, "other": 5.0}
    prices: list[Price] = [
        Figure(latency_us=cost_us[candidate.backend], source="given") for candidate in candidates
    ]
    return find_partition(graph, candidates, prices, launch_penalty_us=0.0), candidates, prices


def groups_of(graph: DataflowGraph) -> tuple[Partition, tuple[Group, ...]]:
    partition, candidates, prices = first_level(graph)
    return partition, find_groups(graph, partition, candidates, prices, launch_penalty_us=0.0)


def test_equal_layers_are_one_group() -> None:
    graph = two_layers()
    partition, groups = groups_of(graph)
    assert chosen_parts(groups, (0,) * len(groups)) == partition.chosen
    layer = groups[0]
    assert layer.choices == ("tvm", "blas", "other")
    assert [len(part.sub_graph.inside) for part in layer.parts[0]] == [2] * (len(layer.parts[0]))
    # BLAS cannot run the activation: TVM does.
    assert [part.backend for part in layer.parts[1]] == ["blas", "tvm"] * len(layer.parts[0])
    assert [part.backend for part in layer.parts[2]] == ["other"] * 2 * len(layer.parts[0])


def test_every_choice_is_a_partition() -> None:
    graph = two_layers()
    _, groups = groups_of(graph)
    for genes in np.ndindex(*(len(group.choices) for group in groups)):
        order_partitions(graph, [part.sub_graph for part in chosen_parts(groups, tuple(genes))])


def test_whole_modules_are_measured() -> None:
    graph = two_layers()
    _, groups = groups_of(graph)

    def measure(module: Any) -> Price:
        """Say that programs with fewer calls are slower, which no sum of parts would."""
        return Figure(latency_us=100.0 - len(module["main"].body.blocks[0].bindings), source="given")

    result = evolve_partition(
        graph, groups, measure, rng=np.random.default_rng(0), settings=EvolutionSettings(max_measurements=20)
    )
    assert all(result.genes)
    assert result.figure.latency_us < result.first_figure.latency_us
