"""The two commands list what there is, and say why not the rest."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from scripts.commands.backends import backends
from scripts.commands.targets import targets

pytestmark = pytest.mark.tvm


def run(command: object, *arguments: str) -> str:
    app = typer.Typer()
    app.command()(command)  # type: ignore[type-var] # a command
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_backends_that_run_here_have_no_reason() -> None:
    document = json.loads(run(backends, "--json"))
    found = {backend["name"]: backend for backend in document["backends"]}
    assert found["tvm"]["reason"] is None
    assert found["blas"]["reason"] is None
    assert "numpy" in dict(found["blas"]["versions"])


def test_backends_that_cannot_run_say_why() -> None:
    text = run(backends, "--target", "nvidia/nvidia-h200", "--own", "examples.own_backend:OwnBackend")
    lines = text.splitlines()
    position = next(index for index, line in enumerate(lines) if line.startswith("missing own"))
    assert "SciPy runs on a CPU only" in lines[position + 1]


def test_targets_are_found_by_part_of_their_name() -> None:
    document = json.loads(run(targets, "h200", "--json"))
    assert document["targets"] == ["nvidia/nvidia-h200"]
    assert document["here"]["cpu"]["measurable"] is True


def test_targets_say_which_are_here() -> None:
    assert run(targets, "cpu").startswith("measures  cpu")
