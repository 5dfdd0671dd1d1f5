"""Where figures come from: the commit and the processor, as reports name them."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path


def commit() -> str:
    """Return the commit that is checked out, shortened."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def processor() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
