"""Parts of layers share what their layers cost, and a plan cuts within a layer where that pays."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from planned_models import plan_on_tvm
from saved_plans import run_compiled, run_on_torch

from tessel.jobs.layouts.planned_layout import choose_layout_in_parts, settings_of_layout
from tessel.planning.cluster import Link
from tessel.search import SearchBudget
from tessel.tuned_model.layout_choice import (
    ChosenLayout,
    LayoutRequest,
    choose_layout,
    profile_of_layers,
)
from tuner.frontend import load_model
from tuner.plan import Figure, LayersPlan
from tuner.stages import build_stages, cut_between, layers_of
from tuner.tuning.stage_costs.layer_parts import guess_parts
from tuner.tuning.tune import TuningSettings

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

GPT2, BLOCK_US = "gpt2:tiny", 1000.0

PARTS = ["wte+wpe", *(name for block in range(4) for name in (f"h.{block}.attn+", f"h.{block}")), "head"]


def measured(costs_us: tuple[float, ...], name: str = GPT2) -> LayersPlan:
    """Return a model's layers, as if each had been measured to take so long forward, and twice back."""
    model = load_model(name, training=True)
    layers = layers_of(model, at_branches=True)
    stages = build_stages(model, cut_between(layers, range(1, len(layers))))
    plans = []
    for stage, cost in zip(stages, costs_us, strict=True):
        figures = {
            name: Figure(latency_us=cost * (2 if name == "backward" else 1), source="given")
            for name in stage.functions()
        }
        plans.append(stage.plan(figures))
    return LayersPlan(
        model=name,
        device_model="made",
        training=True,
        batch=1,
        layers=tuple(plans),
        tied=(),
        shards={},
        undivided="",
        update=Figure(latency_us=1.0, source="given"),
        updated_bytes=16 << 20,
        update_moves=3,
    )


@pytest.fixture(scope="module")
def equal_blocks() -> LayersPlan:
    """Return four equal blocks, and ends that take next to nothing."""
    return measured((10.0, *(BLOCK_US,) * 4, 10.0))


def choose(layers: LayersPlan, devices: int, asked: list[str]) -> ChosenLayout:
    """Plan from layers, and from the guess of their parts as if these had been measured."""
    request = LayoutRequest(
        devices=devices,
        micro_batches=8,
        link=Link(bytes_per_s=1e12, latency_us=1.0),
        replicates=False,
    )
    parts = guess_parts(load_model(GPT2, training=True), layers)
    assert parts is not None

    def measure() -> LayersPlan:
        asked.append("parts")
        return parts

    whole = choose_layout(layers, request, budget=SearchBudget(work_limit=0.5))
    return choose_layout_in_parts(whole, parts, measure, request, work=0.5, seed=0)


def test_parts_take_their_share_of_a_layers_operations(equal_blocks: LayersPlan) -> None:
    model = load_model(GPT2, training=True)
    parts = guess_parts(model, equal_blocks)
    assert parts is not None
    assert len(parts.layers) == len(PARTS)
    attention, feed_forward = parts.layers[1:3]
    assert attention.forward.latency_us + feed_forward.forward.latency_us == pytest.approx(BLOCK_US)
    assert 0.3 < attention.forward.latency_us / BLOCK_US < 0.5  # 4 and 8 products of width squared
    assert {each.forward.source for each in (attention, feed_forward)} == {"derived"}
    block = equal_blocks.layers[1]
    for name in ("weight_bytes", "saved_bytes"):
        assert sum(getattr(each, name) for each in (attention, feed_forward)) == pytest.approx(
            getattr(block, name), abs=1
        )
    assert attention.boundary_bytes == block.boundary_bytes
    assert parts.layers[0] == equal_blocks.layers[0]
    assert [group[0].stage for group in parts.tied] == [0]
    assert [group[1].stage for group in parts.tied] == [len(PARTS) - 1]


def test_a_shard_of_a_layer_is_divided_likewise(equal_blocks: LayersPlan) -> None:
    halves = tuple(
        msgspec.structs.replace(each, weight_bytes=each.weight_bytes // 2) for each in equal_blocks.layers
    )
    layers = msgspec.structs.replace(
        equal_blocks, tensor_parallel={2: halves}, shards={2: (halves[0], halves[-1])}
    )
    parts = guess_parts(load_model(GPT2, training=True), layers)
    assert parts is not None
    assert len(parts.tensor_parallel[2]) == len(PARTS)
    whole = sum(each.weight_bytes for each in parts.layers[1:3])
    assert sum(each.weight_bytes for each in parts.tensor_parallel[2][1:3]) == pytest.approx(whole / 2, abs=2)
    first, last = layers.shards[2]
    # The last layer has no parts, but another number.
    assert parts.shards[2] == (first, msgspec.structs.replace(last, name=f"stage{len(PARTS) - 1}"))


def test_a_plan_cuts_within_a_block_where_that_pays(equal_blocks: LayersPlan) -> None:
    """Four blocks over three devices: two for one of them, or one and a third for each."""
    asked: list[str] = []
    found = choose(equal_blocks, 3, asked)
    assert asked == ["parts"]
    assert found.in_parts
    assert any(first % 2 == 0 and 0 < first < len(PARTS) - 1 for first, _ in found.layout.cuts[1:])
    ideal_us = 3 * BLOCK_US * 4 / 3 * 8
    assert found.step_us < 1.25 * ideal_us
    settings = settings_of_layout(found.layout, TuningSettings(num_stages=3), in_parts=found.in_parts)
    assert settings.in_parts


def test_parts_are_not_measured_where_whole_blocks_balance(equal_blocks: LayersPlan) -> None:
    asked: list[str] = []
    found = choose(equal_blocks, 2, asked)
    assert not asked
    assert not found.in_parts


def test_towers_in_parts_are_branches_and_each_layer_has_a_name_of_its_own() -> None:
    """One without parts stands behind some that have, and so has another number than it was measured by."""
    model = load_model("flava:tiny", training=True)
    count = len(layers_of(model, at_branches=True))
    parts = guess_parts(model, measured((BLOCK_US,) * count, "flava:tiny"))
    assert parts is not None
    assert [stage.name for stage in parts.layers] == [f"stage{n}" for n in range(len(parts.layers))]
    assert len(parts.layers) > count
    branches = profile_of_layers(parts).branches
    assert branches is not None
    assert parts.layers[branches.second].parameters[0] == "text_model.word_embeddings.weight"


def test_a_model_whose_layers_have_no_parts_is_left_alone() -> None:
    model = load_model("mlp", training=True)
    layers = msgspec.structs.replace(measured((1.0,) * 6), model="mlp")
    assert guess_parts(model, layers) is None


@pytest.mark.slow  # ranks start
@pytest.mark.parametrize("run", [run_compiled, run_on_torch], ids=["compiled", "torch"])
def test_stages_cut_within_blocks_are_exact_on_ranks(run) -> None:  # type: ignore[no-untyped-def]  # two functions
    plan = plan_on_tvm(GPT2, ["h.0.attn+", "h.2.attn+"])
    assert [stage.layers[-1].removeprefix("transformer.") for stage in plan.stages[:2]] == [
        "h.0.attn+",
        "h.2.attn+",
    ]
    assert [len([info for info in stage.inputs if info.shape != ()]) for stage in plan.stages[1:2]] == [1]
    report = run(plan, 3)
    assert not report.check.failures
    assert report.check.num_gradients > 100
    assert report.check.num_losses > 0
    assert np.isfinite(report.figures["searched"].real_ms)
