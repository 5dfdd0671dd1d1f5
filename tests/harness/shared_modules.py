"""Where the modules are that tests share, for processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONPATH = os.pathsep.join(
    str(folder) for folder in (ROOT, *(ROOT / "tests" / name for name in ("samples", "oracles", "harness")))
)
"""As pyproject.toml has it for pytest: the packages, and the folders of shared modules."""
