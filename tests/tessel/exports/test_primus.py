"""Overrides of Primus are Megatron's arguments under their Python names, and the plan's recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import yaml
from layer_plans import saved_plan

from tessel.errors import ScheduleError
from tessel.exports.megatron_plan import layout_of_recipe
from tessel.exports.primus import primus_overrides
from tessel.exports.recipe import Recipe, recipe_of_saved_plan
from tessel.planning.layout import Layout


def interleaved() -> Recipe:
    layout = Layout(
        data_parallel=2,
        pipeline=2,
        micro_batch=1,
        micro_batches=8,
        placement="interleaved",
        cuts=((0, 2), (3, 4), (5, 6), (7, 7)),
    )
    return recipe_of_saved_plan(saved_plan(layout=layout, order="interleaved"))


def overrides(recipe: Recipe) -> Mapping[str, object]:
    document = yaml.safe_load(primus_overrides(recipe))
    module = document["modules"]["pre_trainer"]
    assert module["framework"] == "megatron"
    found: Mapping[str, object] = module["overrides"]
    return found


def test_overrides_say_what_megatron_is_told() -> None:
    recipe = interleaved()
    found = overrides(recipe)
    assert found["pipeline_model_parallel_layout"] == str(layout_of_recipe(recipe)) == "Ett|tt|tt|L"
    assert found["pipeline_model_parallel_size"] == 2
    assert found["num_layers"] == 6
    assert (found["micro_batch_size"], found["global_batch_size"]) == (1, 16)
    assert "microbatch_group_size_per_vp_stage" in found
    assert "recompute_granularity" not in found


def test_layers_that_recompute_are_those_of_the_plan() -> None:
    found = overrides(replace(interleaved(), recompute=(False, True, False, True)))
    assert found["recompute_granularity"] == "full"
    assert found["recompute_method"] is None
    assert found["recompute_layer_ids"] == [2, 3]


def test_names_of_experts_are_told() -> None:
    recipe = interleaved()
    layers = tuple(layer.replace("block", "moe") if layer[-1] in "45" else layer for layer in recipe.layers)
    assert overrides(replace(recipe, layers=layers))["moe_layer_freq"] == "([0]*4+[1]*2)"


def test_what_megatron_cannot_run_is_refused() -> None:
    with pytest.raises(ScheduleError, match="in a loop over the ranks only"):
        primus_overrides(replace(interleaved(), device_of_stage=(0, 1, 1, 0)))
