"""Equal candidates are measured once, refusals are not built, and the host costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tvm import relax

from records import open_store
from tests.samples.partition_samples import function_module
from tests.tuner.misbehaving_backends import MODULE
from tuner.backends.registry import backends_for
from tuner.errors import UnknownNameError
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.subgraph import SubGraph
from tuner.measuring.launch_penalty import measure_launch_penalty
from tuner.measuring.measurer import Measurer
from tuner.measuring.messages import Timing
from tuner.measuring.request import Limits
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.price import Invalid
from tuner.plan import Figure
from tuner.pricing.measured import MeasuredPricer
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm

op = relax.op

LIMITS = Limits(timing=Timing(budget_s=0.01, max_samples=5))


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    target = resolve_target("cpu", num_threads=1)
    backends = backends_for(["tvm", "blas", f"{MODULE}:wrong"], target)
    path: Path = tmp_path_factory.mktemp("records") / "records.db"
    with open_store(str(path)) as store, Measurer(store, target, backends, limits=LIMITS) as measurer:
        yield measurer


@pytest.fixture(scope="module")
def graph() -> DataflowGraph:
    """Two equal layers: matmul, relu, matmul, relu."""
    return DataflowGraph.from_function(
        function_module(
            [(8, 16), (16, 16), (16, 16)],
            lambda x, w, v: op.nn.relu(op.matmul(op.nn.relu(op.matmul(x, w)), v)),
        )
    )


def candidate(graph: DataflowGraph, indices: list[int], backend: str) -> CandidatePartition:
    return CandidatePartition(SubGraph.of(graph, NodeSet.of(indices)), backend, "test")


def test_equal_layers_have_one_price(graph: DataflowGraph, measurer: Measurer) -> None:
    before = measurer.new_measurements
    pricer = MeasuredPricer(graph, measurer)
    layers = [candidate(graph, [0, 1], "tvm"), candidate(graph, [2, 3], "tvm")]
    first, second = pricer.price(layers)
    assert first == second
    assert isinstance(first, Figure)
    assert first.source == "measured"
    assert len(first.record_ids) == 1
    assert first.interval_us is not None
    assert first.interval_us[0] <= first.latency_us <= first.interval_us[1]
    assert measurer.new_measurements == before + 1


def test_a_price_is_asked_for_once(graph: DataflowGraph, measurer: Measurer) -> None:
    pricer = MeasuredPricer(graph, measurer)
    pricer.price([candidate(graph, [0], "tvm")])
    counts = measurer.new_measurements, measurer.reused_measurements
    pricer.price([candidate(graph, [0], "tvm"), candidate(graph, [2], "tvm")])
    assert (measurer.new_measurements, measurer.reused_measurements) == counts


def test_what_a_backend_refuses_is_invalid_and_not_measured(graph: DataflowGraph, measurer: Measurer) -> None:
    before = measurer.new_measurements
    (price,) = MeasuredPricer(graph, measurer).price([candidate(graph, [1], "blas")])
    assert price == Invalid("it holds no matrix product of float32 or float64")
    assert measurer.new_measurements == before


def test_wrong_numbers_have_no_price(graph: DataflowGraph, measurer: Measurer) -> None:
    (price,) = MeasuredPricer(graph, measurer).price([candidate(graph, [0], "wrong")])
    assert isinstance(price, Invalid)
    assert "wrong numbers" in price.reason


def test_the_host_costs_nothing(graph: DataflowGraph, measurer: Measurer) -> None:
    (price,) = MeasuredPricer(graph, measurer).price([candidate(graph, [1], FREE)])
    assert isinstance(price, Figure)
    assert price.latency_us == 0.0


def test_a_backend_that_the_measurer_lacks_is_named(graph: DataflowGraph, measurer: Measurer) -> None:
    with pytest.raises(UnknownNameError, match="'torch'"):
        MeasuredPricer(graph, measurer).price([candidate(graph, [0], "torch")])


@pytest.mark.slow  # as tests/tuner/measuring/test_launch_penalty.py
def test_a_launch_costs_something_and_is_measured_once(measurer: Measurer) -> None:
    first = measure_launch_penalty(measurer)
    assert first.latency_us >= 0
    before = measurer.new_measurements
    assert measure_launch_penalty(measurer) == first
    assert measurer.new_measurements == before
