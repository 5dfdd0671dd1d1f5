"""Torch calls in whole programs: every variant leaves them to the backend torch, whatever else it does."""

from types import SimpleNamespace
from typing import Any

import pytest
from tvm import relax

pytest.importorskip("torch")

from tuner.backends.registry import make_backend
from tuner.errors import UnpriceableError
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.relax_types import IRModule
from tuner.graph.torch_call import write_torch_call
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.workload_of import describe_graph
from tuner.partition.find_partition import find_candidates
from tuner.plan import Figure
from tuner.pricing.protocol import Pricing
from tuner.runtime.operator_call import OperatorCall
from tuner.targets.resolution import resolve_target
from tuner.tuning.partitioned_function import PricedFunction, choose_partition, price_function

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


def with_torch_call() -> IRModule:
    """Return softmax, then a torch call, then relu."""
    x = relax.Var("x", relax.TensorType([2, 3], "float32"))
    call = OperatorCall(operator="logcumsumexp.default", arguments=({"tensor": 0}, 1))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            shares = builder.emit(relax.op.nn.softmax(x))
            made = builder.emit(write_torch_call(call, [shares], [x.ty]))
            result = builder.emit_output(relax.op.nn.relu(made))
        builder.emit_func_output(result)
    return builder.get()


def priced_with(*backends: str) -> PricedFunction:
    """Return the function with the same price for every candidate."""
    graph = DataflowGraph.from_function(with_torch_call())
    target = resolve_target("cpu", num_threads=1)
    found = find_candidates(graph, gather_specs([make_backend(name) for name in backends], target))
    return PricedFunction(
        name="model",
        graph=graph,
        workload=describe_graph(graph, "model"),
        candidates=found.candidates,
        prices=(Figure(latency_us=1.0, source="given"),) * len(found.candidates),
        num_candidates_by_rule={},
        refused=found.report.refused,
        num_pruned=0,
        launch_penalty_us=0.1,
    )


@pytest.mark.parametrize("options", [{}, {"only": "tvm"}, {"only": "torch"}, {"without": {"torch"}}])
def test_the_call_is_torchs_in_every_variant(options) -> None:
    priced = priced_with("tvm", "torch")
    chosen = choose_partition(priced, **options).partition.chosen
    by_operator = {
        operator: part.backend
        for part in chosen
        for operator in priced.graph.operators_of(part.sub_graph.inside)
    }
    assert by_operator["torch call aten.logcumsumexp"] == "torch"
    assert by_operator["nn.relu"] == "tvm"
    if "only" in options:
        assert by_operator["nn.softmax"] == options["only"]
    if "without" in options:
        assert by_operator["nn.softmax"] == "tvm"


def test_without_the_backend_torch_the_operator_is_named() -> None:
    with pytest.raises(
        UnpriceableError,
        match=r"aten\.logcumsumexp .*\(tvm: it holds a torch call, which only the backend torch runs\)",
    ):
        choose_partition(priced_with("tvm"))


def test_it_is_named_before_anything_is_measured() -> None:
    told: list[str] = []
    session: Any = SimpleNamespace(
        backends=[make_backend("tvm")],
        target=resolve_target("cpu", num_threads=1),
        assignments=(),
        on_progress=lambda progress: told.append(progress.text),
        measurer=None,  # whoever measured would fail by its lack
        pricing=Pricing(),
        seed=0,
    )
    with pytest.raises(UnpriceableError, match=r"aten\.logcumsumexp .*which only the backend torch runs"):
        price_function(session, with_torch_call(), name="model", launch_penalty_us=0.1)
    assert told == ["model: finding candidates"]
