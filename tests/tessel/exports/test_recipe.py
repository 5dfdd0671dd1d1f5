"""Roles of layers, and the recipes of plans and schedules; one contract for every framework's export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from layer_plans import profile, saved_plan
from tuned_model import tuned_model

from tessel.batches import Batch, MicroBatchClass
from tessel.engine.actions import ActionKind, actions_from_csv, actions_to_csv, schedule_of_actions
from tessel.errors import ScheduleError
from tessel.exports.deepspeed import deepspeed_module
from tessel.exports.markdown import recipe_markdown
from tessel.exports.megatron_plan import megatron_arguments
from tessel.exports.notes import device_notes, notes_of, tie_notes, weight_notes
from tessel.exports.recipe import (
    Recipe,
    recipe_of_plan,
    recipe_of_saved_plan,
    recipe_of_schedule,
    renumbered_by_first_stage,
)
from tessel.exports.roles import Role, roles_of
from tessel.exports.torchtitan import RELEASES, orders_csv, titan_file
from tessel.handwritten.chimera import CHIMERA
from tessel.handwritten.gpipe import GPIPE
from tessel.pipeline import build_plan
from tessel.planning.layout import Layout
from tessel.schedule.overlap import Overlap
from tessel.search.budget import SearchBudget
from tessel.shapes import make_shape, vshape, xshape

WRITERS: dict[str, Callable[[Recipe], str]] = {
    "torch": orders_csv,
    "torchtitan (Python)": lambda recipe: titan_file(recipe, RELEASES["0.3.0"], csv="orders.csv"),
    "torchtitan (main)": lambda recipe: titan_file(recipe, RELEASES["main"], csv="orders.csv"),
    "torchtitan (TOML)": lambda recipe: titan_file(recipe, RELEASES["0.2.2"], csv="orders.csv"),
    "megatron": megatron_arguments,
    "deepspeed": deepspeed_module,
    "markdown": recipe_markdown,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_export_is_text_that_ends_a_line_and_is_the_same_again(name: str) -> None:
    recipe = recipe_of_saved_plan(saved_plan())
    text = WRITERS[name](recipe)
    assert text.endswith("\n")
    assert text == WRITERS[name](recipe)
    assert "\x00" not in text


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "markdown"])
def test_every_export_refuses_what_its_framework_cannot_run(name: str) -> None:
    inference = recipe_of_schedule(GPIPE.build(vshape(2, infer=True), micro_batches=2))
    if name.startswith(("torchtitan", "megatron")):  # which refuse it for its missing layers
        inference = recipe_of_schedule(GPIPE.build(vshape(2), micro_batches=2))
    with pytest.raises(ScheduleError) as error:
        WRITERS[name](inference)
    assert "; " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["torchtitan (Python)", "torchtitan (TOML)", "megatron", "deepspeed"])
def test_a_stage_that_ends_within_a_layer_is_refused(name: str) -> None:
    recipe = recipe_of_saved_plan(saved_plan())
    cut = replace(recipe, layers=(recipe.layers[0], "h.0.attn+", *recipe.layers[2:]))
    with pytest.raises(ScheduleError, match=r"ends within a layer, after 'h.0.attn\+', and"):
        WRITERS[name](cut)


def test_stages_that_are_no_chain_are_refused() -> None:
    schedule = GPIPE.build(make_shape("mshape", 2), micro_batches=2)
    with pytest.raises(ScheduleError, match=r"no chain with each stage on one device"):
        recipe_of_schedule(schedule)


def test_both_ways_are_two_copies_of_a_chain_which_torch_and_markdown_alone_are_told() -> None:
    layout = Layout(
        data_parallel=1,
        pipeline=2,
        micro_batch=3,
        micro_batches=4,
        placement="xshape",
        cuts=((0, 3), (4, 7)),
        recompute=(True, False),
    )
    model = profile(sizes=(3,))
    recipe = recipe_of_saved_plan(saved_plan(layout=layout, order="chimera", model=model))
    assert (recipe.copies, recipe.device_of_stage, recipe.recompute) == (2, (0, 1, 1, 0), (True, False) * 2)
    assert recipe.layers_of(2) == recipe.layers_of(0)
    assert "0SEND_F0,3RECV_F0" in orders_csv(recipe)
    assert "| global batch | 12 |" in recipe_markdown(recipe)
    for name in WRITERS.keys() - {"torch", "markdown"}:
        with pytest.raises(ScheduleError, match="runs 2 copies of its pipeline on the same ranks"):
            WRITERS[name](recipe)
    with pytest.raises(ScheduleError, match="2 copies of the pipeline begin on rank 0"):
        orders_csv(replace(recipe, device_of_stage=(0, 1, 0, 1)))


def test_a_tuned_plan_s_cuts_are_those_of_its_stages() -> None:
    schedule = GPIPE.build(vshape(3), micro_batches=2)
    stages = [
        SimpleNamespace(layers=layers, recomputes=recomputes)
        for layers, recomputes in (
            (("embed", "h.0"), False),
            (("h.1",), True),
            (("h.2", "norm", "head"), False),
        )
    ]
    plan = SimpleNamespace(model="toy", stages=stages, schedule=schedule, step_us=2.0, batch=4)
    recipe = recipe_of_plan(plan)  # type: ignore[arg-type]  # what is read of a plan
    assert recipe.layers == ("embed", "h.0", "h.1", "h.2", "norm", "head")
    assert recipe.cuts == ((0, 1), (2, 2), (3, 5))
    assert recipe.recompute == (False, True, False)
    plan.stages = stages[:2]
    with pytest.raises(ScheduleError, match="the plan has 2 stages, and its schedule 3"):
        recipe_of_plan(plan)  # type: ignore[arg-type]  # what is read of a plan


def test_a_saved_plan_says_everything() -> None:
    plan = saved_plan(data_parallel=2)
    recipe = recipe_of_saved_plan(plan)
    assert recipe.layers[0] == "embed"
    assert recipe.layers_of(1) == recipe.layers[recipe.cuts[1][0] : recipe.cuts[1][1] + 1]
    assert (recipe.devices, recipe.num_stages, recipe.data_parallel) == (2, 2, 2)
    assert recipe.is_loop
    assert not recipe.is_v
    assert recipe.training_step_us == plan.training_step_us


def test_a_tuned_plan_has_its_modules() -> None:
    tuned = tuned_model([(10.0, 21.0, 11.0, 12.0), (13.0, 27.0, 14.0, 15.0)])
    plan = build_plan(tuned, micro_batches=2, memory_limit_bytes=None, budget=SearchBudget(0.1))
    recipe = recipe_of_plan(plan)
    assert [recipe.layers_of(stage) for stage in range(2)] == [stage.layers for stage in plan.stages]
    for stages in ((), plan.stages[:1], (*plan.stages, plan.stages[0])):
        with pytest.raises(ScheduleError, match=rf"the plan has {len(stages)} stages, and its schedule 2"):
            recipe_of_plan(msgspec.structs.replace(plan, stages=stages))


@pytest.mark.parametrize(
    ("layers", "roles"),
    [
        ("embed block0 block1 head", "EttL"),
        ("wte wpe h.0 h.1 h.2 ln_f lm_head", "EEtttnL"),
        ("a b c d", "EttL"),
        ("e l.0 l.1 mtp head", "EttmL"),
        ("e l.0 l.1 l.2 mtp1 head", "EtttmL"),
        ("a b", "EL"),
        ("block0 block1", "tt"),
    ],
)
def test_layers_have_roles_by_name_and_place(layers: str, roles: str) -> None:
    assert "".join(roles_of(layers.split())) == roles
    assert all(isinstance(role, Role) for role in roles_of(layers.split()))


def test_micro_batches_are_numbered_by_the_first_stage() -> None:
    recipe = recipe_of_schedule(GPIPE.build(vshape(2), micro_batches=3))
    swapped = tuple(
        tuple(action._replace(micro_batch=2 - action.micro_batch) for action in own) for own in recipe.actions
    )
    assert swapped != recipe.actions
    assert renumbered_by_first_stage(swapped) == recipe.actions
    # The order of forwards alone decides, whatever that of backwards.
    backwards = tuple(
        tuple(
            each if each.kind is ActionKind.FORWARD else each._replace(micro_batch=2 - each.micro_batch)
            for each in own
        )
        for own in recipe.actions
    )
    assert renumbered_by_first_stage(backwards) == backwards != recipe.actions


def test_recipes_name_the_user_s_devices_where_the_plan_orders_them() -> None:
    plan = saved_plan(data_parallel=2)
    order = (3, 1, 0, 2)
    ordered = msgspec.structs.replace(plan, layout=msgspec.structs.replace(plan.layout, device_order=order))
    assert device_notes(recipe_of_saved_plan(plan)) == []
    recipe = recipe_of_saved_plan(ordered)
    assert recipe.rank_devices == ((3, 1), (0, 2))
    (note,) = device_notes(recipe)
    for name, write in WRITERS.items():
        if name not in ("torch", "torchtitan (TOML)", "markdown"):
            assert "3,1,0,2" in write(recipe), name
    assert "CUDA_VISIBLE_DEVICES=3,1,0,2" in note
    assert "| 3, 1 |" in recipe_markdown(recipe)


def test_weights_of_several_stages_are_told() -> None:
    plan = saved_plan()
    last = len(plan.profile.layers) - 1

    def tied(*places: int) -> Recipe:
        layers = tuple(
            msgspec.structs.replace(layer, tie="wte" if place in places else "")
            for place, layer in enumerate(plan.profile.layers)
        )
        profile = msgspec.structs.replace(plan.profile, layers=layers)
        return recipe_of_saved_plan(msgspec.structs.replace(plan, profile=profile))

    recipe = tied(0, last)
    assert tied(recipe.cuts[1][0], last).tied == ()  # both in the second stage
    assert recipe.tied == ((0, 1),)
    assert tie_notes(recipe, "torch") == [
        "Stages 0, 1 hold one weight: sum its gradients over ranks 0, 1 before each update."
    ]
    (note,) = tie_notes(replace(recipe, device_of_stage=(0, 0)), "torch")
    assert "give their modules on rank 0 one parameter" in note
    assert "TiedLayerSpec" in deepspeed_module(recipe)
    assert "leave --untie-embeddings" in megatron_arguments(recipe)
    assert tie_notes(recipe_of_saved_plan(plan), "torch") == []


def test_what_no_file_says_is_told_in_each() -> None:
    """Weights that are frozen or adapted, and micro-batches that differ, in the order of each file."""
    plan = saved_plan()
    (table, *_), layers = plan.profile.tables, len(plan.profile.layers)
    trained = [0, 0, *[1 << 20] * (layers - 3), None]
    costs = [
        msgspec.structs.replace(cost, trained_bytes=own)
        for cost, own in zip(table.costs, trained, strict=True)
    ]
    lora = msgspec.structs.replace(plan.profile, tables=(msgspec.structs.replace(table, costs=tuple(costs)),))
    recipe = recipe_of_saved_plan(msgspec.structs.replace(plan, profile=lora))
    (text,) = notes_of(recipe, "torch")
    assert text == "The plan freezes rows 0-1 and trains a part of rows 2-6: set requires_grad in your model."
    for name, write in WRITERS.items():
        if name not in ("torch", "torchtitan (TOML)", "markdown"):
            assert "freezes rows 0-1" in " ".join(write(recipe).split()), name
    (text,) = weight_notes(replace(recipe, frozen=(0, 2, 3), adapted=()))
    assert text == "The plan freezes rows 0, 2-3: set requires_grad in your model."
    with pytest.raises(ScheduleError, match="the first stage trains nothing, and DeepSpeed"):
        deepspeed_module(replace(recipe, frozen=(0, 1, 2, 3)))
    placement = recipe.schedule.placement
    spans, memory = (tuple(getattr(block, what) for block in placement.blocks) for what in ("span", "memory"))
    of = [
        MicroBatchClass(name=name, spans=spans, memory=memory, lags=(0,) * len(placement.edges))
        for name in ("long", 'a"""#')
    ]
    orders = actions_from_csv("0F1,0F0,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n")
    batch = Batch(classes=tuple(of), sequence=(0, 1, 1, 0))
    schedule = schedule_of_actions(placement, orders, batch=batch)
    mixed = replace(recipe, frozen=(), adapted=(), schedule=schedule, actions=orders)
    assert "hand over longx1,a____x2,longx1, in this order; torch takes" in notes_of(mixed, "torch")[0]
    for framework, setting in (("deepspeed", "dynamic_shape"), ("primus", "variable_seq_lengths")):
        (note,) = notes_of(mixed, framework)
        assert "hand over a____x1,longx1,a____x1,longx1" in note
        assert setting in note
    wide = replace(
        mixed, schedule=recipe.schedule, data_parallel=2, sharding="optimizer", recompute=(True, False)
    )
    assert notes_of(wide, "torch") == [
        "The orders do not say 2 replicas, sharding of optimizer, recomputation in stages 0: set it in your "
        "trainer."
    ]


def test_micro_batches_are_numbered_as_the_first_stage_runs_them() -> None:
    orders = actions_from_csv("0F1,0F0,0B1,0B0\n1F0,1B0,1F1,1B1\n")
    assert actions_to_csv(renumbered_by_first_stage(orders)) == "0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0\n"


def test_an_order_both_ways_of_pairs_is_refused() -> None:
    recipe = recipe_of_schedule(CHIMERA.build(xshape(2), micro_batches=2))
    assert orders_csv(recipe)
    paired = msgspec.structs.replace(recipe.schedule, overlap=Overlap(factor=0.5))
    with pytest.raises(ScheduleError, match="an order both ways runs one block at a time"):
        orders_csv(replace(recipe, schedule=paired))
