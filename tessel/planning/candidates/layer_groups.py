"""Long models are cut between groups of consecutive layers: a plan of ten thousand operators takes seconds.

Searches of cuts hold arrays of all runs of layers, O(layers²). Of a model beyond `MAX_CUT_LAYERS` the running
sums of its table are kept at the borders of groups alone, so that a stage costs exactly what its layers do,
and only where stages may begin is restricted. Bounds that hold for every cut are made of all layers
(`PlanSearch.lower_bound_us`). Checked in tests/tessel/planning/candidates/test_layer_groups.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np

from tessel.planning.costs.stage_costs import BY_LAYER, LayerSums
from tessel.planning.layout import Layout
from tessel.profiles.profile import Branches, CostTable, Layer, Profile
from tessel.profiles.towers import tower_layers

MAX_CUT_LAYERS = 1000
"""Layers up to which stages may begin at any of them."""


def group_bounds(profile: Profile, by_hand: Layout | None) -> tuple[int, ...]:
    """Return where groups of layers begin, and the number of layers: all layers of a model that is not long.

    Groups take equal times, as far as single layers allow. Layers that share a tensor, the first and the last
    are groups; branches, what a tower is in front of and the stages of a layout given by hand begin one.

    Args:
        profile: its first table is used.
        by_hand: a layout to compare with.
    """
    num_layers = len(profile.layers)
    if num_layers <= MAX_CUT_LAYERS:
        return tuple(range(num_layers + 1))
    kept = {0, 1, num_layers - 1, num_layers}
    for layer in (index for index, layer in enumerate(profile.layers) if layer.tie):
        kept |= {layer, layer + 1}
    if profile.branches is not None:
        kept |= {profile.branches.second, profile.branches.joined}
    kept |= {tower_layers(profile)}
    if by_hand is not None:
        kept |= {first for first, _ in by_hand.cuts}
    times = np.cumsum([cost.forward_us + (cost.joint_backward_us or 0.0) for cost in profile.tables[0].costs])
    shares = np.linspace(0.0, float(times[-1]), MAX_CUT_LAYERS)
    return tuple(sorted(kept | {int(place) + 1 for place in np.searchsorted(times[:-1], shares[1:-1])}))


def grouped_profile(profile: Profile, bounds: Sequence[int]) -> Profile:
    """Return the profile whose layers are groups, for what does not depend on their exact costs."""
    groups = list(pairwise(bounds))
    index = {first: number for number, (first, _) in enumerate(groups)}
    found = profile.branches
    return msgspec.structs.replace(
        profile,
        layers=tuple(Layer(profile.layers[first].name) for first, _ in groups),
        tables=tuple(_grouped_table(table, groups) for table in profile.tables),
        branches=None if found is None else Branches(index[found.second], index[found.joined]),
    )


def _grouped_table(table: CostTable, groups: Collection[tuple[int, int]]) -> CostTable:
    costs = tuple(table.costs[first] for first, _ in groups)
    return msgspec.structs.replace(table, costs=costs, intervals=(), spreads=msgspec.UNSET)


def grouped_sums(sums: LayerSums, bounds: Sequence[int]) -> LayerSums:
    """Return the running sums of a table at the borders of groups."""
    at, starts = np.array(bounds), np.array(bounds[:-1])
    running = {
        name: getattr(sums, name)[at] for name in LayerSums.__dataclass_fields__ if name not in BY_LAYER
    }
    index = {first: group for group, first in enumerate(bounds)}
    return replace(
        sums,
        num_layers=len(starts),
        peak=np.maximum.reduceat(sums.peak, starts),
        recomputed_peak=np.maximum.reduceat(sums.recomputed_peak, starts),
        boundary=sums.boundary[at[1:] - 1],
        taken=sums.taken[starts],
        # Each of their layers is a group.
        tied=tuple(
            tensor._replace(layers=tuple(index[layer] for layer in tensor.layers)) for tensor in sums.tied
        ),
        **running,
    )
