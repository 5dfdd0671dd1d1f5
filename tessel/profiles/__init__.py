"""Tables of layer timings: the profile that a plan is computed from, and the formats that it is read from.

Readers and writers are imported when they are first asked for (PEP 562). Checked in
tests/test_import_weight.py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

if TYPE_CHECKING:
    from tessel.profiles.load import FORMATS, load_profile
    from tessel.profiles.table import save_table

__all__ = ["FORMATS", "CostTable", "Layer", "Profile", "StageCosts", "load_profile", "save_table"]

_MODULE_BY_NAME = {
    "FORMATS": "tessel.profiles.load",
    "load_profile": "tessel.profiles.load",
    "save_table": "tessel.profiles.table",
}

if not TYPE_CHECKING:  # or a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in _MODULE_BY_NAME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)
