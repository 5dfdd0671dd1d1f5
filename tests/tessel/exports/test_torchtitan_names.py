"""What is written for torchtitan are options and modules of its release, whose names lie beside this test."""

from __future__ import annotations

import ast
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
INSTALLED = Path(__file__).parents[3] / "out" / "frameworks"
SOURCES = {
    "0.2.2": {
        "training": ("config/job_config.py", "Training"),
        "parallelism": ("config/job_config.py", "Parallelism"),
        "modules": ("models/llama3/model/model.py", "Transformer"),
    },
    "0.3.0": {
        "training": ("config/configs.py", "TrainingConfig"),
        "parallelism": ("config/configs.py", "ParallelismConfig"),
        "modules": ("models/common/decoder.py", "Decoder"),
    },
}


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


@pytest.mark.skipif(not INSTALLED.exists(), reason="`make frameworks` has installed no frameworks")
@pytest.mark.parametrize("name", NAMES)
def test_the_names_are_those_of_the_installed_release(name: str) -> None:
    assert names_of(name) == NAMES[name]


def names_of(release: str) -> dict[str, list[str]]:
    """The fields of its configuration, and the modules of its language models, in order."""
    found = {}
    for table, (file, kind) in SOURCES[release].items():
        tree = ast.parse((INSTALLED / f"torchtitan-{release}" / "torchtitan" / file).read_text())
        (body,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind]
        if table == "modules":
            targets = [node.targets[0] for node in ast.walk(body) if isinstance(node, ast.Assign)]
            held = [each.attr for each in targets if isinstance(each, ast.Attribute)]
            known = ("tok_embeddings", "layers", "norm", RELEASES[release].head)
            found[table] = list(dict.fromkeys(each for each in held if each in known))
        else:
            fields = [node.target for node in body.body if isinstance(node, ast.AnnAssign)]
            found[table] = sorted(each.id for each in fields if isinstance(each, ast.Name))
    return found
