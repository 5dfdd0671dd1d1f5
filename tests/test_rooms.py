"""Rooms stay small enough to be read: no folder has more modules of one level than one can survey."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = ("records", "cost_model", "tuner", "tessel", "scripts", "benchmarks", "examples", "tests")

MAX_MODULES = 16
"""Modules of one folder, its `__init__.py` aside."""


def crowded(paths: Iterable[Path]) -> dict[str, int]:
    """Return the number of modules of each folder that has too many."""
    counts = Counter(str(path.parent) for path in paths if path.name != "__init__.py")
    return {folder: count for folder, count in counts.items() if count > MAX_MODULES}


def test_no_folder_has_more_modules_than_one_can_survey() -> None:
    modules = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(modules) > 500
    assert crowded(modules) == {}


def test_a_crowded_folder_is_found() -> None:
    room = [Path("room", f"module_{index}.py") for index in range(MAX_MODULES)]
    assert crowded([*room, Path("room/__init__.py"), Path("room/inner/module.py")]) == {}
    assert crowded([*room, Path("room/one_more.py")]) == {"room": MAX_MODULES + 1}


def test_sizes_are_counted(tmp_path: Path) -> None:
    for package in ("records", "cost_model", "tuner", "tessel", "scripts"):
        (tmp_path / package).mkdir()
    (tmp_path / "tessel" / "__init__.py").write_text('__all__ = ["one", "two"]\n')
    (tmp_path / "tessel" / "rooms.py").write_text(
        "def long(a, b):\n    c = a\n    return b + c\n\n\n@compiled\ndef kernel(x, y, z):\n    return x\n"
    )
    code = [sys.executable, str(ROOT / ".ci" / "measure_sizes.py"), str(tmp_path)]
    printed = subprocess.run(code, capture_output=True, text=True, check=True).stdout.splitlines()
    assert printed[1:] == [
        "lines: 9 in 2 modules",
        "longest module: tessel/rooms.py 8",
        "modules of one folder, at most: 1 (tessel)",
        "longest function: 3 (tessel/rooms.py: long)",
        "most parameters: 2 (tessel/rooms.py: long)",
        "most parameters of a compiled kernel: 3 (tessel/rooms.py: kernel)",
        "public names of `import tessel`: 2",
    ]
