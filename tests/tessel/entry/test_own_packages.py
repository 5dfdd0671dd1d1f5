"""What hides one of the packages is named by its path, in one line, by the command and in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

HIDING = ("scripts/__init__.py", "tuner.py", "records.py", "cost_model/__init__.py")


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment, cwd=folder
    )


@pytest.mark.parametrize("hiding", HIDING)
def test_a_package_of_the_same_name_is_named_by_its_path(tmp_path: Path, hiding: str) -> None:
    path = tmp_path / hiding
    path.parent.mkdir(exist_ok=True)
    path.touch()
    done = python("-m", "tessel", "targets", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert str(path) in line
    assert "in place of Tessel's own package" in line
    called = python("-c", "import tessel; tessel.plan", folder=tmp_path)
    assert called.stderr.splitlines()[-1] == "ImportError: " + line.removeprefix("tessel: ")


def test_folders_without_code_hide_nothing(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "scripts").mkdir()
    done = python("-m", "tessel", "--version", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
