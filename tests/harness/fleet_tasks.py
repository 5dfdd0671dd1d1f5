"""Functions that tests have a fleet's workers run: workers import them by name."""

from __future__ import annotations

import tempfile
import time
import uuid
from pathlib import Path


def nap(name: bytes, folder: bytes, seconds: bytes) -> tuple[bytes, ...]:
    """Sleep, leave a file that says that the task of this name was run once more, and return the name."""
    time.sleep(float(seconds))
    (Path(folder.decode()) / f"{name.decode()}-{uuid.uuid4().hex}").touch()
    return (name,)


def stall(folder: bytes, num_stalled: bytes) -> tuple[bytes, ...]:
    """End at once, but not on the first machines: they say so by a file, and wait for another, `end`."""
    place = Path(folder.decode())
    if len(list(place.glob("stalled-*"))) < int(num_stalled):
        (place / f"stalled-{uuid.uuid4().hex}").touch()
        while not (place / "end").exists():
            time.sleep(0.05)
    return (b"done",)


def temporary_folder() -> bytes:
    """Return where this process keeps temporary files."""
    return tempfile.gettempdir().encode()


def fail(name: bytes) -> tuple[bytes, ...]:
    """Fail."""
    raise RuntimeError(f"{name.decode()} cannot be done")
