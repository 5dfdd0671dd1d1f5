"""Problem that a plan solves, and the tables that are derived from it once."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessel.planning.candidates.bounds import family_shares
from tessel.planning.candidates.families import Family
from tessel.planning.candidates.layer_groups import group_bounds, grouped_profile, grouped_sums
from tessel.planning.cluster import Cluster
from tessel.planning.costs.stage_costs import LayerSums, TableKey, layer_sums
from tessel.planning.costs.stage_figures import StageFigures, figures_of_sums
from tessel.planning.cutting.run_prices import RunPrices, run_prices
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.planning.sharding import Shares
from tessel.profiles.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What a plan is made for, and tables derived from it.

    Attributes:
        profile: layers and their costs.
        job: what is asked for.
        options: what may be chosen from.
        bounds: where the groups of layers begin between which stages are cut, and the number of layers.
        grouped: the profile whose layers are these groups; the profile itself where each layer is one.
    """

    profile: Profile
    job: Job
    options: PlanOptions
    bounds: tuple[int, ...] = field(init=False)
    grouped: Profile = field(init=False)
    _sums: dict[TableKey, LayerSums] = field(default_factory=dict)
    _prices: dict[tuple[TableKey, bool, Shares], RunPrices] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bounds = group_bounds(self.profile, self.options.by_hand)
        is_long = len(bounds) <= len(self.profile.layers)
        grouped = grouped_profile(self.profile, bounds) if is_long else self.profile
        object.__setattr__(self, "bounds", bounds)
        object.__setattr__(self, "grouped", grouped)

    @property
    def cluster(self) -> Cluster:
        """Devices and links."""
        return self.job.cluster

    @property
    def num_layers(self) -> int:
        """Layers, or groups of them, between which stages are cut."""
        return len(self.bounds) - 1

    @property
    def is_grouped(self) -> bool:
        """Whether the model is so long that stages are cut between groups of layers."""
        return self.num_layers < len(self.profile.layers)

    @property
    def may_recompute(self) -> bool:
        """Whether stages may run their forward again: where memory is limited, and there is a backward."""
        return self.options.recompute and self.cluster.is_limited and self.profile.is_training

    def sums(self, family: Family) -> LayerSums:
        """Return the running sums of a family's table, at the borders of groups."""
        key = family.table_key
        if key not in self._sums:
            sums = layer_sums(self.profile, key)
            self._sums[key] = grouped_sums(sums, self.bounds) if self.is_grouped else sums
        return self._sums[key]

    def sums_of_layers(self, family: Family) -> LayerSums:
        """Return the running sums of a family's table, over all layers."""
        return layer_sums(self.profile, family.table_key) if self.is_grouped else self.sums(family)

    def prices(self, family: Family) -> RunPrices:
        """Return the prices of all runs of layers of a family."""
        shares = family_shares(family, self.sums(family), self.job)
        key = family.table_key, family.split_backward, shares
        if key not in self._prices:
            sums = self.sums(family)
            self._prices[key] = run_prices(sums, splits=family.split_backward, shares=shares)
        return self._prices[key]

    def figures(self, family: Family, layout: Layout) -> StageFigures:
        """Return times and bytes of a layout's stages."""
        return figures_of_sums(self.sums(family), layout, self.job)
