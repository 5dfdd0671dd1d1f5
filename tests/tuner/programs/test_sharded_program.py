"""An m shape on real ranks: losses and gradients are those of plain torch, and a lost all-reduce is seen."""

from __future__ import annotations

import msgspec
import pytest

pytest.importorskip("torch")

from planned_models import LANGUAGE_MODEL, m_shape_on_tvm
from saved_plans import run_compiled
from sharded_with_a_fault import FAULTS
from shared_modules import PYTHONPATH

from tessel.engine.run import RunReport
from tessel.tuned_model.recomputation import recomputing
from tuner.errors import TunerError
from tuner.plan import ModelPlan
from tuner.programs.compiled_stages import ProgramSpec, load_programs

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

MICRO_BATCHES = 3


@pytest.fixture(autouse=True)
def ranks_find_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)


@pytest.fixture(scope="module")
def two() -> ModelPlan:
    return m_shape_on_tvm(LANGUAGE_MODEL, 2)


@pytest.mark.slow  # test_placed_programs.py runs divided stages on two ranks
def test_two_ranks_have_the_losses_and_gradients_of_plain_torch(two: ModelPlan) -> None:
    """The divided embedding and one stage of the chain recompute, the others keep what they saved."""
    check(run_compiled(recomputing(two, {0, 2}), MICRO_BATCHES))


@pytest.mark.slow  # four ranks compile at once
def test_four_ranks_have_the_losses_and_gradients_of_plain_torch() -> None:
    check(run_compiled(m_shape_on_tvm(LANGUAGE_MODEL, 4), MICRO_BATCHES))


def check(report: RunReport) -> None:
    assert not report.check.failures, report.check.describe_failures()
    # Searched and 1F1B: the tied table, four layers with a bias each, and a loss of each micro-batch.
    assert report.check.num_gradients == 2 * 9
    assert report.check.num_losses == 2 * MICRO_BATCHES
    assert report.max_gradient_error is not None
    assert report.max_gradient_error < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_collective_that_is_lost_is_seen(two: ModelPlan, fault: str) -> None:
    failures = run_compiled(two, MICRO_BATCHES, f"sharded_with_a_fault:{fault}").check.failures
    assert failures


def test_a_shard_is_not_built_outside_of_its_ranks(two: ModelPlan) -> None:
    with pytest.raises(TunerError, match="divided over 2 devices, and there are 1 ranks"):
        load_programs(ProgramSpec(plan=two, trust_model=True), [0])


def test_a_plan_that_divides_otherwise_is_refused(two: ModelPlan) -> None:
    first, *rest = two.stages
    assert first.shards is not None
    other = msgspec.structs.replace(
        first, shards=msgspec.structs.replace(first.shards, axes=dict.fromkeys(first.shards.axes, 1))
    )
    plan = msgspec.structs.replace(two, stages=(other, *rest))
    with pytest.raises(TunerError, match="stage0 over 2 devices, and the model cannot be divided so again"):
        load_programs(ProgramSpec(plan=plan, trust_model=True), [0])
