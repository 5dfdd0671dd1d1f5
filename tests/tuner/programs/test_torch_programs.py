"""A plan's torch modules, cut as planned, have the uncut module's losses and gradients."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from pipeline_programs import Step
from planned_models import ANSWERING, DROPPING, ENCODER_DECODER, HALVES, plan_on_tvm

from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.plan import ModelPlan
from tuner.programs import compiled_stages
from tuner.programs.torch_programs import TorchProgramSpec, check_spec, provide_programs, reference_step
from tuner.stages import layers_of

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


@pytest.fixture(scope="module")
def plan() -> ModelPlan:
    return plan_on_tvm(ENCODER_DECODER, ["encoder", "decoder.0"])


@pytest.fixture(scope="module")
def plan_of_views() -> ModelPlan:
    return plan_on_tvm(HALVES, ["first", "second"])


@pytest.fixture(scope="module")
def plan_of_a_dataclass() -> ModelPlan:
    return plan_on_tvm(ANSWERING, ["first", "second"])


@pytest.fixture(scope="module")
def plan_with_dropout() -> ModelPlan:
    return plan_on_tvm(DROPPING, ["first", "second"])


@pytest.fixture(scope="module")
def plan_of_the_zoo() -> ModelPlan:
    return plan_on_tvm("mlp:tiny", [layer.name for layer in layers_of(load_model("mlp:tiny"))][:2])


@pytest.mark.parametrize(
    "name",
    [
        "plan",
        "plan_of_the_zoo",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("plan_of_views", "plan_of_a_dataclass", "plan_with_dropout")
        ),
    ],
)
def test_losses_and_gradients_are_the_uncut_modules(name: str, request: pytest.FixtureRequest) -> None:
    plan = request.getfixturevalue(name)
    spec = TorchProgramSpec(plan=plan, trust_model=True)
    text = msgspec.json.encode(spec).decode()
    # As on three ranks: each makes the module anew.
    programs = [provide_programs(text, [number])[number] for number in range(3)]
    for program in programs:
        program.start_step(2)
    for m in (1, 0):
        sent = {}
        for program in programs:
            sent = program.run(Step("F", m), sent)
        for program in reversed(programs):
            sent = program.run(Step("I" if m else "B", m), sent)
    for program in programs:
        program.run(Step("W", 1), {})
    losses, expected = reference_step(spec, 2)
    assert programs[2].losses() == pytest.approx(losses)
    leader = {(member.name, member.stage): group[0].name for group in plan.tied for member in group}
    found: dict[str, float | np.ndarray] = defaultdict(float)
    for number, program in enumerate(programs):
        for name, gradient in program.gradients().items():
            found[leader.get((name, number), name)] += gradient.numpy()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_inference_keeps_nothing_and_returns_no_gradients() -> None:
    spec = TorchProgramSpec(plan=plan_on_tvm(ENCODER_DECODER, ["encoder"], training=False), trust_model=True)
    programs = provide_programs(msgspec.json.encode(spec).decode(), [0, 1])
    for program in programs.values():
        program.start_step(1)
    sent = programs[0].run(Step("F", 0), {})
    assert not any(tensor.requires_grad for tensor in sent.values())
    assert programs[1].run(Step("F", 0), sent) == {}
    assert (programs[0].received_gradients, programs[1].sent_gradients) == ((), ())
    assert (programs[1].losses(), reference_step(spec, 1)) == ({}, ({}, {}))


def test_code_that_the_user_did_not_name_is_refused(plan: ModelPlan) -> None:
    with pytest.raises(TunerError, match="trust"):
        check_spec(TorchProgramSpec(plan=plan))


def test_masks_of_dropout_are_drawn_as_compiled_stages_draw_them(plan_with_dropout: ModelPlan) -> None:
    """In the mode for inference nothing is dropped, and losses are others."""
    losses, _ = reference_step(TorchProgramSpec(plan=plan_with_dropout, trust_model=True), 2)
    compiled, _ = compiled_stages.reference_step(
        compiled_stages.ProgramSpec(plan=plan_with_dropout, trust_model=True), 2
    )
    assert losses == pytest.approx(compiled)
