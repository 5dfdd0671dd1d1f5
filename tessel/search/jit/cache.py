"""Whether the searches are compiled on this machine, and how to have that done meanwhile.

Compiling `tessel.search` and `tessel.planning` takes 40 to 120 s of processor time, once per machine and
version.
`python -m tessel.search.jit.cache` has it done, unless it is, and leaves a stamp beside the machine code.
Without the stamp of this version the `tessel` command has it done in the background and until then searches
uncompiled, with the same answers but later. Nothing here imports numba.
Checked in tests/tessel/search/jit/test_cache.py.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

PACKAGE = Path(__file__).parent

FOLDERS = (PACKAGE.parent, PACKAGE.parents[1] / "planning")
"""The packages that hold compiled functions."""

ROOT = PACKAGE.parents[2]

LONGEST_COMPILING_S = 300
"""Seconds after which a process that was to compile is taken for dead."""


_COMPILE_ALL = (sys.executable, "-m", "tessel.compile_all")


def is_compiled() -> bool:
    """Return whether `compile_all` has run to its end for this version on this kind of machine."""
    return stamp_path().exists()


def stamp_path() -> Path:
    """Return the file that says so; its name holds what machine code depends on."""
    sources = (
        path.stat()
        for folder in FOLDERS
        for path in sorted(folder.rglob("*.py"))
        if b"@compiled" in path.read_bytes()
    )
    parts = (
        *((stat.st_mtime_ns, stat.st_size) for stat in sources),
        (sys.version, version("numba"), platform.machine(), _processor()),
    )
    return _folder() / f"compiled-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.stamp"


def leave_stamp() -> None:
    """Say that everything is compiled."""
    path = stamp_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    (path.parent / "compiling").unlink(missing_ok=True)


def compile_in_background() -> None:
    """Start a process that compiles everything and outlives this one, unless one already runs."""
    claim = _folder() / "compiling"
    if claim.exists() and time.time() - claim.stat().st_mtime < LONGEST_COMPILING_S:
        return
    claim.parent.mkdir(parents=True, exist_ok=True)
    claim.touch()
    subprocess.Popen(
        _COMPILE_ALL,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _folder() -> Path:
    """Where numba keeps machine code: the folder it is told, or beside the modules, or the user's cache."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return Path(os.environ["NUMBA_CACHE_DIR"])
    beside = PACKAGE / "__pycache__"
    if os.access(beside if beside.exists() else PACKAGE, os.W_OK):
        return beside
    return Path.home() / ".cache" / "tessel"


def _processor() -> str:
    """Numba compiles for the processor it runs on; its name where Linux says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")


if __name__ == "__main__" and not is_compiled():
    subprocess.run(_COMPILE_ALL, check=True)
