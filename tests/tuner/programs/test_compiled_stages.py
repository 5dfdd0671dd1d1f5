"""Compiled stages, partitioned as the plan says, have the uncut model's losses and gradients."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from pipeline_programs import Step
from planned_models import ENCODER_DECODER, plan_on_tvm

from tessel.tuned_model.recomputation import recomputing
from tuner.errors import TunerError
from tuner.plan import ModelPlan, PartitionPlan
from tuner.programs.compiled_stages import (
    ProgramSpec,
    check_spec,
    load_planned_model,
    load_programs,
    reference_step,
)
from tuner.programs.inputs import draw_inputs
from tuner.targets.target import Target

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

MICRO_BATCHES = 3


@pytest.fixture(scope="module")
def plan() -> ModelPlan:
    return plan_on_tvm(ENCODER_DECODER, ["encoder", "decoder.0"])


@pytest.mark.parametrize(
    "recomputed", [pytest.param((), marks=pytest.mark.slow), (0, 1, 2)], ids=["kept", "recomputed"]
)
def test_losses_and_gradients_are_the_uncut_models(plan: ModelPlan, recomputed: tuple[int, ...]) -> None:
    """Joint and split backwards mixed, micro-batches out of order, weight halves last; twice over."""
    spec = ProgramSpec(plan=recomputing(plan, recomputed), trust_model=True)
    programs = load_programs(spec, range(3))
    split = {(1, 0), (1, 2), (2, 0)}
    for _ in range(2):
        for program in programs.values():
            program.start_step(MICRO_BATCHES)
        for m in (2, 0, 1):
            sent = {}
            for number in range(3):
                sent = programs[number].run(Step("F", m), sent)
                assert tuple(sent) == tuple(info.name for info in programs[number].sent)
        for m in (1, 2, 0):
            sent = {}
            for number in (2, 1, 0):
                assert set(sent) == {info.name for info in programs[number].received_gradients}
                sent = programs[number].run(Step("I" if (number, m) in split else "B", m), sent)
        for number, m in sorted(split):
            programs[number].run(Step("W", m), {})
    losses, expected = reference_step(spec, MICRO_BATCHES)
    assert programs[2].losses() == pytest.approx(losses, rel=1e-5)
    assert programs[0].losses() == {}
    leader = {(member.name, member.stage): group[0].name for group in plan.tied for member in group}
    found: dict[str, float | np.ndarray] = defaultdict(float)
    for number, program in programs.items():
        for name, gradient in program.gradients().items():
            found[leader.get((name, number), name)] += gradient.numpy()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_inputs_are_alike_in_every_process_and_differ_by_micro_batch(plan: ModelPlan) -> None:
    spec = ProgramSpec(plan=plan, trust_model=True)
    model = load_planned_model(spec)
    first, again, second = (draw_inputs(model, 0, m) for m in (0, 0, 1))
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != second[name]).any() for name in first)


def test_a_model_that_has_changed_since_is_refused(plan: ModelPlan) -> None:
    other = msgspec.structs.replace(plan, model_fingerprint="0" * 8)
    with pytest.raises(TunerError, match="the plan was made for 00000000; tune it again"):
        load_planned_model(ProgramSpec(plan=other, trust_model=True))


def test_a_backend_that_is_not_here_is_named(plan: ModelPlan) -> None:
    (first, *_) = plan.partition
    missing: PartitionPlan = msgspec.structs.replace(first, backend="elsewhere")
    other = msgspec.structs.replace(plan, partition=(missing,))
    with pytest.raises(TunerError, match="backend elsewhere, which is not available here"):
        load_programs(ProgramSpec(plan=other, trust_model=True), [0])


def test_a_plan_whose_kernels_an_earlier_version_tuned_is_built_by_rule_with_a_warning(
    plan: ModelPlan, caplog: pytest.LogCaptureFixture
) -> None:
    other = msgspec.structs.replace(plan, tiles='{"product:8x16x32":{"rows":4}}')
    assert list(load_programs(ProgramSpec(plan=other, trust_model=True), [0])) == [0]
    assert "an earlier version tuned kernels of this plan" in caplog.text


def test_a_plan_for_another_gpu_than_this_machines_is_refused(
    plan: ModelPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Target(name="cuda", kind="cuda", tvm_json='{"arch":"sm_80","kind":"cuda"}', num_threads=1)
    monkeypatch.setattr("tuner.programs.compiled_stages.resolve_target", lambda name: here)
    for arch, fits in (("sm_90a", False), ("sm_80", True), ("sm_80a", True)):
        target = f'{{"arch":"{arch}","kind":"cuda"}}'
        spec = ProgramSpec(
            plan=msgspec.structs.replace(plan, target=target, device_model="H200"), trust_model=True
        )
        if fits:
            check_spec(spec)
            continue
        with pytest.raises(TunerError, match=r"tuned for H200 \(sm_90\), but this machine's GPU is sm_80"):
            check_spec(spec)
