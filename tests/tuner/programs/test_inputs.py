"""Inputs of micro-batches are drawn, but for whole numbers that a module refuses to be drawn."""

from __future__ import annotations

import msgspec
import pytest

pytest.importorskip("torch")

import torch
from pipeline_programs import Step
from planned_models import CAPTIONS, ENCODER_DECODER, captions, plan_on_tvm

from tuner.plan import ModelPlan
from tuner.programs import compiled_stages, torch_programs
from tuner.programs.inputs import draws_of

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


@pytest.fixture(scope="module")
def plan() -> ModelPlan:
    return plan_on_tvm(CAPTIONS, ["first", "second"])


def test_whole_numbers_that_cannot_be_drawn_are_the_examples(plan: ModelPlan) -> None:
    model = compiled_stages.load_planned_model(compiled_stages.ProgramSpec(plan=plan, trust_model=True))
    words, patches, labels = (spec.name for spec in model.inputs)
    draws = draws_of(model, 0)
    one, again, other = (draws.tensors(micro_batch) for micro_batch in (0, 0, 1))
    assert torch.equal(one[words], captions()[1][0])
    assert torch.equal(other[words], one[words])
    for name in (patches, labels):
        assert torch.equal(one[name], again[name])
        assert not torch.equal(one[name], other[name])


def test_whole_numbers_that_a_module_takes_are_drawn() -> None:
    plan = plan_on_tvm(ENCODER_DECODER, ["encoder", "decoder.0"])
    model = compiled_stages.load_planned_model(compiled_stages.ProgramSpec(plan=plan, trust_model=True))
    assert not draws_of(model, 0).given


@pytest.mark.parametrize("stages", [pytest.param("compiled", marks=pytest.mark.slow), "torch"])
def test_stages_and_their_reference_are_given_alike(plan: ModelPlan, stages: str) -> None:
    """As on three ranks: each loads the model anew."""
    kind = compiled_stages if stages == "compiled" else torch_programs
    spec_of = compiled_stages.ProgramSpec if stages == "compiled" else torch_programs.TorchProgramSpec
    spec = spec_of(plan=plan, trust_model=True)
    text = msgspec.json.encode(spec).decode()
    programs = [kind.provide_programs(text, [number])[number] for number in range(3)]
    for program in programs:
        program.start_step(2)
    for m in (0, 1):
        sent = {}
        for program in programs:
            sent = program.run(Step("F", m), sent)
        for program in reversed(programs):
            sent = program.run(Step("B", m), sent)
    losses, gradients = kind.reference_step(spec, 2)
    assert programs[2].losses() == pytest.approx(losses, rel=1e-5)
    assert len(set(losses.values())) == 2
    found = {name: each for program in programs for name, each in program.gradients().items()}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, torch.from_numpy(gradients[name]), rtol=1e-4, atol=1e-6)
