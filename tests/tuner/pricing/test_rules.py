"""Prices by rules: nothing is built, what the records know counts, and every operator can be run."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("tvm")

from records import Status, open_store
from tuner.backends.registry import backends_for
from tuner.frontend import load_model
from tuner.graph.dataflow import DataflowGraph
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.workload_of import workload_of
from tuner.measuring.measurer import Measurer
from tuner.partition.find_partition import find_candidates
from tuner.plan import Figure
from tuner.pricing.measured import workload_of_candidate
from tuner.pricing.rules import SHARES, _share_of, price_by_rules
from tuner.targets.resolution import resolve_target

pytestmark = pytest.mark.tvm


def test_a_known_program_costs_what_it_took_and_others_what_their_rule_says(tmp_path: Path) -> None:
    target = resolve_target("cpu", num_threads=1)
    backends = backends_for(["tvm", "blas"], target)
    graph = DataflowGraph.from_function(load_model("mlp:tiny").module)
    candidates = find_candidates(graph, gather_specs(backends, target, ())).candidates
    with open_store(str(tmp_path / "records.db")) as store, Measurer(store, target, backends) as measurer:
        guessed = price_by_rules(graph, candidates, measurer)
        assert {price.source for price in guessed if isinstance(price, Figure)} == {"predicted"}
        first = next(index for index, each in enumerate(candidates) if each.backend == "tvm")
        workload = workload_of_candidate(graph, candidates[first])
        (record,) = measurer.measure_many([measurer_request(graph, candidates[first], workload)])
        assert record.measurement.status is Status.OK
        known = price_by_rules(graph, candidates, measurer)[first]
        assert isinstance(known, Figure)
        assert (known.source, known.latency_us) == ("measured", record.measurement.latency_us)
        assert measurer.new_measurements == 1


def test_a_built_in_backend_has_its_speed_on_its_own_kernels_alone() -> None:
    module = load_model("resnet").module
    whole = workload_of(module["main"], module=module)
    assert _share_of("nhwc", whole)[0] == pytest.approx(SHARES["nhwc"][0], rel=0.05)
    others = tuple(replace(each, name="nn.conv1d") for each in whole.operators)
    assert _share_of("nhwc", replace(whole, operators=others))[0] == pytest.approx(SHARES["tvm"][0])
    assert _share_of("onnxruntime", whole) == SHARES["onnxruntime"]


def measurer_request(graph: DataflowGraph, candidate: object, workload: object) -> object:
    from tuner.lowering.outline import extract_module  # noqa: PLC0415 - beside its one use
    from tuner.measuring.request import MeasureRequest  # noqa: PLC0415 - likewise

    module = extract_module(graph, candidate.sub_graph, candidate.backend)  # type: ignore[attr-defined]
    return MeasureRequest(workload=workload, module=module, backend=candidate.backend, check=True)  # type: ignore[arg-type, attr-defined]
