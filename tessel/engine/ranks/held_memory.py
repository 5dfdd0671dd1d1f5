"""Memory that a rank's process holds: its resident set in steps, beyond that of the imports.

The kernel counts the largest resident set (`VmHWM`), and starts to count anew when asked. What building the
stages left behind (the compiler's heap, the whole model's weights, of which a rank keeps its own) is given
back to the system first, as far as it can be. Only Linux counts so; elsewhere nothing is reported. Checked in
tests/tessel/engine/test_memory.py.

The GNU C library raises the size from which a tensor gets pages of its own up to 32 MiB, as tensors of that
size are freed. Later ones come from the heap, where freed ones leave gaps that the process keeps: 12 to 14
MiB in ranks that need 110 to 120. So ranks fix that size.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_MMAP_THRESHOLD = -3
"""Names the size in `mallopt`; see mallopt(3)."""

_OWN_PAGES_BYTES = 1 << 20
"""Below, asking the system for pages and giving them back takes longer than a small gap is worth."""

_RESET_PEAK = "5"
"""What the kernel resets the largest resident set by; see proc(5)."""


def resident_bytes() -> int | None:
    """Return the resident set of this process; None where the system does not say."""
    return _read("VmRSS")


def peak_bytes() -> int | None:
    """Return the largest resident set since `reset_peak`; None where the system does not say."""
    return _read("VmHWM")


def reset_peak() -> bool:
    """Let the largest resident set be counted from now on; return whether the system does so."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def mmap_large_tensors() -> bool:
    """Have every tensor of at least `_OWN_PAGES_BYTES` get pages of its own, which go back when it is freed.

    Returns whether the C library does so.
    """
    with suppress(OSError, AttributeError):  # not with every C library
        return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _OWN_PAGES_BYTES))
    return False


def release_free_memory() -> None:
    """Return freed memory to the system, as far as it lies in whole pages."""
    gc.collect()
    with suppress(OSError, AttributeError):  # not with every C library
        ctypes.CDLL(None).malloc_trim(0)


def _read(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
