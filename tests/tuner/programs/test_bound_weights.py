"""Stages that do not train compute once what depends on weights alone, and keep to what their weights are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from pipeline_programs import Step
from planned_models import LANGUAGE_MODEL, THUMBNAILS, plan_on_tvm, thumbnails

from tests.samples.programs.one_placement import tune_model
from tuner.frontend import load_model
from tuner.graph.relax_types import num_inputs_of
from tuner.partition.assignment import Assignment
from tuner.plan import ModelPlan
from tuner.programs.compiled_stage import CompiledStage
from tuner.programs.compiled_stages import ProgramSpec, load_planned_model, load_programs, reference_outputs
from tuner.programs.inputs import draw_inputs
from tuner.shards.stage import shard_ends
from tuner.stages import build_stages, cut_between, layers_of
from tuner.tuning.session import SessionSettings, start_session
from tuner.tuning.tune import TuningSettings

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


@pytest.fixture(scope="module", params=["rule", pytest.param("measurement", marks=pytest.mark.slow)])
def plan(request: pytest.FixtureRequest) -> ModelPlan:
    if request.param == "rule":
        return plan_on_tvm(THUMBNAILS, ["norms.1"], training=False)
    return cast(ModelPlan, request.getfixturevalue("tuned"))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> ModelPlan:
    url = f"sqlite:///{tmp_path_factory.mktemp('records')}/records.db"
    # Which of the two is faster differs with the machine and its load, so convolutions are given to one.
    backends = SessionSettings(
        backend_names=("tvm", "nhwc"), num_threads=1, assignments=(Assignment.parse("*conv2d=nhwc"),)
    )
    with start_session("cpu", backends, records_url=url) as session:
        return tune_model(
            load_model(THUMBNAILS, training=False), session, TuningSettings(num_stages=2, cuts=("norms.1",))
        )


@pytest.fixture
def programs(plan: ModelPlan) -> dict[int, CompiledStage]:
    return load_programs(ProgramSpec(plan=plan, trust_model=True), range(2))


@pytest.mark.slow
def test_stages_have_the_parts_that_the_whole_model_has(tuned: ModelPlan) -> None:
    """Folded normalisations, and kernels that need packed weights, were for the whole model alone once."""
    assert tuned.binds_weights
    assert all("batch_norm" not in name for part in tuned.partition for name in part.operators)
    packing = {function for part in tuned.partition if part.backend == "nhwc" for function in part.functions}
    assert packing == {"stage0.forward", "stage1.forward"}


def test_outputs_are_those_of_the_model_s_own_program(
    plan: ModelPlan, programs: dict[int, CompiledStage]
) -> None:
    expected = list(reference_outputs(ProgramSpec(plan=plan, trust_model=True), 2))
    for _ in range(2):
        for micro_batch, outputs in enumerate(expected):
            (found,) = _run(programs, micro_batch).values()
            (wanted,) = outputs.values()
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "norms.2.weight",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("first.weight", "head.weight", "head.bias")
        ),
    ],
)
def test_a_weight_that_is_changed_in_place_counts_from_then_on(
    plan: ModelPlan, programs: dict[int, CompiledStage], name: str
) -> None:
    _run(programs, 0)
    (stage,) = [program for program in programs.values() if name in program.weights]
    with torch.no_grad():
        stage.weights[name].mul_(3.0)
    module, _ = thumbnails()
    module.load_state_dict(
        {name: weight for program in programs.values() for name, weight in program.weights.items()},
        strict=False,
    )
    model = load_planned_model(ProgramSpec(plan=plan, trust_model=True))
    (drawn,) = draw_inputs(model, 0, 0).values()
    with torch.no_grad():
        expected = module.eval()(drawn)
    (found,) = _run(programs, 0).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_what_is_kept_of_weights_is_counted(tuned: ModelPlan) -> None:
    programs = load_programs(ProgramSpec(plan=tuned, trust_model=True), range(2))
    for stage, program in zip(tuned.stages, programs.values(), strict=True):
        assert program.memory is not None
        assert stage.bound_bytes > 0
        assert sum(program.memory.weights.values()) == stage.weight_bytes + stage.bound_bytes


@pytest.mark.parametrize("constant_weights", [True, False])
def test_segments_of_a_divided_stage_say_which_inputs_are_weights(constant_weights: bool) -> None:
    model = load_model(LANGUAGE_MODEL, training=False)
    layers = layers_of(model)
    cuts = cut_between(layers, [1, 3, len(layers) - 1])
    stages = build_stages(model, cuts, constant_weights=constant_weights)
    counts: list[int] = []
    for name, divided in shard_ends(stages).items():
        (stage,) = [each for each in stages if each.name == name]
        for segment in (part for shards in divided.forward.segments for part in shards):
            are_weights = [info.name in stage.parameters for info in segment.inputs]
            assert num_inputs_of(segment.module["main"]) == (
                are_weights.count(False) if constant_weights else None
            )
            assert not constant_weights or are_weights == sorted(are_weights)
            counts.append(are_weights.count(True))
    assert counts.count(1) == 4  # table and head, on either device


def test_a_plan_from_before_runs_as_it_was() -> None:
    """Its parts take weights as they are."""
    plan = plan_on_tvm(THUMBNAILS, ["norms.1"], training=False, binds_weights=False)
    spec = ProgramSpec(plan=plan, trust_model=True)
    programs = load_programs(spec, range(2))
    assert not spec.plan.binds_weights
    (wanted,) = next(reference_outputs(spec, 1)).values()
    (found,) = _run(programs, 0).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def _run(programs: Mapping[int, CompiledStage], micro_batch: int) -> dict[str, np.ndarray]:
    sent = {}
    for program in programs.values():
        program.keep_outputs()
        program.start_step(micro_batch + 1)
        sent = program.run(Step("F", micro_batch), sent)
    return {name: tensor.numpy() for name, tensor in programs[1].outputs()[micro_batch].items()}
