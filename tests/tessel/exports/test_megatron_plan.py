"""A plan's cuts as Megatron's arguments, and what its own order costs beside the plan's."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from layer_plans import profile, saved_plan

from tessel.errors import ScheduleError
from tessel.exports import megatron_plan
from tessel.exports.megatron import read_layout
from tessel.exports.megatron_plan import layout_of_recipe, megatron_arguments, orders_of_megatron, split_flags
from tessel.exports.recipe import Recipe, recipe_of_saved_plan
from tessel.planning.layout import Layout


def interleaved(**changes: object) -> Recipe:
    values: dict[str, object] = {
        "data_parallel": 2,
        "pipeline": 2,
        "micro_batch": 1,
        "micro_batches": 8,
        "placement": "interleaved",
        "cuts": ((0, 2), (3, 4), (5, 6), (7, 7)),
    }
    layout = Layout(**(values | changes))  # type: ignore[arg-type]  # fields of Layout
    return recipe_of_saved_plan(saved_plan(layout=layout, order="interleaved"))


def arguments_of(text: str) -> dict[str, str]:
    words = [shlex.split(line) for line in text.splitlines() if not line.startswith("#")]
    return dict(words)


def test_arguments_say_the_plan_s_layout_and_numbers() -> None:
    plan = interleaved()
    found = arguments_of(megatron_arguments(plan))
    layout = read_layout(
        found["--pipeline-model-parallel-layout"], int(found["--pipeline-model-parallel-size"])
    )
    assert layout == layout_of_recipe(plan)
    assert layout.stages == ("Ett", "tt", "tt", "L")
    assert found["--num-layers"] == "6"
    assert found["--global-batch-size"] == "16"
    size = int(found["--microbatch-group-size-per-virtual-pipeline-stage"])
    assert size == orders_of_megatron(plan, layout)[0].group_size


def test_the_shortest_of_megatron_s_orders_is_named() -> None:
    plan = interleaved()
    orders = orders_of_megatron(plan, layout_of_recipe(plan))
    assert {order.group_size for order in orders} == {2, 3, 4, 5, 6, 8}
    assert [order.schedule.makespan for order in orders] == sorted(
        order.schedule.makespan for order in orders
    )
    assert min(order.schedule.makespan for order in orders) <= plan.schedule.makespan


def test_layers_of_two_kinds_are_said() -> None:
    plan = interleaved()
    layers = [
        layer.replace("block", "moe") if layer in ("block1", "block3") else layer for layer in plan.layers
    ]
    text = megatron_arguments(replace(plan, layers=tuple(layers)))
    assert arguments_of(text)["--moe-layer-freq"] == "([0]*1+[1]*1+[0]*1+[1]*1+[0]*2)"
    assert "--moe-layer-freq" not in megatron_arguments(plan)


def test_an_order_that_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "# Megatron runs joint backwards in an order of its own; the plan's order is left out."
    assert said not in megatron_arguments(interleaved())
    monkeypatch.setattr(megatron_plan, "orders_of_megatron", lambda recipe, layout: ())
    assert said in megatron_arguments(interleaved())


def test_rows_that_are_the_embedding_together_are_one_letter() -> None:
    plan = interleaved()
    names = ("wte", "wpe", "h.0", "h.1", "h.2", "h.3", "ln", "head")
    named = Recipe(
        **{
            **{each: getattr(plan, each) for each in Recipe.__slots__},
            "layers": names,
            "cuts": ((0, 2), (3, 4), (5, 5), (6, 7)),
        }
    )
    assert layout_of_recipe(named).stages == ("Et", "tt", "t", "L")


def test_what_megatron_cannot_place_is_refused() -> None:
    v = saved_plan(
        layout=Layout(
            data_parallel=1,
            pipeline=2,
            micro_batch=1,
            micro_batches=4,
            placement="zbv",
            cuts=((0, 2), (3, 4), (5, 6), (7, 7)),
            split_backward=True,
        ),
        order="zb-v",
    )
    with pytest.raises(ScheduleError, match="in a loop over the ranks only"):
        megatron_arguments(recipe_of_saved_plan(v))
    plan = interleaved()
    blocks = Recipe(
        **{
            **{each: getattr(plan, each) for each in Recipe.__slots__},
            "layers": tuple(f"block{index}" for index in range(8)),
        }
    )
    with pytest.raises(ScheduleError, match="no layer of toy is an embedding"):
        megatron_arguments(blocks)


def test_rows_that_megatron_holds_together_are_in_one_stage() -> None:
    plan = interleaved()
    rows = ("wte", "wpe", "h.0", "h.1", "h.2", "h.3", "ln", "head")
    for cuts, found in (
        (((0, 0), (1, 3), (4, 5), (6, 7)), "row 'wte' is in stage 0 and 'wpe' in stage 1"),
        (((0, 2), (3, 5), (6, 6), (7, 7)), "row 'ln' is in stage 2 and 'head' in stage 3"),
    ):
        with pytest.raises(ScheduleError, match=found):
            layout_of_recipe(replace(plan, layers=rows, cuts=cuts))
    behind = replace(plan, layers=rows, cuts=((0, 2), (3, 4), (5, 6), (7, 7)))
    assert str(layout_of_recipe(behind)) == "Et|tt|t|L"
    assert "# Megatron runs row 6, a norm, with the head in stage 3, not in" in megatron_arguments(behind)


def test_chunks_alone_need_as_many_micro_batches_as_ranks() -> None:
    with pytest.raises(ScheduleError, match="Megatron interleaves no 1 micro-batches on 2 ranks"):
        megatron_arguments(replace(interleaved(), micro_batches=1))
    one_each = Layout(
        data_parallel=1,
        pipeline=2,
        micro_batch=1,
        micro_batches=1,
        placement="vshape",
        cuts=((0, 3), (4, 7)),
    )
    found = arguments_of(megatron_arguments(recipe_of_saved_plan(saved_plan(layout=one_each, order="1f1b"))))
    assert found["--global-batch-size"] == "1"
    assert "--microbatch-group-size-per-virtual-pipeline-stage" not in found


def test_one_replica_of_undivided_layers_is_what_a_recipe_is_without_a_word() -> None:
    plan = interleaved()
    stated = (
        "model",
        "layers",
        "cuts",
        "device_of_stage",
        "actions",
        "schedule",
        "micro_batches",
        "micro_batch",
    )
    found = arguments_of(megatron_arguments(Recipe(**{name: getattr(plan, name) for name in stated})))
    assert found["--global-batch-size"] == "8"
    assert "--tensor-model-parallel-size" not in found


def test_recomputation_of_some_stages_is_said() -> None:
    text = megatron_arguments(interleaved(recompute=(True, False, False, False)))
    assert "The plan recomputes stages 0 alone; Megatron does all" in text
    for none_or_all in (False, True):
        assert "alone; Megatron" not in megatron_arguments(interleaved(recompute=(none_or_all,) * 4))
    assert profile().layers[0].name == "embed"


def test_a_limit_is_kept_only_where_every_device_keeps_it() -> None:
    schedule = interleaved().schedule
    peaks = schedule.peak_memory
    assert megatron_plan._fits(schedule, peaks)
    assert not megatron_plan._fits(schedule, (peaks[0] - 1, *(peak + 1 for peak in peaks[1:])))


def test_releases_without_layouts_are_told_their_flags() -> None:
    cuts = ((0, 2), (3, 7))
    layout = Layout(
        data_parallel=1, pipeline=2, micro_batch=1, micro_batches=4, placement="vshape", cuts=cuts
    )
    recipe = recipe_of_saved_plan(saved_plan(layout=layout))
    flags = split_flags(layout_of_recipe(recipe))
    assert flags
    assert f"# A release without layouts makes these cuts by {' '.join(flags)}." in megatron_arguments(recipe)
