"""From a model to a plan on this machine: everything measured, checked, and measured only once."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from records import Measurement, Workload
from tests.samples.programs.one_placement import tune_model
from tuner.errors import TunerError, UnknownNameError
from tuner.frontend import load_model
from tuner.graph import DataflowGraph
from tuner.measuring.race import FAR, FEWEST_ROUNDS
from tuner.numerical_error import TOLERANCES
from tuner.plan import ModelPlan
from tuner.stages.placed_stages import PlacedStages
from tuner.targets import device_probe
from tuner.tuning.end_to_end import finalists
from tuner.tuning.partition_model import PartitionedModel, partition_model, prepared_module
from tuner.tuning.partitioned_function import choose_partition, price_function, with_runner_ups
from tuner.tuning.session import Session, SessionSettings, start_session
from tuner.tuning.stage_costs.measure_stages import measure_stages
from tuner.tuning.tune import TuningSettings

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def records_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('records')}/records.db"


@pytest.fixture(scope="module")
def open_session(records_url: str) -> Iterator[Callable[[], Session]]:
    """Open sessions on one record store, one after another."""
    with ExitStack() as stack:

        def open_next() -> Session:
            stack.close()
            return stack.enter_context(
                start_session(
                    "cpu",
                    SessionSettings(backend_names=("tvm", "blas"), num_threads=1),
                    records_url=records_url,
                )
            )

        yield open_next


@pytest.fixture(scope="module")
def first(open_session: Callable[[], Session]) -> ModelPlan:
    return tune_model(load_model("mlp", training=True), open_session(), TuningSettings(num_stages=2))


@pytest.fixture(scope="module")
def whole(open_session: Callable[[], Session], first: ModelPlan) -> PartitionedModel:
    return partition_model(load_model("mlp", training=True), open_session())


def test_every_figure_of_a_plan_is_measured(first: ModelPlan) -> None:
    figures = [
        figure
        for stage in first.stages
        for figure in (stage.forward, stage.backward, stage.backward_input, stage.backward_weight)
        if figure is not None
    ]
    figures += [part.figure for part in first.partition] + list(first.end_to_end.values())
    assert {figure.source for figure in figures} == {"measured"}
    assert all(figure.record_ids and figure.latency_us > 0 for figure in figures)
    assert first.hop_source == "measured"
    assert first.new_measurements > 0


def test_the_graph_of_a_plan_holds_what_its_forward_functions_run(first: ModelPlan) -> None:
    assert {node.function for node in first.graph} == {"stage0.forward", "stage1.forward"}
    for number, node in enumerate(first.graph):
        assert all(each < number and first.graph[each].function == node.function for each in node.inputs)
        assert len(node.layers) == len(first.partition[node.part].operators)
        assert all(node.layers)
        assert node.function in first.partition[node.part].functions
    # The stages hold different layers, also where they are equal in structure and partitioned as one.
    layers = [
        {layer for node in first.graph if node.function == name for layer in node.layers}
        for name in ("stage0.forward", "stage1.forward")
    ]
    assert "layers.0" in layers[0]
    assert "head" in layers[1]
    assert not layers[0] & layers[1]
    # Whatever is computed is used: of each function, nothing but its results is read by none.
    read = {each for node in first.graph for each in node.inputs}
    unread = [node.function for number, node in enumerate(first.graph) if number not in read]
    assert set(unread) == {"stage0.forward", "stage1.forward"}
    counted = Counter(node.part for node in first.graph)
    for number, part in enumerate(first.partition):
        is_forward = [name.endswith(".forward") for name in part.functions]
        assert bool(counted[number]) == any(is_forward)
        assert counted[number] == part.occurrences or not all(is_forward)


def test_results_and_gradients_were_checked(first: ModelPlan) -> None:
    assert first.max_relative_error <= TOLERANCES["float32"]
    assert first.max_gradient_error is not None
    assert first.max_gradient_error < 1e-4


def test_a_second_run_measures_nothing_and_finds_the_same(
    open_session: Callable[[], Session], first: ModelPlan
) -> None:
    again = tune_model(load_model("mlp", training=True), open_session(), TuningSettings(num_stages=2))
    assert again.new_measurements == 0
    assert again.stages == first.stages
    assert again.partition == first.partition
    assert again.end_to_end == first.end_to_end


def test_nobody_is_ahead_of_the_mix_beyond_the_interval(
    open_session: Callable[[], Session], whole: PartitionedModel
) -> None:
    session = open_session()
    coarser = partition_model(load_model("mlp", training=True), session, coarser=True)
    for found in (whole, coarser):
        fastest_us = min(figure.latency_us for figure in found.end_to_end.values())
        for name in {"tvm", "blas"} - found.ratio_to_mix.keys():  # one that cannot win does not race
            assert found.end_to_end[name].latency_us > 1.5 * fastest_us
        for ratio in found.ratio_to_mix.values():  # unless it was far behind at once
            assert ratio.num_rounds >= FEWEST_ROUNDS or ratio.ratio > FAR
        assert all(ratio.high is None or ratio.high >= 1 for ratio in found.ratio_to_mix.values())
    chosen = [candidate.sub_graph.inside for candidate in coarser.function.partition.chosen]
    assert sum(len(inside) for inside in chosen) == len(coarser.function.priced.graph)
    again = partition_model(load_model("mlp", training=True), open_session(), coarser=True)
    assert again.new_measurements == 0
    assert again.function.fingerprint == coarser.function.fingerprint
    assert again.ratio_to_mix == coarser.ratio_to_mix


def test_where_a_race_cannot_be_run_measurements_apart_decide(
    open_session: Callable[[], Session], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise TunerError("3 programs could not run in turn")

    session = open_session()
    monkeypatch.setattr(session.measurer, "race", fail)
    monkeypatch.setattr(finalists, "_HOPELESS", math.inf)  # however far apart they were measured
    found = partition_model(load_model("mlp", training=True), session)
    assert "could not run in turn; they are compared by measurements apart" in caplog.text
    assert found.end_to_end["mix"].latency_us == min(each.latency_us for each in found.end_to_end.values())
    assert not found.ratio_to_mix
    assert not found.is_tie


def test_every_distinct_part_is_explained(whole: PartitionedModel) -> None:
    assert {(each.operators, each.backend) for each in whole.explanations} == {
        (part.operators, part.backend) for part in whole.partition
    }
    # Whoever won a product, the other backend runs it too, alone or with the rest left to the winner.
    products = [each for each in whole.explanations if any("matmul" in name for name in each.operators)]
    assert products
    assert all(each.alternatives for each in products)


def test_every_part_says_which_operator_of_which_layer_it_is(whole: PartitionedModel) -> None:
    assert all(part.layers and part.outputs for part in whole.partition)
    assert all(each.part in whole.partition for each in whole.explanations)
    graph = whole.function.priced.graph
    told = {layer for part in whole.partition for layer in part.layers}
    products = [node for node in graph.nodes if node.operator == "matmul"]
    assert len({node.layer for node in products}) == len(products), "each linear layer has one"
    assert all(any(node.layer in layers.split(" + ") for layers in told) for node in products)
    assert {graph.result_shape(node.index) for node in products} <= {
        node.shape for part in whole.partition for node in (*part.inputs, *part.outputs)
    }


def test_layers_are_known_where_normalisations_were_folded() -> None:
    model = load_model("resnet:tiny")
    graph = DataflowGraph.from_function(prepared_module(model), layers=model.layers_by_variable())
    convolutions = {node.layer for node in graph.nodes if node.operator.endswith("conv2d")}
    assert "stages.0.blocks.0.filter.conv" in convolutions
    assert "" not in convolutions


def test_a_part_names_its_runner_up_whoever_found_the_mix(
    whole: PartitionedModel,
) -> None:
    alone = choose_partition(whole.function.priced, only="blas")
    assert set(alone.partition.runner_ups) == {None}
    parts = with_runner_ups(alone).partition
    named = {part.backend for part, found in zip(parts.chosen, parts.runner_ups, strict=True) if found}
    assert "blas" in named
    expected = {
        (each.operators, each.figure.latency_us): (
            each.alternatives[0].runners,
            each.alternatives[0].latency_us,
        )
        for each in whole.explanations
        if each.alternatives
    }
    assert {
        (part.operators, part.figure.latency_us): part.runner_up
        for part in whole.partition
        if part.runner_up is not None
    } == expected


def test_partitions_cover_every_operator_once(whole: PartitionedModel) -> None:
    graph = whole.function.priced.graph
    covered = sorted(
        index for candidate in whole.function.partition.chosen for index in candidate.sub_graph.inside
    )
    assert covered == list(range(len(graph)))
    assert choose_partition(whole.function.priced).partition.proven
    assert {"mix", "tvm", "blas"} == whole.end_to_end.keys()


@pytest.mark.slow
def test_a_backend_that_runs_nothing_has_no_row(records_url: str) -> None:
    with start_session(
        "cpu",
        SessionSettings(backend_names=("tvm", "nhwc"), num_threads=1),
        records_url=records_url,
    ) as session:
        found = partition_model(load_model("mlp", training=True), session)
    assert found.end_to_end.keys() == {"mix", "tvm"}
    assert found.end_to_end["tvm"] == found.end_to_end["mix"]


def test_cuts_that_do_not_fit_the_number_of_stages_are_refused(
    open_session: Callable[[], Session], first: ModelPlan
) -> None:
    opened = open_session()
    model = load_model("mlp", training=True)
    with pytest.raises(UnknownNameError, match="nowhere"):
        measure_stages(model, opened, cuts=("nowhere",))
    name = first.stages[0].layers[-1]
    with pytest.raises(TunerError, match="2 stages, but the placement has 3"):
        measure_stages(model, opened, num_stages=3, cuts=(name,))


@pytest.mark.parametrize("divides_ends", [False, True])
def test_a_model_that_cannot_fit_is_refused_before_anything_is_measured(
    divides_ends: bool, open_session: Callable[[], Session]
) -> None:
    session = open_session()
    before = session.measurer.new_measurements + session.measurer.reused_measurements
    settings = TuningSettings(
        num_stages=2, memory_limit_bytes=1000, hop_us=1.0, divides_ends=divides_ends, link=None
    )
    with pytest.raises(TunerError, match=r"layer .*needs|limit"):
        tune_model(load_model("gpt2:tiny"), session, settings)
    assert session.measurer.new_measurements + session.measurer.reused_measurements == before


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (TuningSettings(num_stages=2, cuts=("h.9.attn+",)), "h.9"),
        (TuningSettings(num_stages=3, cuts=("h.0",)), "2 stages, but the placement has 3"),
        (TuningSettings(num_stages=40), "40"),
        (TuningSettings(num_stages=2, cuts=("h.0",), divides_ends=True), "m shape"),
        (
            TuningSettings(num_stages=2, placed=PlacedStages.chain(((0,), (1,))), cuts=("h.0",)),
            "finds its cuts",
        ),
    ],
)
def test_cuts_that_cannot_be_made_are_refused_before_anything_is_measured(
    settings: TuningSettings, why: str, open_session: Callable[[], Session]
) -> None:
    session = open_session()
    before = session.measurer.new_measurements + session.measurer.reused_measurements
    with pytest.raises(TunerError, match=re.escape(why)):
        tune_model(load_model("gpt2:tiny"), session, settings)
    assert session.measurer.new_measurements + session.measurer.reused_measurements == before


def test_a_session_takes_probes_of_a_busy_machine_again_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = []

    def measure(**place: Any) -> list[tuple[Workload, Measurement]]:
        takes.append(real(**place))
        if len(takes) > 1:
            return takes[-1]
        return [
            (workload, msgspec.structs.replace(probe, samples_us=tuple(1000 * us for us in probe.samples_us)))
            for workload, probe in takes[-1]
        ]

    real = device_probe.measure_probes
    monkeypatch.setattr(device_probe, "measure_probes", measure)
    settings = SessionSettings(backend_names=("tvm",), num_threads=1)
    for _ in range(2):
        with start_session("cpu", settings, records_url=str(tmp_path / "records.db")) as session:
            price_function(session, load_model("mlp:tiny").module, name="mlp", launch_penalty_us=0)
    assert session.measurer.new_measurements == 0
    assert len(takes) > 1
