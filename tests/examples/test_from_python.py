"""Notebooks run from top to bottom, and each cell that ends in a value shows it as more than text."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def cells(name: str) -> list[str]:
    notebook = json.loads((ROOT / "examples" / name).read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does, and return the value that it ends in; None without one."""
    body = ast.parse(cell).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)  # noqa: S102 - the notebook is the project's own
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307 - as above


def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [value for cell in cells("tour.ipynb") if (value := run(cell, names)) is not None]
    assert sum(hasattr(value, "_repr_html_") for value in shown) >= 2
    assert names["plan"].fits
    assert names["plan"].lower_bound_ms <= names["plan"].step_ms <= names["tight"].step_ms
    assert names["today"].advice
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"tour.json", "tour.csv", "tour.html"}


@pytest.mark.slow  # it measures a model
@pytest.mark.tvm
@pytest.mark.torch
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [value for cell in cells("from_python.ipynb") if (value := run(cell, names)) is not None]
    tables = [value for value in shown if hasattr(value, "_repr_html_")]
    assert len(tables) >= 3
    assert all("<table>" in value._repr_html_() for value in tables)
    assert names["plan"].fits
    assert names["assessment"].fits
    assert names["tuned"].tuned.max_gradient_error < 1e-4
