"""Names that a stranger chose stay text in every file that an export writes: Python, TOML, Markdown, CSV."""

from __future__ import annotations

import ast
import csv
import io
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from layer_plans import profile, saved_plan
from markdown_it import MarkdownIt

from tessel.comparison import compare_schedules
from tessel.errors import ScheduleError
from tessel.exports.deepspeed import deepspeed_module
from tessel.exports.markdown import recipe_markdown
from tessel.exports.megatron_plan import megatron_arguments
from tessel.exports.recipe import Recipe, recipe_of_saved_plan
from tessel.exports.roles import stated_roles
from tessel.exports.torchtitan import RELEASES, orders_csv, titan_file
from tessel.jobs.shown.plan_tables import layout_report
from tessel.profiles import Layer, Profile, load_profile, save_table

NAMES = (
    "'",
    "\"\"\"'''",
    '"""); import os; os.system("touch /tmp/owned") #',
    "\\",
    "x\\",
    "\\N{SNOWMAN} \\u0041 \\x41",
    "# no comment",
    "$x $model ${x} %s {0}",
    "a|b \\| c",
    "<script>alert(1)</script><!--",
    "![x](https://example.com/x.png) [y](javascript:alert(1))",
    "https://example.com/ www.example.com a@example.com",
    "`code` ``more` *bold* _italic_ ~~gone~~ $x$ &lt; @someone",
    "=cmd|'/C calc'!A0",
    "+1",
    "-1",
    "@SUM(A1)",
    "'=1",
    "a,b;c\t".strip(),
    "層.0",
    "\U0001f4a5",
    "x" * 200,
)
RAW = ("two\nimport os", "\x00", "\x1b[2J", "\u202egnirts", "\u2028", "\x7f", "\udcff", "x" * 100_000)
"""What no profile holds, and exports stand all the same."""


def hostile_profile(names: tuple[str, ...] = NAMES) -> Profile:
    """A model named by the first of the names, with layers that have them all."""
    plain = profile(blocks=len(names))
    layers = (plain.layers[0], *map(Layer, names), plain.layers[-1])
    return msgspec.structs.replace(plain, name=names[0], layers=layers)


def recipes() -> list[Recipe]:
    """A recipe for each name as the model's, whose layers have all names, and one that no file gives."""
    found = recipe_of_saved_plan(saved_plan(model=hostile_profile()))
    made = [_with(found, model=name) for name in (*NAMES, *RAW)]
    return [*made, _with(found, layers=(*found.layers[: -len(RAW)], *RAW))]


def _with(recipe: Recipe, **changes: Any) -> Recipe:
    return Recipe(**{name: getattr(recipe, name) for name in Recipe.__slots__} | changes)


def _as_module(name: str) -> str:
    """The name with one dot at most, as torchtitan splits modules."""
    return name if name.count(".") < 2 else name.replace(".", "·")


def _assigned(text: str) -> dict[str, Any]:
    """The values of a Python file's assignments, which are literals, or calls of `dict` with literals."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.Call):
                value = ast.Dict(
                    [ast.Constant(each.arg) for each in value.keywords], [e.value for e in value.keywords]
                )
            try:
                found[node.targets[0].id] = ast.literal_eval(value)
            except ValueError:
                assert node.targets[0].id == "_INSTRUCTIONS"
    return found


def _shape(text: str) -> list[str]:
    """What a Python file does, its constants left out."""
    return [type(node).__name__ for node in ast.walk(ast.parse(text)) if not isinstance(node, ast.Constant)]


def test_python_holds_the_names_as_constants_and_nothing_else() -> None:
    plain = recipe_of_saved_plan(saved_plan(model=profile(blocks=len(NAMES))))
    dotted = tuple(f"layers.{index}" for index in range(len(plain.layers)))
    for recipe in recipes():
        written = deepspeed_module(recipe)
        assert _assigned(written)["LAYERS"] == list(recipe.layers)
        assert _shape(written) == _shape(deepspeed_module(plain))
        named = _with(recipe, layers=tuple(map(_as_module, recipe.layers)))
        for path in ("orders.csv", *RAW):
            options = _assigned(titan_file(named, RELEASES["0.3.0"], csv=path, keep_names=True))[
                "PARALLELISM"
            ]
            modules = [name for stage in options["module_fqns_per_model_part"] for name in stage]
            assert modules == list(named.layers)
            assert options["pipeline_parallel_schedule_csv"] == path
        assert _shape(titan_file(named, RELEASES["main"], csv="o", keep_names=True)) == _shape(
            titan_file(_with(plain, layers=dotted), RELEASES["main"], csv="o", keep_names=True)
        )


def test_toml_holds_the_names_as_texts_and_nothing_else() -> None:
    for recipe in recipes():
        if any(name.encode(errors="replace").decode() != name for name in recipe.layers):
            named = _with(recipe, layers=tuple(map(_as_module, recipe.layers)))
            with pytest.raises(ScheduleError, match="no text that TOML can hold"):
                titan_file(named, RELEASES["0.2.2"], csv="orders.csv", keep_names=True)
            continue
        named = _with(recipe, layers=tuple(map(_as_module, recipe.layers)))
        options = tomllib.loads(titan_file(named, RELEASES["0.2.2"], csv="\x7f\n", keep_names=True))
        assert options.keys() == {"training", "parallelism", "activation_checkpoint"}
        modules = options["parallelism"]["module_fqns_per_model_part"]
        assert [name for stage in modules for name in stage] == list(named.layers)
        assert options["parallelism"]["pipeline_parallel_schedule_csv"] == "\x7f\n"


def _rendered(text: str) -> list[str]:
    """What a renderer of Markdown shows, line by line; fails where anything in it is more than text."""
    shown, known = [], ("text", "text_special", "softbreak")
    for token in MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(text):
        assert token.type not in ("html_block", "bullet_list_open", "ordered_list_open", "hr"), token
        for child in token.children or ():
            assert child.type in known, child
        if token.type == "inline":
            shown.append("".join(child.content for child in token.children or ()))
    return shown


def test_markdown_shows_the_names_and_nothing_else() -> None:
    for name in NAMES:
        shown = name.strip()
        model = hostile_profile((name, *(each for each in NAMES if each != name)))
        plan = saved_plan(model=model)
        recipe = recipe_of_saved_plan(plan)
        recipe = _with(recipe, cuts=((0, 1), (2, len(recipe.layers) - 1)), layers=("a", *recipe.layers[1:]))
        report = recipe_markdown(recipe)
        lines = _rendered(report)
        assert f"Pipeline of {shown}" in lines
        assert f"a … {shown} (2)" in lines
        assert not any(scheme in report for scheme in ("http://", "https://", "www."))
        drawn = layout_report(plan, compare_schedules(plan.schedule, names=["1f1b"]))
        assert plan.title in _rendered(drawn)
    for recipe in recipes():
        _rendered(recipe_markdown(recipe))


def test_arguments_and_orders_hold_no_statement_of_a_name() -> None:
    for recipe in recipes()[:-1]:
        stated = _with(recipe, roles=stated_roles(f"Et*{len(recipe.layers) - 2}L", recipe.layers))
        first, *lines = megatron_arguments(stated).splitlines()
        assert first.startswith("# Megatron-Core arguments for ")
        assert all(line.startswith(("--", "# ")) for line in lines)
        cells = [cell for row in csv.reader(io.StringIO(orders_csv(recipe))) for cell in row]
        assert all(cell[0].isdigit() for cell in cells if cell)


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_table_is_read_back_as_written_and_computes_nothing(tmp_path: Path, suffix: str) -> None:
    for name in NAMES:
        model = msgspec.structs.replace(hostile_profile(), name=name, device=name)
        save_table(model, tmp_path / f"table{suffix}")
        read = load_profile(tmp_path / f"table{suffix}")
        assert (read.name, read.device, read.layers) == (model.name, model.device, model.layers)
    text = (tmp_path / f"table{suffix}").read_text()
    if suffix == ".csv":
        rows = csv.reader(line for line in text.splitlines() if line[0] != "#")
        assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@"))]
