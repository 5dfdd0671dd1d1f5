"""Towers in front of a language model, known by the names of their rows: `vision.layers.3`, `audio_tower.0`.

Checked in tests/tessel/planning/test_towers.py.
"""

from __future__ import annotations

import re
from itertools import takewhile

import msgspec

from tessel.profiles.profile import CostTable, Profile

TOWER = re.compile(r"vision|visual|(?<![a-z])vit|image|audio|speech|tower|clip")
"""What the lower-case name of a tower's row holds."""


def tower_layers(profile: Profile) -> int:
    """Return how many of a model's layers, from the first on, are a tower; 0 where all or none are."""
    found = sum(1 for _ in takewhile(lambda layer: TOWER.search(layer.name.lower()), profile.layers))
    return found if found < len(profile.layers) else 0


def without_tower(profile: Profile) -> Profile:
    """Return the profile of the layers behind the tower, a model by itself."""
    own = tower_layers(profile)
    return msgspec.structs.replace(
        profile,
        layers=profile.layers[own:],
        tables=tuple(_behind(table, own) for table in profile.tables),
        shards=(),
        branches=None,
    )


def _behind(table: CostTable, own: int) -> CostTable:
    spreads = table.spreads
    return msgspec.structs.replace(
        table,
        costs=table.costs[own:],
        intervals=table.intervals[own:],
        spreads=spreads if isinstance(spreads, msgspec.UnsetType) else spreads[own:],
    )
