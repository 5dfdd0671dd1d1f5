"""Compiling ahead, and what is known about it without numba."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tessel.search.jit import cache as jit_cache

ROOT = Path(__file__).resolve().parents[4]


def python(*arguments: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder), **more},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_stamp_says_that_all_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    assert not jit_cache.is_compiled()
    jit_cache.leave_stamp()
    assert jit_cache.is_compiled()


def test_a_changed_source_is_cold_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "makespan" / "hot.py"
    source.parent.mkdir()
    source.write_text("@compiled")
    monkeypatch.setattr(jit_cache, "PACKAGE", tmp_path / "jit")
    monkeypatch.setattr(jit_cache, "FOLDERS", (tmp_path,))
    (tmp_path / "jit").mkdir()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    jit_cache.leave_stamp()
    source.write_text("@compiled  # changed")
    assert not jit_cache.is_compiled()


def test_every_compiled_module_counts() -> None:
    hot = {path for path in (ROOT / "tessel").rglob("*.py") if "\n@compiled" in path.read_text()}
    assert ROOT / "tessel" / "planning" / "cutting" / "descent.py" in hot
    assert hot <= {path for folder in jit_cache.FOLDERS for path in folder.rglob("*.py")}
    assert (jit_cache.ROOT / "tessel" / "entry" / "compile_all.py").exists()


def test_two_do_not_compile_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: started.append(options["env"]))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    jit_cache.compile_in_background()
    jit_cache.compile_in_background()
    assert len(started) == 1
    assert "NUMBA_DISABLE_JIT" not in started[0]


def test_asking_does_not_import_numba() -> None:
    code = "import sys, tessel.search.jit.cache as c; c.is_compiled(); print('numba' in sys.modules)"
    assert subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split() == ["False"]


@pytest.mark.parametrize(
    "command",
    [
        ("schedule", "zbv"),
        pytest.param(("plan", "examples/profiles/eight_layers.csv"), marks=pytest.mark.slow),
    ],
)
def test_a_cold_search_begins_uncompiled_and_says_so(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "compiling").touch()  # another process at work, so that none begins here
    ran = python(
        *("-m", "scripts", *command, "--devices", "2", "--time-limit", "1s", "--json"),
        *(("--micro-batches", "2") if command[0] == "schedule" else ("--global-batch", "4")),
        folder=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert "begins at once with hand-written rules" in ran.stderr
    assert not list(tmp_path.rglob("*.nbi"))


def test_waiting_ends_with_the_process_that_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit_cache, "POLL_S", 0.0)
    assert not jit_cache.is_waiting()
    (tmp_path / "compiling").touch()
    jit_cache.compile_beside()
    assert jit_cache.is_waiting()
    jit_cache.end_claim()
    assert not jit_cache.is_waiting()


@pytest.mark.slow
def test_a_cold_search_ends_in_time_and_everything_is_compiled_ahead(tmp_path: Path) -> None:
    # the stamp of another process at work, so that this test's own one is the only one
    (tmp_path / "compiling").touch()
    options = ("--micro-batches", "8", "--split-backward", "--time-limit", "2s", "--json")
    cold = python("-m", "scripts", "schedule", "zbv", "--devices", "4", *options, folder=tmp_path)
    assert cold.returncode == 0, cold.stderr
    assert "begins at once with hand-written rules" in cold.stderr
    found = re.search(r'"search_seconds": ([\d.]+)', cold.stdout)
    assert found is not None
    assert float(found[1]) < 2.5 * 2
    assert not list(tmp_path.rglob("*.nbi"))

    assert python("-m", "tessel.search.jit.cache", folder=tmp_path).returncode == 0
    hot = {
        f"{path.stem}.{name}"
        for folder in jit_cache.FOLDERS
        for path in folder.rglob("*.py")
        for name in re.findall(r"@compiled(?:_leaf)?\ndef (\w+)", path.read_text())
    }
    kept = {path.name.rpartition("-")[0] for path in tmp_path.rglob("*.nbi")}
    assert hot == kept

    codes = sorted(tmp_path.rglob("*.nbc"))
    warm = python("-m", "scripts", "schedule", "mshape", "--devices", "4", *options, folder=tmp_path)
    assert warm.returncode == 0, warm.stderr
    assert "compil" not in warm.stderr
    assert sorted(tmp_path.rglob("*.nbc")) == codes
