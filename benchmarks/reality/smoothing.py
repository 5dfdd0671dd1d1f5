"""Put noise of a profile right that its own tables show: a small batch that takes longer than a larger one.

Small micro-batches are bound by how fast the host launches kernels, and there a table is noisiest; but more
samples are never less work, so that every larger micro-batch bounds a smaller one from above. Checked in
tests/benchmarks/test_smoothing.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessel.profiles.profile import Profile, StageCosts

_TIMES = tuple(name for name in StageCosts.__struct_fields__ if name.endswith("_us") and name != "update_us")


def bound_by_larger(profile: Profile) -> Profile:
    """Return the profile in which no layer takes longer than at a larger micro-batch of the same degree.

    Only times of a micro-batch are lowered; bytes and the optimizer's step are left as they are.
    """
    tables = []
    for table in profile.tables:
        larger = [
            other.costs
            for other in profile.tables
            if other.tensor_parallel == table.tensor_parallel and other.micro_batch >= table.micro_batch
        ]
        costs = tuple(map(_least, zip(*larger, strict=True), table.costs))
        tables.append(msgspec.structs.replace(table, costs=costs))
    return msgspec.structs.replace(profile, tables=tuple(tables))


def _least(costs: Sequence[StageCosts], own: StageCosts) -> StageCosts:
    """Return a layer's cost with each of its times as the least of these; unknown ones stay unknown."""
    return msgspec.structs.replace(
        own,
        **{
            name: min(time for cost in costs if (time := getattr(cost, name)) is not None)
            for name in _TIMES
            if getattr(own, name) is not None
        },
    )
