"""A planned layout becomes the settings that cut a model so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from tuned_model import tuned_model

from tessel.jobs.layouts.planned_layout import (
    branched_placements,
    fastest_placement,
    placement_name,
    settings_of_layout,
)
from tessel.pipeline import build_plan
from tessel.planning.cluster import Link
from tessel.planning.layout import Layout, PlacementName
from tessel.search import SearchBudget
from tessel.tuned_model.layout_choice import ChosenLayout
from tessel.tuned_model.model_placement import ModelPlacement, model_placement
from tessel.tuned_plan import TunedPlan
from tuner.frontend import load_model
from tuner.plan import ShardsPlan, TiedParameter
from tuner.stages.placed_stages import PlacedStages
from tuner.tuning.tune import TuningSettings

pytestmark = pytest.mark.tvm

CUTS = ((0, 0), (1, 4), (5, 8), (9, 9))

NO_END = ChosenLayout(
    layout=Layout(data_parallel=1, pipeline=1, micro_batch=1, micro_batches=1, cuts=((0, 0),)),
    rows=(),
    lower_bound_us=0.0,
    link=Link(bytes_per_s=1e15, latency_us=0.0),
    update_us_a_byte=0.0,
    step_us=0.0,
)
"""Of a planned step after whose last block nothing takes time."""


@pytest.mark.parametrize(
    ("placement", "pipeline", "width", "name", "devices"),
    [
        ("mshape", 2, 1, "mshape", ((0, 1), (0,), (1,), (0, 1))),
        ("vshape", 4, 2, "vshape of 2", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("zbv", 2, 2, "zbv of 2", ((0, 1), (2, 3), (2, 3), (0, 1))),
        ("interleaved", 2, 1, "interleaved:2", ((0,), (1,), (0,), (1,))),
    ],
)
def test_stages_lie_where_the_layout_has_them(
    placement: PlacementName, pipeline: int, width: int, name: str, devices: tuple[tuple[int, ...], ...]
) -> None:
    layout = Layout(
        data_parallel=1,
        pipeline=pipeline,
        tensor_parallel=width,
        micro_batch=1,
        micro_batches=8,
        placement=placement,
        cuts=CUTS,
    )
    settings = settings_of_layout(layout, TuningSettings(num_stages=4, hop_us=1.0))
    assert placement_name(layout) == name
    assert settings.devices_by_stage == devices
    assert settings.layer_cuts == (1, 5, 9)
    assert settings.are_some_divided == (placement == "mshape" or width > 1)


def test_branches_become_stages_that_meet_on_all_devices() -> None:
    layout = Layout(
        data_parallel=1,
        pipeline=3,
        tensor_parallel=2,
        micro_batch=1,
        micro_batches=8,
        placement="kshape",
        branch_devices=2,
        cuts=CUTS,
    )
    settings = settings_of_layout(layout, TuningSettings(num_stages=4, hop_us=1.0))
    assert settings.placed == PlacedStages(
        ((0, 1), (2, 3), (4, 5), (0, 1, 2, 3, 4, 5)), ((), (0,), (), (1, 2))
    )
    assert settings.layer_cuts == (1, 5, 9)
    assert placement_name(layout) == "kshape of 2"


def placed_plan(name: str, forward_us: Sequence[float], micro_batches: int) -> TunedPlan:
    """Return the plan of a model on two devices, given its stages' forwards; backwards take twice as long."""
    placement = model_placement(name, 2)
    devices = placement.stages or tuple((device,) for device in placement.chain)
    tuned = tuned_model([(us, 2 * us, us, us) for us in forward_us])
    stages = tuple(
        msgspec.structs.replace(
            stage,
            shards=ShardsPlan(num_shards=2, axes={}, collective_us={}) if len(own) > 1 else None,
            # In halves, what other devices do meanwhile would count.
            backward_input=None,
            backward_weight=None,
        )
        for stage, own in zip(tuned.stages, devices, strict=True)
    )
    tuned = msgspec.structs.replace(
        tuned,
        stages=stages,
        stage_devices=devices,
        stages_before=placement.before,
        hop_latency_us=(0.0,) * (len(stages) - 1),
    )
    return build_plan(
        tuned, micro_batches=micro_batches, memory_limit_bytes=None, budget=SearchBudget(work_limit=0.1)
    )


@pytest.mark.parametrize(
    ("words", "collectives", "fastest"), [(400.0, 10.0, "nnshape"), (100.0, 200.0, "vshape")]
)
def test_an_encoder_decoder_takes_the_n_shape_where_its_words_are_most_of_the_work(
    words: float, collectives: float, fastest: str
) -> None:
    """Embedding, encoder, embedding, decoder, head; a divided layer costs half and its collectives."""
    block, half = 200.0, words / 2 + collectives
    stages = {
        "nnshape": (half, block, half, block, half),
        # The chain's best cut is after the second embedding, or before it: the same.
        "vshape": (2 * words + block, block + words),
    }
    # One micro-batch goes through all stages and back: three times their forwards.
    for name, forwards in stages.items():
        assert makespan_us(placed_plan(name, forwards, 1)) == pytest.approx(3 * sum(forwards), rel=0.01)
    plans = {name: placed_plan(name, forwards, 6) for name, forwards in stages.items()}
    # The busiest device of the n shape has all the divided layers and a block, that of the chain its stage.
    assert makespan_us(plans["nnshape"]) >= 6 * 3 * (3 * half + block)
    assert makespan_us(plans["vshape"]) >= 6 * 3 * (2 * words + block)
    assert fastest_placement(plans, NO_END) == fastest
    assert makespan_us(plans[fastest]) == min(map(makespan_us, plans.values()))


@pytest.mark.parametrize(("joint", "fastest"), [(100.0, "kshape"), (700.0, "vshape")])
def test_two_towers_take_the_k_shape_where_what_joins_them_is_light(joint: float, fastest: str) -> None:
    tower, divided = 300.0, joint / 2 + (300.0 if joint > 500 else 10.0)
    chain = min((2 * tower, joint), (tower, tower + joint), key=max)
    stages = {"kshape": (tower, tower, divided), "vshape": chain}
    # One micro-batch: towers side by side, then what joins them; on the chain, one after the other.
    assert makespan_us(placed_plan("kshape", stages["kshape"], 1)) == pytest.approx(
        3 * (tower + divided), rel=0.01
    )
    assert makespan_us(placed_plan("vshape", stages["vshape"], 1)) == pytest.approx(
        3 * (2 * tower + joint), rel=0.01
    )
    plans = {name: placed_plan(name, forwards, 6) for name, forwards in stages.items()}
    assert fastest_placement(plans, NO_END) == fastest


def test_what_follows_the_last_block_counts() -> None:
    """The chain with a table on both devices is faster by one part in a hundred, but for its sum."""
    tied = ((TiedParameter("h.0.weight", 0), TiedParameter("h.1.weight", 1)),)
    shared = msgspec.structs.replace(
        placed_plan("vshape", (200.0, 200.0), 4), tied=tied, tied_bytes=(4_000_000,)
    )
    plans = {"shared": shared, "apart": placed_plan("vshape", (202.0, 202.0), 4)}
    assert makespan_us(plans["shared"]) < makespan_us(plans["apart"])
    assert fastest_placement(plans, None) == "shared"
    assert fastest_placement(plans, NO_END) == "shared"
    slow = replace(NO_END, link=Link(bytes_per_s=1e9, latency_us=0.0))
    assert fastest_placement(plans, slow) == "apart"


def makespan_us(plan: TunedPlan) -> float:
    return plan.schedule.makespan * plan.step_us


def test_branches_are_offered_over_all_devices_and_replicated_over_parts_of_them() -> None:
    def settings_of(placement: ModelPlacement) -> TuningSettings:
        return TuningSettings(
            num_stages=0, placed=PlacedStages(placement.stages, placement.before, placement.needs_words)
        )

    towers = load_model("flava:tiny", training=True)
    replicas, settings = branched_placements(towers, settings_of, devices=4, replicas_of=8)
    assert replicas == {"kshape": 1, "kshape × 2": 2}
    assert [len(each.devices_by_stage) for each in settings.values()] == [5, 3]
    alone, _ = branched_placements(towers, settings_of, devices=4, replicas_of=1)
    assert alone == {"kshape": 1}
    odd, _ = branched_placements(towers, settings_of, devices=4, replicas_of=7)
    assert odd == {"kshape": 1}
