"""Every row of a profile is in what is exported exactly once, or the export refuses."""

from __future__ import annotations

import random
import re
import shlex
import tomllib
from dataclasses import replace

import pytest
from layer_plans import saved_plan

from tessel.errors import ScheduleError
from tessel.exports.megatron import read_layout
from tessel.exports.megatron_plan import megatron_arguments
from tessel.exports.recipe import Recipe, recipe_of_saved_plan
from tessel.exports.roles import roles_of, stated_roles
from tessel.exports.torchtitan import RELEASES, titan_file

EMBEDDINGS = ("embed", "wte", "tok_embeddings", "model.embed_tokens", "front")
BLOCKS = ("block{}", "layers.{}", "dense{}", "moe{}", "mamba{}", "model.layers.{}", "layers.{}.norm", "attn")
PREDICTIONS = ("mtp{}", "model.mtp.{}", "nextn{}")
NORMS = ("norm", "ln_f", "model.norm", "final_layernorm")
HEADS = ("head", "lm_head", "output", "back")


def random_rows(rng: random.Random) -> list[tuple[str, str]]:
    """Names with what each really is, mostly in a model's order."""
    kinds = rng.choices(BLOCKS[:-1], k=rng.randint(1, 2))
    blocks = [(rng.choice(kinds).format(index), "t") for index in range(rng.randint(2, 8))]
    rows = [(rng.choice(EMBEDDINGS), "E"), *blocks]
    rows += [(rng.choice(PREDICTIONS).format(index), "m") for index in range(rng.choice((0, 0, 0, 1, 2)))]
    rows += [(rng.choice(NORMS), "n")] * rng.choice((0, 1, 1, 2))
    rows.append((rng.choice(HEADS), "L"))
    if rng.random() < 0.3:
        rows.insert(rng.randrange(len(rows)), rng.choice(((BLOCKS[-1], "t"), ("vision.3", "t"), rows[0])))
    if rng.random() < 0.2:
        rows.pop(rng.choice((0, -1)))
    return rows


def check_megatron(recipe: Recipe, parts: list[str]) -> None:
    words = dict(
        shlex.split(line) for line in megatron_arguments(recipe).splitlines() if not line.startswith("#")
    )
    layout = read_layout(words["--pipeline-model-parallel-layout"], 2)
    for letters, part in zip(layout.stages, parts, strict=True):
        assert [letters.count(each) for each in "tm"] == [part.count(each) for each in "tm"]
        assert letters.count("E") == ("E" in part)
    assert "".join(layout.stages).count("L") == 1
    assert int(words["--num-layers"]) == "".join(parts).count("t")


def check_torchtitan(recipe: Recipe, parts: list[str]) -> None:
    text = titan_file(recipe, RELEASES["0.2.2"], csv="orders.csv")
    stages = tomllib.loads(text)["parallelism"]["module_fqns_per_model_part"]
    assert "m" not in "".join(parts)
    modules = [name for stage in stages for name in stage]
    count = "".join(parts).count("t")
    assert [name for name in modules if name.startswith("layers.")] == [f"layers.{i}" for i in range(count)]
    assert sorted(name for name in modules if not name.startswith("layers.")) == [
        "norm",
        "output",
        "tok_embeddings",
    ]
    for stage, part in zip(stages, parts, strict=True):
        assert sum(bool(re.match("layers", name)) for name in stage) == part.count("t")
        assert ("tok_embeddings" in stage) == ("E" in part)
        assert ("output" in stage) == ("L" in part)


@pytest.mark.parametrize("check", [check_megatron, check_torchtitan])
def test_each_row_is_exported_once_or_refused(check: object) -> None:
    plain = recipe_of_saved_plan(saved_plan())
    rng, written = random.Random(4), 0
    for _ in range(400):
        rows = random_rows(rng)
        end = rng.randint(1, len(rows) - 1)
        recipe = replace(
            plain, layers=tuple(name for name, _ in rows), cuts=((0, end - 1), (end, len(rows) - 1))
        )
        true = "".join(role for _, role in rows)
        try:
            check(recipe, [true[:end], true[end:]])  # type: ignore[operator]
        except ScheduleError:
            continue
        written += 1
    assert written > 40


@pytest.mark.parametrize(
    "layers",
    [
        "embed moe0 dense1 moe2 dense3 moe4 dense5 head",
        "wte dense0 dense1 moe2 moe3 moe4 x.5 lm_head",
        "wte dense0 moe0 dense1 moe1 dense2 moe2 head",
    ],
)
def test_layers_of_several_kinds_are_one_stack(layers: str) -> None:
    assert "".join(roles_of(layers.split())) == "EttttttL"


@pytest.mark.parametrize(
    ("layers", "roles"),
    [
        ("embed h.0 head", "EtL"),
        ("first h.0 last", "EtL"),
        ("first second third", "EtL"),
        ("first second third fourth fifth", "EtttL"),
    ],
)
def test_names_that_say_nothing_are_read_by_their_place(layers: str, roles: str) -> None:
    assert "".join(roles_of(layers.split())) == roles


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ("embed vision.0 vision.1 layers.0 layers.1 head", "layers.0"),
        ("embed layers.0 bridge layers.1 head", "bridge"),
        ("embed layers.0.attn layers.0.mlp head", "layers.0.mlp"),
        ("head layers.0 layers.1 embed", "layers.0"),
        ("embed layers.0 bridge last", "bridge"),
        ("norm bridge layers.0 head", "bridge"),
        ("embed layers.0 head bridge", "bridge"),
        ("embed layers.0 vision.1 vision.2 head", "'vision.1' looks like one of another model"),
    ],
)
def test_rows_that_are_none_are_refused_by_name_and_may_be_stated(layers: str, named: str) -> None:
    rows = layers.split()
    with pytest.raises(ScheduleError, match=re.escape(named)):
        roles_of(rows)
    assert "".join(stated_roles(f"E t*{len(rows) - 2} L", rows)) == "E" + "t" * (len(rows) - 2) + "L"


@pytest.mark.parametrize(
    "text", ["", "Et*x", "EtL", "tEttL", "E" + "t*999999" * 3, "EmttL", "EtLtt", "Et?ttL"]
)
def test_roles_that_do_not_match_the_rows_are_refused(text: str) -> None:
    with pytest.raises(ScheduleError):
        stated_roles(text, ["a", "b", "c", "d", "e"])


def test_a_row_before_the_embedding_is_no_block() -> None:
    with pytest.raises(ScheduleError, match="row 0, 'alpha', is no embedding"):
        roles_of(["alpha", "embed", "beta"])
