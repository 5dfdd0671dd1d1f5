"""Where a page of the documentation is, for messages: a path in a clone, else a URL of the installed copy.

Checked in tests/test_distribution.py.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

FOLDER = "share/doc/tessel-tuner"
"""Where a wheel installs the pages, below the environment's own folder (pyproject.toml, data-files)."""


def manual(page: str) -> str:
    """Return the path, or the URL, of a page such as `formats.md`; an anchor may follow it."""
    name = page.partition("#")[0]
    if (Path(__file__).resolve().parents[2] / "docs" / name).is_file():
        return f"docs/{page}"
    installed = Path(sysconfig.get_path("data"), FOLDER, name)
    return installed.as_uri() if installed.is_file() else f"docs/{page}"
