"""Machine code that cannot be read is compiled again, and searches run where none can be kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tessel.search.jit import cache, compiled
from tessel.search.jit.cache import LONGEST_COMPILING_S

ROOT = Path(__file__).resolve().parents[4]

CALL = "from tessel.search.jit.random_generator import below\nimport numpy\nprint(below(5, 4))"


def called(folder: Path, code: str = CALL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("kept")
    first = called(folder)
    assert first.returncode == 0, first.stderr
    assert list(folder.rglob("*.nbi"))
    return folder, first.stdout


@pytest.mark.parametrize(
    ("suffix", "share"),
    [
        ("nbi", 0.5),
        ("nbc", 0.0),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("nbi", 0.0), ("nbc", 0.5))),
    ],
)
def test_files_that_are_cut_or_emptied_are_made_again(
    kept: tuple[Path, str], suffix: str, share: float
) -> None:
    folder, answer = kept
    for path in folder.rglob(f"*.{suffix}"):
        text = path.read_bytes()
        path.write_bytes(text[: int(len(text) * share)])
    again = called(folder)
    assert (again.returncode, again.stdout) == (0, answer), again.stderr
    assert all(path.stat().st_size > 100 for path in folder.rglob(f"*.{suffix}"))


def test_where_nothing_can_be_kept_functions_run_as_they_are_written(kept: tuple[Path, str]) -> None:
    code = "from tessel.search.jit import cache\ncache._can_be_written = lambda folder: False\n" + CALL
    _, answer = kept
    found = called(Path("/nowhere"), code + "\nprint(type(below).__name__)")
    assert (found.returncode, found.stdout) == (0, f"{answer}function\n")
    assert "set NUMBA_CACHE_DIR to a folder that can be written" in found.stderr


@pytest.mark.parametrize(
    ("age_s", "expected"), [(1.0, True), (2 * LONGEST_COMPILING_S, False), (-2 * LONGEST_COMPILING_S, False)]
)
def test_a_claim_to_compile_is_believed_for_minutes_whatever_the_clock_does(
    age_s: float, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is set back leaves claims of the future, which nobody would have waited for to pass."""
    claim = tmp_path / "claim"
    claim.touch()
    os.utime(claim, (time.time() - age_s,) * 2)
    monkeypatch.setattr(cache, "_claim", lambda: claim)
    assert cache.is_compiling() == expected


@compiled.compiled_leaf
def _one_more(values: np.ndarray, place: int) -> int:
    values[place] += 1
    return int(values[place])


@compiled.compiled
def _count_up(arrays: tuple[np.ndarray, np.ndarray], rounds: int) -> int:
    """Change arrays on the way, by itself and through a leaf."""
    values, total = arrays
    for number in range(rounds):
        total[0] += _one_more(values, number % len(values))
    return int(total[0])


@pytest.mark.parametrize("num_looks", [0, 1, 5, 1000])
def test_a_call_that_the_compiler_overtakes_gives_what_it_gives_compiled(
    num_looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine code is there after so many looks: before the call, within it, or never."""
    looks = iter([True] * num_looks)
    monkeypatch.setattr(compiled, "is_waiting", lambda: next(looks, False))
    monkeypatch.setattr(_count_up, "_is_ready", False)
    arrays = (np.zeros(3, dtype=np.int64), np.zeros(1, dtype=np.int64))
    assert _count_up(arrays, 10) == 22
    assert [array.tolist() for array in arrays] == [[4, 3, 3], [22]]
    assert _count_up._is_ready == (num_looks < 11)  # type: ignore[attr-defined]
