"""What is written for torchtitan are options and modules of its release, whose names lie beside this test.

`make frameworks` holds these names against the configuration and the model of the installed releases.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from layer_plans import profile, saved_plan

from tessel.exports.recipe import Recipe, recipe_of_saved_plan
from tessel.exports.torchtitan import RELEASES, modules_of_stages, titan_options
from tessel.planning.layout import Layout

FILE = Path(__file__).with_name("torchtitan_names.json")
NAMES: dict[str, dict[str, list[str]]] = json.loads(FILE.read_text())


def recipes() -> list[Recipe]:
    """A V, a chain with experts and state divided, and one rank with replicas."""
    cuts = ((0, 1), (2, 3), (4, 5), (6, 7))
    common = {"data_parallel": 1, "micro_batch": 1, "micro_batches": 4}
    v = Layout(**common, pipeline=2, placement="zbv", cuts=cuts, split_backward=True)
    one = Layout(**common | {"data_parallel": 2}, pipeline=1, cuts=((0, 7),))
    chain = recipe_of_saved_plan(saved_plan())
    return [
        recipe_of_saved_plan(saved_plan(layout=v, order="zb-v", model=profile(sizes=(1,)))),
        replace(chain, data_parallel=2, sharding="optimizer", context_parallel=2, tensor_parallel=2),
        replace(chain, data_parallel=2, sharding="optimizer", expert_parallel=2),
        recipe_of_saved_plan(saved_plan(layout=one, order="gpipe")),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_options_and_modules_are_those_of_the_release(name: str) -> None:
    for recipe in recipes():
        options = titan_options(recipe, RELEASES[name], csv="orders.csv")
        for table in ("training", "parallelism"):
            assert options[table].keys() - set(NAMES[name][table]) == set()
    stages = modules_of_stages(recipes()[0], RELEASES[name])
    written = dict.fromkeys(module.partition(".")[0] for stage in stages for module in stage)
    assert list(written) == NAMES[name]["modules"]
