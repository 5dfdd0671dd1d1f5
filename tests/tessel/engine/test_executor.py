"""Real ranks compute what the uncut model does, whatever the order of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

pytest.importorskip("torch")

import vocabulary_parallel
from pipeline_programs import ChainSpec, reference
from random_schedules import draw_schedule

from tessel.engine.actions import actions_of
from tessel.handwritten import HANDWRITTEN
from tessel.shapes import make_shape

pytestmark = pytest.mark.torch

MICRO_BATCHES = 4


def assert_exact(
    ran: tuple[tuple[object, ...], dict[str, dict[str, np.ndarray]]],
    truth: tuple[Mapping[int, float], Mapping[str, np.ndarray]],
) -> None:
    results, gradients = ran
    losses, expected = truth
    for name, found in gradients.items():
        reported = {m: loss for result in results for m, loss in result.losses[name].items()}
        assert reported == pytest.approx(losses, rel=1e-5), name
        assert found.keys() == expected.keys()
        for weight, gradient in expected.items():
            np.testing.assert_allclose(
                found[weight], gradient, rtol=1e-4, atol=1e-6, err_msg=f"{name} {weight}"
            )


def test_any_order_of_a_chain_is_exact(run_ranks: Callable[..., object]) -> None:
    """Joint and split backwards mixed, weight halves late, the last stage's micro-batches shuffled."""
    placement = make_shape("vshape", 3, choose_backward=True)
    rng = np.random.default_rng(0)
    schedules = {f"random{i}": draw_schedule(placement, MICRO_BATCHES, rng) for i in range(8)}
    last = [[a.micro_batch for a in actions_of(s)[2] if a.kind == "F"] for s in schedules.values()]
    assert any(order != sorted(order) for order in last)
    ran = run_ranks(schedules, provider="pipeline_programs:provide", spec=ChainSpec(3))
    assert_exact(ran, reference(3, MICRO_BATCHES))
    for result in ran[0]:
        for name, schedule in schedules.items():
            (step,) = result.events[name]
            assert [event.action for event in step] == [str(a) for a in actions_of(schedule)[result.rank]]
            assert all(e.ready_s <= e.start_s <= e.end_s for e in step)


def test_a_rank_that_holds_both_ends_of_the_v_is_exact(run_ranks: Callable[..., object]) -> None:
    placement = make_shape("zbv", 2, split_backward=True)
    rng = np.random.default_rng(1)
    schedules = {f"random{i}": draw_schedule(placement, MICRO_BATCHES, rng) for i in range(3)}
    for rule in HANDWRITTEN:
        if rule.why_not(placement, MICRO_BATCHES, None) is None:
            schedules[rule.name] = rule.build(placement, micro_batches=MICRO_BATCHES)
    assert "zb-v" in schedules
    ran = run_ranks(schedules, provider="pipeline_programs:provide", spec=ChainSpec(4))
    assert_exact(ran, reference(4, MICRO_BATCHES))


def test_blocks_on_all_ranks_are_exact(run_ranks: Callable[..., object]) -> None:
    """A vocabulary-parallel embedding and head around a chain: the mllm shape; and the m shape's orders."""
    placement = make_shape("mllm", 2)
    rng = np.random.default_rng(2)
    schedules = {f"random{i}": draw_schedule(placement, MICRO_BATCHES, rng) for i in range(4)}
    ran = run_ranks(
        schedules, provider="vocabulary_parallel:provide", spec=vocabulary_parallel.ParallelSpec(4)
    )
    assert_exact(ran, vocabulary_parallel.reference(4, MICRO_BATCHES))
