"""Whether the searches are compiled on this machine, and how to have that done meanwhile.

Compiling `tessel.search` and `tessel.planning` takes 40 to 120 s of processor time, once per machine and
version.
`python -m tessel.search.jit.cache` has it done, unless it is, and leaves a stamp beside the machine code.
Without the stamp of this version a plan or a schedule has it done in the background and until then searches
uncompiled, with the same answers but later (`compile_beside`, `is_waiting`). Nothing here imports numba.
Checked in tests/tessel/search/jit/test_cache.py.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

PACKAGE = Path(__file__).parent

FOLDERS = (PACKAGE.parent, PACKAGE.parents[1] / "planning")
"""The packages that hold compiled functions."""

ROOT = PACKAGE.parents[2]

LONGEST_COMPILING_S = 300
"""Seconds after which compiling in the background ends; what is compiled by then is kept for the next one."""

BACKGROUND = "background"
"""Tells `tessel.entry.compile_all` that it runs there."""

POLL_S = 0.1
"""Seconds between two looks whether the background has ended."""

_next_look_s: list[float] = []
"""When to look again, on the monotonic clock; empty where nothing is waited for."""

_COMPILE_ALL = (sys.executable, "-m", "tessel.entry.compile_all")


def is_compiled() -> bool:
    """Return whether `compile_all` has run to its end for this version on this kind of machine."""
    path = stamp_path()
    return path is not None and path.exists()


def is_kept() -> bool:
    """Return whether there is a folder that machine code can be written to."""
    return _folder() is not None


def stamp_path() -> Path | None:
    """Return the file that says so; its name holds what machine code depends on. None if nothing is kept."""
    folder = _folder()
    if folder is None:
        return None
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
    return folder / f"compiled-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.stamp"


def leave_stamp() -> None:
    """Say that everything is compiled."""
    path = stamp_path()
    if path is not None:
        path.touch()


def is_compiling() -> bool:
    """Return whether a process compiles in the background, or was ended without a chance to say so."""
    claim = _claim()
    try:
        return claim is not None and abs(time.time() - claim.stat().st_mtime) < LONGEST_COMPILING_S
    except FileNotFoundError:
        return False


def end_claim() -> None:
    """Say that no process compiles in the background any more."""
    claim = _claim()
    if claim is not None:
        claim.unlink(missing_ok=True)


def compile_beside() -> None:
    """Have everything compiled in the background, and calls of this process run uncompiled till then."""
    compile_in_background()
    _next_look_s[:] = [0.0]


def is_waiting() -> bool:
    """Return whether calls are to run uncompiled, because a process compiles in the background.

    Where that one ended without having compiled everything, each function is compiled at its first call.
    """
    found = _next_look_s[:]  # another thread may empty it meanwhile
    if not found:
        return False
    now_s = time.monotonic()
    if now_s >= found[0]:
        _next_look_s[:] = found = [now_s + POLL_S] if is_compiling() else []
    return bool(found)


def compile_in_background() -> None:
    """Start a process that compiles everything and outlives this one, unless one already runs."""
    claim = _claim()
    if claim is None or is_compiling():
        return
    claim.touch()
    subprocess.Popen(
        (*_COMPILE_ALL, BACKGROUND),
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _claim() -> Path | None:
    folder = _folder()
    return None if folder is None else folder / "compiling"


def _folder() -> Path | None:
    """Where numba keeps machine code: the folder it is told, beside the modules, or the user's cache."""
    told = os.environ.get("NUMBA_CACHE_DIR")
    folders = (
        *((Path(told),) if told else ()),
        PACKAGE / "__pycache__",
        Path("~/.cache/tessel").expanduser(),
    )
    return next(filter(_can_be_written, folders), None)


def _can_be_written(folder: Path) -> bool:
    """Try it, as numba does: what permissions say is not all (read-only file systems, quotas)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _processor() -> str:
    """Numba compiles for the processor it runs on; its name where Linux says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")


if __name__ == "__main__" and not is_compiled():
    subprocess.run(_COMPILE_ALL, check=True)
