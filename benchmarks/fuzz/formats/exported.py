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
    from tessel.exports.torchtitan import RELEASES, orders_csv, titan_file

    look_at_text(recipe_markdown(recipe))
    looks: tuple[tuple[Callable[[], str], Callable[[str], None]], ...] = (
        (lambda: orders_csv(recipe), look_at_text),
        (lambda: megatron_arguments(recipe), _look_at_arguments),
        (lambda: deepspeed_module(recipe), lambda text: _look_at_python(text, [list(recipe.layers)])),
        *(
            (lambda release=release: titan_file(recipe, release, csv="orders.csv"), look)
            for release, look in (
                (RELEASES["0.2.2"], lambda text: _look_at_toml(text, recipe)),
                (RELEASES["0.3.0"], lambda text: _look_at_titan(text, recipe)),
                (RELEASES["main"], lambda text: _look_at_titan(text, recipe)),
            )
        ),
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


_IMPORTED = {
    "dataclasses",
    "deepspeed.pipe",
    "deepspeed.runtime.activation_checkpointing",
    "deepspeed.runtime.pipe",
    "pathlib",
    "torch",
    "torchtitan.distributed.activation_checkpoint",
}
"""What the files themselves import."""


def _look_at_python(text: str, names: list[list[str]]) -> None:
    """Look for lists of names among a file's constants, and for nothing that the other files do not do."""
    tree = ast.parse(text)
    lists = [ast.literal_eval(node) for node in ast.walk(tree) if _is_list_of_texts(node)]
    assert all(each in lists for each in names), "the file does not hold the names as constants"
    imported = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)}
    modules = {text.split()[1] for text in imported}
    assert modules <= _IMPORTED, "a name became an import"
    kinds = (ast.Import, ast.ImportFrom, ast.Assign, ast.ClassDef, ast.FunctionDef)
    docstrings = [node for node in tree.body if not isinstance(node, kinds)]
    assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in docstrings)


def _is_list_of_texts(node: ast.AST) -> bool:
    return isinstance(node, ast.List) and all(
        isinstance(each, ast.Constant) and isinstance(each.value, str) for each in node.elts
    )


def _look_at_titan(text: str, recipe: Any) -> None:
    from tessel.exports.torchtitan import NEWEST, modules_of_stages

    _look_at_python(text, modules_of_stages(recipe, NEWEST) if recipe.devices > 1 else [])


def _look_at_toml(text: str, recipe: Any) -> None:
    from tessel.exports.torchtitan import RELEASES, modules_of_stages

    options = tomllib.loads(text)
    tables = {"training", "parallelism", "activation_checkpoint"}
    assert options.keys() == tables, "a name became a table"
    if recipe.devices > 1:
        modules = modules_of_stages(recipe, RELEASES["0.2.2"])
        assert options["parallelism"]["module_fqns_per_model_part"] == modules
