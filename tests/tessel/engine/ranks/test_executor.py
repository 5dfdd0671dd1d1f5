"""Real ranks compute what the uncut model does, whatever the order of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from pipeline_programs import ChainSpec, reference
from random_schedules import draw_schedule

from tessel.engine.actions import actions_of, rank_by_stage
from tessel.engine.devices import CPUS, Devices
from tessel.engine.import_function import find_function
from tessel.handwritten import HANDWRITTEN
from tessel.shapes import make_shape

pytestmark = pytest.mark.torch

MICRO_BATCHES = 4
IN_ORDER = Devices(is_tagged=False)
"""What carries tensors between GPUs, over gloo: messages have no tags and keep their order."""
VOCABULARY_PARALLEL = Path(__file__).parents[4] / "examples" / "vocabulary_parallel.py"


class Ranks(msgspec.Struct):
    """What stages of one's own are told."""

    ranks: tuple[tuple[int, ...], ...]


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


@pytest.mark.parametrize("devices", [CPUS, IN_ORDER], ids=["tags", "order"])
def test_any_order_of_a_chain_is_exact(devices: Devices, run_ranks: Callable[..., object]) -> None:
    """Joint and split backwards mixed, weight halves late, the last stage's micro-batches shuffled."""
    placement = make_shape("vshape", 3, choose_backward=True)
    rng = np.random.default_rng(0)
    schedules = {f"random{i}": draw_schedule(placement, MICRO_BATCHES, rng) for i in range(8)}
    last = [[a.micro_batch for a in actions_of(s)[2] if a.kind == "F"] for s in schedules.values()]
    assert any(order != sorted(order) for order in last)
    ran = run_ranks(schedules, provider="pipeline_programs:provide", spec=ChainSpec(3), devices=devices)
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


@pytest.mark.parametrize(
    ("shape", "devices"), [("mllm", CPUS), ("nnshape", CPUS), ("nnshape", IN_ORDER)], ids=str
)
def test_blocks_on_all_ranks_are_exact(
    shape: str, devices: Devices, run_ranks: Callable[..., object]
) -> None:
    """Embeddings and a head vocabulary-parallel over all ranks, in the middle too; one tied weight."""
    placement = make_shape(shape, 2, choose_backward=True)
    rng = np.random.default_rng(2)
    schedules = {f"random{i}": draw_schedule(placement, MICRO_BATCHES, rng) for i in range(2)}
    spec = Ranks(rank_by_stage(schedules["random0"]))
    results, by_stage = run_ranks(
        schedules, provider=f"{VOCABULARY_PARALLEL}:stages", spec=spec, devices=devices
    )
    gradients: dict[str, dict[str, np.ndarray]] = {}
    for name, found in by_stage.items():
        total = gradients.setdefault(name, {})
        for key, gradient in found.items():
            weight = key.partition("/")[2]
            total[weight] = total[weight] + gradient if weight in total else gradient
    reference = find_function(f"{VOCABULARY_PARALLEL}:reference")
    truth = reference(msgspec.json.encode(spec).decode(), MICRO_BATCHES)
    assert_exact((results, gradients), truth)
