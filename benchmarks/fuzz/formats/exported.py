"""What frameworks are told of a recipe, and that a name in it stays text."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable
from typing import Any

from benchmarks.fuzz.formats.written import look_at_text


def export_all(recipe: Any) -> None:
    """Write a recipe for every framework that takes it, and look at what was written.

    Raises:
        AssertionError: a name from the file is more than text in it.
    """
    from tessel.errors import ScheduleError
    from tessel.exports.deepspeed import deepspeed_module
    from tessel.exports.markdown import recipe_markdown
    from tessel.exports.megatron_plan import megatron_arguments
    from tessel.exports.torchtitan import modules_of_stages, orders_csv, titan_python, titan_toml

    look_at_text(recipe_markdown(recipe))
    looks: tuple[tuple[Callable[[], str], Callable[[str], None]], ...] = (
        (lambda: orders_csv(recipe), look_at_text),
        (lambda: megatron_arguments(recipe), _look_at_arguments),
        (lambda: deepspeed_module(recipe), lambda text: _look_at_python(text, [list(recipe.layers)])),
        (
            lambda: titan_python(recipe, csv="orders.csv"),
            lambda text: _look_at_python(text, modules_of_stages(recipe)),
        ),
        (lambda: titan_toml(recipe, csv="orders.csv"), lambda text: _look_at_toml(text, recipe)),
    )
    for write, look in looks:
        try:
            text = write()
        except ScheduleError:  # the framework does not run it
            continue
        look(text)


def _look_at_arguments(text: str) -> None:
    first, *lines = text.splitlines()
    assert first.startswith("# "), "the arguments begin with no comment"
    assert all(line.startswith(("# ", "--")) for line in lines), "a name became an argument"


_IMPORTED = {"dataclasses", "deepspeed.pipe", "deepspeed.runtime.pipe", "torchtitan.config"}
_ASKED = "'num_pp_microbatches' in {field.name for field in dataclasses.fields(ParallelismConfig)}"
"""What the files themselves import and ask."""


def _look_at_python(text: str, names: list[list[str]]) -> None:
    """Look for lists of names among a file's constants, and for nothing that the other files do not do."""
    tree = ast.parse(text)
    lists = [ast.literal_eval(node) for node in ast.walk(tree) if _is_list_of_texts(node)]
    assert all(each in lists for each in names), "the file does not hold the names as constants"
    imported = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)}
    modules = {text.split()[1] for text in imported}
    assert modules <= _IMPORTED, "a name became an import"
    asked = {ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)}
    assert asked <= {_ASKED}, "a name became a condition"
    kinds = (ast.Import, ast.ImportFrom, ast.If, ast.Assign, ast.ClassDef, ast.FunctionDef)
    docstrings = [node for node in tree.body if not isinstance(node, kinds)]
    assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in docstrings)


def _is_list_of_texts(node: ast.AST) -> bool:
    return isinstance(node, ast.List) and all(
        isinstance(each, ast.Constant) and isinstance(each.value, str) for each in node.elts
    )


def _look_at_toml(text: str, recipe: Any) -> None:
    from tessel.exports.torchtitan import modules_of_stages

    options = tomllib.loads(text)
    assert options.keys() == {"training", "parallelism"}, "a name became a table"
    assert options["parallelism"]["module_fqns_per_model_part"] == modules_of_stages(recipe)
