"""Tables of layer timings: the profile that a plan is computed from, and the formats that it is read from.

Readers and writers are imported when they are first asked for (PEP 562). Checked in
tests/test_import_weight.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from records.lazy_names import names_on_demand
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

if TYPE_CHECKING:
    from tessel.profiles.load import FORMATS, load_profile
    from tessel.profiles.table import save_table

__all__ = ["FORMATS", "CostTable", "Layer", "Profile", "StageCosts", "load_profile", "save_table"]

if not TYPE_CHECKING:  # or a type checker would take any misspelt name for one of these
    __getattr__ = names_on_demand(
        __name__,
        {
            "tessel.profiles.load": "FORMATS load_profile",
            "tessel.profiles.table": "save_table",
        },
    )
