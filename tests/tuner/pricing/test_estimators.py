"""Mock and custom prices."""

import pytest
from dataflow_samples import graph_of, relax_module, sub_graph
from tvm import relax

from records.workload import Workload
from tests.harness.mock_pricer import MockPricer
from tuner.graph import DataflowGraph
from tuner.partition.candidate import CandidatePartition
from tuner.partition.price import Invalid, Unknown
from tuner.plan import Figure
from tuner.pricing.estimators import CustomPricer

pytestmark = pytest.mark.tvm


def test_the_mock_discounts_each_further_operator() -> None:
    graph = graph_of([(), (0,), (1,)])
    pair = CandidatePartition(sub_graph(graph, 0, 1), "tvm", "test")
    (price,) = MockPricer({"tvm": 3.0}).price([pair])
    assert isinstance(price, Figure)
    assert price.latency_us == pytest.approx(5.7)
    assert MockPricer({}).price([pair]) == (Unknown(),)


def test_equal_workloads_are_estimated_once() -> None:
    def build(builder: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        return builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.relu(builder.emit(relax.op.abs(x))))))

    graph = DataflowGraph.from_function(relax_module(build, x=(2, 2)))
    asked: list[str] = []

    def estimate(workload: Workload, backend: str) -> float | Invalid:
        asked.append(workload.operators[0].name)
        return 1.0 if workload.operators[0].name == "nn.relu" else Invalid("it has no abs")

    candidates = [CandidatePartition(sub_graph(graph, index), "other", "test") for index in range(3)]
    prices = CustomPricer(graph, estimate).price(candidates)
    assert asked == ["abs", "nn.relu"]
    assert prices[0] == Invalid("it has no abs")
    assert prices[1] == prices[2] == Figure(latency_us=1.0, source="given")


def test_what_is_no_latency_is_refused() -> None:
    graph = DataflowGraph.from_function(
        relax_module(lambda builder, x: builder.emit(relax.op.abs(x)), x=(2,))
    )
    with pytest.raises(ValueError, match="not a finite number"):
        CustomPricer(graph, lambda workload, backend: -1.0).price(
            [CandidatePartition(sub_graph(graph, 0), "other", "test")]
        )
