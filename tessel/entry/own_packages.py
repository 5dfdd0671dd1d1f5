"""Whether Tessel's packages are found, or others of their names in their place.

All but `tessel` have common names. A user's own `scripts/` or `tuner.py`, or another distribution's
`records`, that comes first on Python's path would be imported instead.
Checked in tests/tessel/entry/test_own_packages.py.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

PACKAGES = ("records", "cost_model", "tuner", "scripts")
"""Those beside `tessel`, lowest first."""


@functools.cache
def hidden_package() -> str | None:
    """Return which package is hidden by another of its name, and what to do; None where all are ours."""
    ours = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        if found is None:
            return f"the package {name} of Tessel is missing from {ours}; install Tessel again"
        places = [found.origin, *(found.submodule_search_locations or ())]
        place = next((Path(each) for each in places if each is not None), ours)
        if place.resolve() not in (ours / name / "__init__.py", ours / name):
            return (
                f"{place} is found as {name} in place of Tessel's own package {ours / name}; rename it, "
                "uninstall what it belongs to, or take its folder off Python's path (PYTHONPATH, or the "
                "folder that you are in)"
            )
    return None
