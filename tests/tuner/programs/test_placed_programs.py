"""Branches and divided stages on real ranks: losses and gradients are those of plain torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from planned_models import (
    ECHO,
    ENCODER_DECODER,
    LANGUAGE_MODEL,
    TWO_TOWERS,
    m_shape_on_tvm,
    placed_on_tvm,
    plan_on_tvm,
)
from saved_plans import run_compiled, run_on_torch
from shared_modules import PYTHONPATH

from tessel.engine.run import RunReport
from tessel.tuned_model.recomputation import recomputing
from tessel.tuned_model.replicas import replicated
from tuner.plan import ModelPlan
from tuner.stages.placed_stages import PlacedStages

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

MICRO_BATCHES = 3
N_SHAPE = PlacedStages.chain([(0, 1), (0,), (0, 1), (1,), (0, 1)])
K_SHAPE = PlacedStages(((0,), (1,), (0, 1)), ((), (), (0, 1)))


@pytest.fixture(autouse=True)
def ranks_find_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)


def check(report: RunReport, num_gradients: int) -> None:
    assert not report.check.failures, report.check.describe_failures()
    schedules = len(report.figures)
    assert report.check.num_gradients == schedules * num_gradients
    assert report.check.num_losses >= schedules * MICRO_BATCHES
    assert report.max_gradient_error is not None
    assert report.max_gradient_error < 1e-4


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(
            lambda: m_shape_on_tvm(LANGUAGE_MODEL, 2, training=False),
            id="m",
            marks=pytest.mark.slow,  # two ranks compile
        ),
        pytest.param(
            lambda: replicated(placed_on_tvm(TWO_TOWERS, K_SHAPE, training=False), 2),
            id="copies-of-a-k",
            marks=pytest.mark.slow,  # four ranks compile at once
        ),
        pytest.param(
            lambda: placed_on_tvm("gpt2:tiny", PlacedStages.chain([(0, 1), (2, 3)]), training=False),
            id="tensor-parallel",
            marks=pytest.mark.slow,  # likewise
        ),
    ],
)
@pytest.mark.parametrize(
    "run", [run_compiled, pytest.param(run_on_torch, marks=pytest.mark.slow)], ids=["compiled", "torch"]
)
def test_outputs_of_inference_are_the_uncut_model_s(
    plan: Callable[[], ModelPlan], run: Callable[[ModelPlan, int], RunReport]
) -> None:
    planned = plan()
    report = run(planned, MICRO_BATCHES)
    assert not report.check.failures, report.check.describe_failures()
    assert report.check.num_outputs == len(report.figures) * MICRO_BATCHES * planned.replicas
    assert report.check.worst_output is not None
    assert report.check.worst_output.relative_error is not None
    assert report.check.worst_output.relative_error < 1e-5
    assert report.check.num_gradients == report.check.num_losses == 0


@pytest.mark.slow
def test_outputs_that_an_earlier_stage_makes_are_compared_too() -> None:
    """The model returns what crosses the cut, and what it was given, which no stage makes."""
    check = run_compiled(plan_on_tvm(ECHO, ["first"], training=False), MICRO_BATCHES).check
    assert not check.failures, check.describe_failures()
    assert check.num_outputs % (2 * MICRO_BATCHES) == 0


@pytest.mark.slow
def test_a_wrong_output_of_one_rank_is_seen_and_named() -> None:
    plan = m_shape_on_tvm(LANGUAGE_MODEL, 2, training=False)
    check = run_compiled(plan, MICRO_BATCHES, "sharded_with_a_fault:wrong_outputs").check
    assert len(check.failures) == check.num_outputs
    assert f"of micro-batch 0 (stage {len(plan.stages) - 1}, searched)" in check.describe_failures()


@pytest.mark.slow  # two ranks compile at once
def test_two_towers_that_meet_in_a_divided_stage_are_plain_torch() -> None:
    plan = placed_on_tvm(TWO_TOWERS, K_SHAPE)
    assert plan.stages[2].shards is not None
    assert plan.stages[2].shards.axes == {"joint.0.weight": 0, "joint.0.bias": 0, "joint.2.weight": 1}
    check(run_compiled(recomputing(plan, {1, 2}), MICRO_BATCHES), 15)


@pytest.mark.slow  # three ranks compile at once
def test_a_tensor_that_forks_has_the_sum_of_its_gradients() -> None:
    """What the encoder makes goes to both decoder layers directly, and the tied table is in all stages."""
    placed = PlacedStages(((0,), (1,), (2,)), ((), (0,), (0, 1)))
    plan = placed_on_tvm(ENCODER_DECODER, placed)
    assert plan.stages_before == ((), (0,), (0, 1))
    check(run_compiled(plan, MICRO_BATCHES), 7)


@pytest.mark.slow  # four ranks compile at once
def test_blocks_over_some_of_the_ranks_have_groups_of_their_own() -> None:
    """Two copies of a k shape: each joint stage is divided over the two ranks of its copy, and recomputes."""
    plan = recomputing(replicated(placed_on_tvm(TWO_TOWERS, K_SHAPE), 2), {1, 2, 5})
    check(run_compiled(plan, MICRO_BATCHES), 15)


@pytest.mark.slow  # four ranks compile GPT-2's blocks over two of them each
def test_tensor_parallel_stages_are_the_uncut_model() -> None:
    plan = placed_on_tvm("gpt2:tiny", PlacedStages.chain([(0, 1), (2, 3)]))
    assert all(stage.shards is not None for stage in plan.stages)
    check(run_compiled(plan, MICRO_BATCHES), 52)


@pytest.mark.slow  # an encoder, a decoder and three divided layers
def test_an_nn_shape_of_an_encoder_decoder_is_the_uncut_model() -> None:
    plan = placed_on_tvm("mt5:tiny", N_SHAPE, fixed={0: 0, 2: 3, 4: 6})
    assert [stage.shards is not None for stage in plan.stages] == [True, False, True, False, True]
    check(run_compiled(plan, MICRO_BATCHES), 52)


@pytest.mark.slow  # two to four ranks load a model
@pytest.mark.parametrize(
    ("plan", "num_gradients"),
    [
        pytest.param(
            lambda: placed_on_tvm("gpt2:tiny", PlacedStages.chain([(0,), (1,)])), 52, id="chain-of-the-zoo"
        ),
        pytest.param(lambda: m_shape_on_tvm(LANGUAGE_MODEL, 2), 9, id="m"),
        pytest.param(
            lambda: recomputing(replicated(placed_on_tvm(TWO_TOWERS, K_SHAPE), 2), {1, 2}),
            15,
            id="copies-of-a-k",
        ),
        pytest.param(
            lambda: placed_on_tvm("gpt2:tiny", PlacedStages.chain([(0, 1), (2, 3)])),
            52,
            id="tensor-parallel",
        ),
        pytest.param(
            lambda: placed_on_tvm("mt5:tiny", N_SHAPE, fixed={0: 0, 2: 3, 4: 6}),
            52,
            id="nn",
        ),
    ],
)
def test_torch_runs_every_kind_of_plan(plan: Callable[[], ModelPlan], num_gradients: int) -> None:
    """The reference of the zoo's is the uncut program under autograd."""
    check(run_on_torch(plan(), MICRO_BATCHES), num_gradients)
