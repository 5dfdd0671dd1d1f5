"""A profile of several classes of micro-batches: each of them alone, their mean, and what none falls below.

Lengths between measured ones are interpolated layer by layer: times by `tessel.batches.lengths`, bytes of
activations and spreads evenly. Weights are one model's: they are the same in all classes. Checked in
tests/tessel/profiles/test_classes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tessel.batches.lengths import around, interpolated
from tessel.errors import ScheduleError
from tessel.profiles.profile import CostTable, Profile, StageCosts

TIMES = ("forward_us", "backward_us", "backward_input_us", "backward_weight_us", "recompute_us")
"""What a micro-batch takes."""

ACTIVATIONS = ("saved_bytes", "saved_for_weight_bytes", "peak_bytes", "boundary_bytes")
"""What a micro-batch holds and sends."""


def class_profile(profile: Profile, name: str | int) -> Profile:
    """Return the profile of one class alone; of a length between measured ones, what lies in between.

    Raises:
        ScheduleError: there is no such class, or the length is beyond the measured ones.
    """
    own = [table for table in profile.tables if table.of == name]
    if not own:
        if isinstance(name, str) or not all(isinstance(each, int) for each in profile.classes):
            known = ", ".join(map(str, profile.classes))
            raise ScheduleError(f"there is no class {name!r} of micro-batches; {profile.name} has {known}")
        own = [_between(tables, name) for tables in _by_degrees(profile).values()]
    tables = tuple(msgspec.structs.replace(table, of=msgspec.UNSET) for table in own)
    return msgspec.structs.replace(profile, tables=tables)


def mean_profile(profiles: Sequence[Profile], counts: Sequence[int]) -> Profile:
    """Return what a micro-batch takes on average, and holds at most.

    Args:
        profiles: one a class, of one model.
        counts: micro-batches of each.

    Raises:
        ScheduleError: classes were not measured alike: with other degrees, weights, or halves of backwards.
    """
    total = sum(counts)

    def mean(values: Sequence[float]) -> float:
        return sum(value * count for value, count in zip(values, counts, strict=True)) / total

    return _combined(profiles, mean, max)


def least_profile(profiles: Sequence[Profile]) -> Profile:
    """Return what no micro-batch falls below, in time and in bytes."""
    return _combined(profiles, min, min)


_Combine = Callable[[Sequence[float]], float]


def _combined(profiles: Sequence[Profile], times: _Combine, activations: _Combine) -> Profile:
    first = profiles[0]
    tables = []
    for table in first.tables:
        same = [
            next((each for each in other.tables if each.degrees == table.degrees), None) for other in profiles
        ]
        if None in same:
            raise ScheduleError(
                f"{table.degrees.title} was measured of some classes alone; measure it of all"
            )
        costs = zip(*(each.costs for each in same if each is not None), strict=True)
        names = (layer.name for layer in first.layers)
        combined = tuple(
            _combined_cost(own, times, activations, name) for own, name in zip(costs, names, strict=True)
        )
        tables.append(msgspec.structs.replace(table, costs=combined, intervals=(), spreads=msgspec.UNSET))
    return msgspec.structs.replace(first, tables=tuple(tables))


def _combined_cost(
    costs: Sequence[StageCosts], times: _Combine, activations: _Combine, layer: str
) -> StageCosts:
    found: dict[str, Any] = {}
    for name in StageCosts.__struct_fields__:
        values = [getattr(cost, name) for cost in costs]
        known = [value for value in values if value is not None]
        if name in TIMES or name in ACTIVATIONS:
            if known and len(known) < len(values):
                raise ScheduleError(f"layer {layer!r} has {name} in some classes alone; give it in all")
            combine = times if name in TIMES else activations
            found[name] = combine(known) if known else None
        elif name in ("update_us", "gradient_pass_us"):
            found[name] = max(known, default=None)
        elif len(set(values)) > 1:
            raise ScheduleError(
                f"layer {layer!r} has {name} {values[0]} in one class and "
                f"{next(value for value in values if value != values[0])} in another; weights are one model's"
            )
        else:
            found[name] = values[0]
    return StageCosts(**found)


def _by_degrees(profile: Profile) -> dict[object, dict[int, CostTable]]:
    found: dict[object, dict[int, CostTable]] = {}
    for table in profile.tables:
        found.setdefault(table.degrees, {})[int(str(table.of))] = table
    return found


def _between(tables: dict[int, CostTable], length: int) -> CostTable:
    low, high = around(tables, length)
    share = (length - low) / (high - low)
    by_layer = zip(*(table.costs for table in tables.values()), strict=True)
    costs = []
    for short, long, own in zip(tables[low].costs, tables[high].costs, by_layer, strict=True):
        changed: dict[str, Any] = {}
        for name in TIMES:
            measured = {at: getattr(cost, name) for at, cost in zip(tables, own, strict=True)}
            changed[name] = None if None in measured.values() else interpolated(measured, length)
        for name in ACTIVATIONS:
            before, after = getattr(short, name), getattr(long, name)
            is_known = before is not None and after is not None
            changed[name] = round(before + (after - before) * share) if is_known else None
        costs.append(msgspec.structs.replace(short, **changed))
    pairs = zip(tables[low].spread_by_layer, tables[high].spread_by_layer, strict=True)
    spreads = tuple(before + (after - before) * share for before, after in pairs)
    return msgspec.structs.replace(
        tables[low], costs=tuple(costs), spreads=spreads if any(spreads) else msgspec.UNSET
    )
