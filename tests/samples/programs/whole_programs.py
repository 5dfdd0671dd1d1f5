"""Two layers with prices, and a device that runs whole programs of them; nothing is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dataflow_samples import relax_module
from mock_pricer import MockPricer
from tvm import relax

from tuner.errors import TunerError
from tuner.graph import DataflowGraph
from tuner.lowering.workload_of import describe_graph
from tuner.partition.find_partition import find_candidates
from tuner.partition.partition_spec import PartitionSpec
from tuner.plan import Figure
from tuner.rules.single import OperatorByKind, OperatorByPredicate
from tuner.rules.styles import tvm_native_rule
from tuner.tuning.partitioned_function import PartitionedFunction, PricedFunction


def two_layers(cost_us: Mapping[str, float]) -> PricedFunction:
    """Return two layers, product and activation, with a price a backend; `products` runs products alone."""

    def build(builder: Any, x: Any, one: Any, two: Any) -> Any:
        for weight in (one, two):
            x = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, weight))))
        return x

    graph = DataflowGraph.from_function(relax_module(build, x=(4, 4), one=(4, 4), two=(4, 4)))
    specs = [
        PartitionSpec("tvm", tvm_native_rule()),
        PartitionSpec("products", OperatorByPredicate("products", lambda node: node.operator == "matmul")),
        PartitionSpec("singles", OperatorByKind()),
    ]
    found = find_candidates(graph, [spec for spec in specs if spec.backend in cost_us])
    return PricedFunction(
        name="model",
        graph=graph,
        workload=describe_graph(graph, "model"),
        candidates=found.candidates,
        prices=MockPricer(cost_us).price(found.candidates),
        num_candidates_by_rule={},
        refused=found.report.refused,
        num_pruned=0,
        launch_penalty_us=0.0,
    )


def count_parts(function: PartitionedFunction) -> dict[str, int]:
    return Counter(part.backend for part in function.partition.chosen)


@dataclass
class Machine:
    """A device on which a whole takes what each of its parts takes, by backend, whatever they do alone."""

    latency_us: Mapping[str, float]
    broken: str = ""
    measured: list[dict[str, int]] = field(default_factory=list)

    def measure(self, function: PartitionedFunction, *, label: str) -> Figure:
        assert label == "mix"
        parts = count_parts(function)
        self.measured.append(parts)
        if self.broken in parts:
            raise TunerError(f"{self.broken} hangs among others")
        return Figure(
            latency_us=sum(self.latency_us[name] * number for name, number in parts.items()), source="given"
        )
