"""Stages are measured with the names of their parts, and predicted from these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
import tvm

from cost_model.stage_model import load_stages, parts_of, train_stage_model
from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.graph.relax_types import IRModule
from tuner.pricing.protocol import Pricing
from tuner.tuning.partitioned_function import PartitionedFunction, choose_partition, price_function
from tuner.tuning.session import Session, SessionSettings, start_session
from tuner.tuning.stage_costs.measure_stages import measure_stages
from tuner.tuning.stage_costs.stage_pricing import predict_stage, price_stage, price_stages

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    url = str(tmp_path_factory.mktemp("records") / "records.db")
    with start_session(
        "cpu",
        SessionSettings(backend_names=("tvm", "blas"), num_threads=1),
        records_url=url,
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def function(session: Session) -> PartitionedFunction:
    module = load_model("mlp:tiny", batch=2).module
    return choose_partition(price_function(session, module, name="whole", launch_penalty_us=1.0))


def test_a_measured_stage_names_measured_parts(session: Session, function: PartitionedFunction) -> None:
    figure = price_stage(session, function)
    assert figure.source == "measured"
    (sample,) = load_stages(session.store.iterate())
    assert sample.latency_us == pytest.approx(figure.latency_us)
    record = session.store.get(figure.record_ids[0])
    parts = parts_of(record.workload)
    assert sum(part.occurrences for part in parts) == len(function.partition.chosen)
    assert {part.backend for part in parts} <= {"tvm", "blas"}
    before = session.measurer.new_measurements
    assert price_stage(session, function) == figure
    assert session.measurer.new_measurements == before


def test_several_are_measured_together_and_one_that_fails_is_named(
    session: Session, function: PartitionedFunction
) -> None:
    other = choose_partition(
        price_function(session, load_model("mlp:tiny", batch=4).module, name="larger", launch_penalty_us=1.0)
    )
    first, second = price_stages(session, (function, other))
    assert (first, second) == (price_stage(session, function), price_stage(session, other))
    assert first.record_ids != second.record_ids
    assert price_stages(session, ()) == ()
    broken = load_model("mlp:tiny", batch=8).module
    unbuilt = choose_partition(price_function(session, broken, name="broken", launch_penalty_us=1.0))
    with pytest.raises(TunerError, match="broken could not be measured"):
        price_stages(session, (function, replace(unbuilt, module=_without_main(unbuilt.module))))


def _without_main(module: IRModule) -> IRModule:
    return tvm.IRModule({"other": module["main"].with_attr("global_symbol", "other")})


def test_a_prediction_has_an_interval_and_uncertain_parts_widen_it(
    session: Session, function: PartitionedFunction
) -> None:
    price_stage(session, function)
    samples = load_stages(session.store.iterate())
    pricing = Pricing(mode="model", stage_model=train_stage_model(samples * 30))
    asking = replace(session, pricing=pricing)
    certain = predict_stage(asking, function)
    assert certain.source == "predicted"
    assert certain.latency_us == pytest.approx(samples[0].latency_us, rel=0.3)
    unsure = tuple(
        msgspec.structs.replace(
            figure, source="predicted", interval_us=(figure.latency_us / 2, figure.latency_us * 2)
        )
        for figure in function.partition.figures
    )
    wide = predict_stage(asking, replace(function, partition=replace(function.partition, figures=unsure)))
    assert certain.interval_us is not None
    assert wide.interval_us is not None
    assert wide.interval_us[0] < certain.interval_us[0] < certain.interval_us[1] < wide.interval_us[1]


def test_active_prices_cut_by_predictions_and_measure_what_was_chosen(session: Session) -> None:
    model = load_model("mlp:tiny", batch=2)
    measured = measure_stages(model, session, num_stages=2)
    samples = load_stages(session.store.iterate())
    pricing = Pricing(mode="active", stage_model=train_stage_model(samples * 30))
    active = measure_stages(model, replace(session, pricing=pricing), num_stages=2)
    assert {stage.forward.source for stage in active.stages} == {"measured"}
    layers = [[layer for stage in found.stages for layer in stage.layers] for found in (measured, active)]
    assert layers[0] == layers[1]
