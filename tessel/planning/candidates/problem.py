"""What a plan is made for, and the tables that are derived from it once."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessel.planning.candidates.bounds import trained_ratio
from tessel.planning.candidates.families import Family
from tessel.planning.cluster import Cluster
from tessel.planning.costs.stage_costs import LayerSums, TableKey, layer_sums
from tessel.planning.costs.stage_figures import StageFigures, figures_of_sums
from tessel.planning.cutting.run_prices import RunPrices, run_prices
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.profiles.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What a plan is made for, and tables derived from it.

    Attributes:
        profile: layers and their costs.
        cluster: devices and links.
        global_batch: samples of a training step.
        options: what may be chosen from.
    """

    profile: Profile
    cluster: Cluster
    global_batch: int
    options: PlanOptions
    _sums: dict[TableKey, LayerSums] = field(default_factory=dict)
    _prices: dict[tuple[TableKey, bool], RunPrices] = field(default_factory=dict)

    @property
    def may_recompute(self) -> bool:
        """Whether stages may run their forward again: where memory is limited, and there is a backward."""
        return self.options.recompute and self.cluster.is_limited and self.profile.is_training

    def sums(self, family: Family) -> LayerSums:
        """Return the running sums of a family's table."""
        key = family.table_key
        if key not in self._sums:
            self._sums[key] = layer_sums(self.profile, key)
        return self._sums[key]

    def prices(self, family: Family) -> RunPrices:
        """Return the prices of all runs of layers of a family."""
        key = family.table_key, family.split_backward
        if key not in self._prices:
            sums = self.sums(family)
            self._prices[key] = run_prices(
                sums, splits=family.split_backward, trained_ratio=trained_ratio(sums, self.options)
            )
        return self._prices[key]

    def figures(self, family: Family, layout: Layout) -> StageFigures:
        """Return times and bytes of a layout's stages."""
        return figures_of_sums(
            self.sums(family), layout, self.cluster, self.options.optimizer, self.options.runtime
        )
