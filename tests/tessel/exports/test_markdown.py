"""The report shows settings, stages and orders, and nothing of a name is Markdown."""

from __future__ import annotations

from dataclasses import replace

from layer_plans import saved_plan

from tessel.exports.markdown import MAX_ACTIONS, recipe_markdown
from tessel.exports.recipe import Recipe, recipe_of_saved_plan, recipe_of_schedule
from tessel.handwritten.chimera import CHIMERA
from tessel.handwritten.gpipe import GPIPE
from tessel.shapes import vshape, xshape


def test_a_plan_is_shown_whole() -> None:
    recipe = recipe_of_saved_plan(saved_plan(data_parallel=2))
    text = recipe_markdown(recipe)
    assert "## Pipeline of toy" in text
    settings = (
        "stages | 2",
        "micro-batches | 4",
        "samples of a micro-batch | 1",
        "global batch | 8",
        "data parallel | 2",
        f"bubble ratio | {recipe.schedule.bubble_ratio:.1%}",
    )
    assert all(f"| {each} |" in text for each in settings)
    assert "| stage | rank | layers | recomputes |\n| --- | --- | --- | --- |\n| 0 | 0 | embed" in text
    assert "| 0 | 0 | embed … block2 (4) | no |" in text
    assert "rank 1: 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3" in text


def test_what_is_recomputed_and_which_devices_a_rank_has_is_shown() -> None:
    recipe = replace(
        recipe_of_saved_plan(saved_plan()), recompute=(True, False), rank_devices=((0, 1), (2, 3))
    )
    text = recipe_markdown(recipe)
    assert "| stage | rank | devices | layers | recomputes |" in text
    assert "| 0 | 0 | 0, 1 | embed … block2 (4) | yes |" in text
    assert "| 1 | 1 | 2, 3 | block3 … head (4) | no |" in text


def test_names_are_escaped_and_long_orders_cut() -> None:
    plan = recipe_of_saved_plan(saved_plan())
    names = ("a|b\n<script>", *plan.layers[1:])
    text = recipe_markdown(
        Recipe(**{**{each: getattr(plan, each) for each in Recipe.__slots__}, "layers": names})
    )
    assert r"a\|b \<script\>" in text
    long = recipe_markdown(recipe_of_schedule(GPIPE.build(vshape(2), micro_batches=MAX_ACTIONS)))
    assert f"… and {MAX_ACTIONS} more" in long
    assert "| makespan |" in long


def test_pipelines_on_the_same_ranks_are_told_where_there_are_several() -> None:
    rows = "| pipelines on the same ranks |"
    assert rows not in recipe_markdown(recipe_of_saved_plan(saved_plan()))
    assert f"{rows} 2 |" in recipe_markdown(recipe_of_schedule(CHIMERA.build(xshape(2), micro_batches=2)))
