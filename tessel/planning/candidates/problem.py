"""Problem that a plan solves, and the tables that are derived from it once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tessel.batches.mixture import Mixture
from tessel.errors import ScheduleError
from tessel.planning.candidates.bound_terms import family_shares
from tessel.planning.candidates.families import Family
from tessel.planning.candidates.layer_groups import group_bounds, grouped_profile, grouped_sums
from tessel.planning.cluster import Cluster
from tessel.planning.costs.degree_sums import DegreeSums
from tessel.planning.costs.stage_costs import FloatArray, LayerSums, TableKey, layer_sums
from tessel.planning.costs.stage_figures import StageFigures, figures_of_classes, figures_of_sums
from tessel.planning.cutting.run_prices import RunPrices, layer_times, run_prices
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.profiles.classes import class_profile, least_profile, mean_profile
from tessel.profiles.profile import Profile

EQUAL_ALONE = ("xshape", "mshape", "kshape")
"""Placements that pair micro-batches, or run them on several devices at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What a plan is made for, and tables derived from it.

    Attributes:
        profile: layers and their costs; where micro-batches differ, times on average and the most bytes.
        options: what may be chosen from; where micro-batches differ, without placements that pair or divide
            them.
        bounds: where the groups of layers begin between which stages are cut, and the number of layers.
        by_class: profiles of the classes of micro-batches; none where they are alike.
        grouped: the profile whose layers are these groups; the profile itself where each layer is one.
    """

    profile: Profile
    job: Job
    options: PlanOptions
    by_class: tuple[Profile, ...] = ()
    bounds: tuple[int, ...] = field(init=False)
    grouped: Profile = field(init=False)
    _sums: dict[object, LayerSums] = field(default_factory=dict)
    _prices: dict[object, RunPrices] = field(default_factory=dict)
    _degrees: dict[object, DegreeSums] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.job.mixture is not None and not self.by_class:
            self._take_apart(self.job.mixture)
        bounds = group_bounds(self.profile, self.options.by_hand)
        is_long = len(bounds) <= len(self.profile.layers)
        grouped = grouped_profile(self.profile, bounds) if is_long else self.profile
        object.__setattr__(self, "bounds", bounds)
        object.__setattr__(self, "grouped", grouped)

    def changed(self, job: Job, options: PlanOptions) -> Problem:
        """Return the problem of another cluster or other options, whose tables are made once for both.

        A job without the mixture has micro-batches that all take the mean.
        """
        by_class = () if job.mixture is None else self.by_class
        is_alike = group_bounds(self.profile, options.by_hand) == self.bounds
        tables = (self._sums, self._prices, self._degrees) if is_alike else ()
        return Problem(self.profile, job, options, by_class, *tables)

    def _take_apart(self, mixture: Mixture) -> None:
        """Keep the profile of each class, and their mean in place of the profile."""
        placements = tuple(each for each in self.options.placements if each not in EQUAL_ALONE)
        if not placements:
            raise ScheduleError(
                f"placement {self.options.placements[0]} runs equal micro-batches alone, and the batch "
                f"{mixture} has several classes; use vshape, interleaved or zbv"
            )
        if self.options.tensor_parallel == "own" or isinstance(self.options.tensor_parallel, tuple):
            raise ScheduleError(
                f"micro-batches differ ({mixture}), and stages are to have tensor-parallel degrees of their "
                "own; give one of both"
            )
        if any(table.expert_parallel > 1 for table in self.profile.tables):
            raise ScheduleError(
                f"{self.profile.name} was measured with experts divided over replicas, which exchange tokens "
                "in every micro-batch, and unequal ones are not in step; plan with --expert-parallel 1"
            )
        by_class = tuple(class_profile(self.profile, name) for name in mixture.classes)
        object.__setattr__(self, "options", replace(self.options, placements=placements))
        object.__setattr__(self, "by_class", by_class)
        object.__setattr__(self, "profile", mean_profile(by_class, mixture.counts))

    @property
    def cluster(self) -> Cluster:
        """Devices and links."""
        return self.job.cluster

    @property
    def class_profiles(self) -> tuple[Profile, ...]:
        """The profile of each class of micro-batches."""
        return self.by_class or (self.profile,)

    @property
    def varies(self) -> bool:
        """Whether durations vary, as the user or the table says."""
        return self.options.spread is not None or any(each.has_spreads for each in self.class_profiles)

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
        """Return the running sums of a family's table, at the borders of groups; of several, the least."""
        if family.stage_tensor_parallel:
            return self._least_sums(family.table_keys)
        return self._sums_of(self.profile, family.table_key)

    def _least_sums(self, keys: tuple[TableKey, ...]) -> LayerSums:
        if keys not in self._sums:
            self._sums[keys] = self.degree_sums(keys).least()
        return self._sums[keys]

    def degree_sums(self, keys: tuple[TableKey, ...]) -> DegreeSums:
        """Return the running sums of tables that differ in their tensor-parallel degrees."""
        if keys not in self._degrees:
            tables = {key.tensor_parallel: self._sums_of(self.profile, key) for key in keys}
            self._degrees[keys] = DegreeSums.of(tables)
        return self._degrees[keys]

    def sums_of_class(self, family: Family, of: int) -> LayerSums:
        """Return the same of one class of micro-batches."""
        return self._sums_of(self.by_class[of], family.table_key, of)

    def _sums_of(self, profile: Profile, table: TableKey, of: int = -1) -> LayerSums:
        key = table, of
        if key not in self._sums:
            sums = layer_sums(profile, table)
            self._sums[key] = grouped_sums(sums, self.bounds) if self.is_grouped else sums
        return self._sums[key]

    def bound_sums(self, family: Family) -> LayerSums:
        """Return the running sums that bounds are made of: where micro-batches differ, the least of all.

        Their work is what they take on average, as devices run all of them.
        """
        if not self.by_class:
            return self.sums(family)
        key = family.table_key, "bound", family.split_backward
        if key not in self._sums:
            own = [self.sums_of_class(family, of) for of in range(len(self.by_class))]
            self._sums[key] = self._bound_sums(family, own, is_grouped=self.is_grouped)
        return self._sums[key]

    def bound_sums_of_layers(self, family: Family) -> LayerSums:
        """Return the same over all layers."""
        if not self.is_grouped:
            return self.bound_sums(family)
        if not self.by_class:
            return self.least_sums_of_layers(family.table_keys)
        own = [layer_sums(each, family.table_key) for each in self.by_class]
        return self._bound_sums(family, own, is_grouped=False)

    def least_sums_of_layers(self, keys: tuple[TableKey, ...]) -> LayerSums:
        """Return the least running sums of several tables over all layers; of one table its own."""
        if not self.is_grouped:
            return self._least_sums(keys) if len(keys) > 1 else self._sums_of(self.profile, keys[0])
        tables = {key.tensor_parallel: layer_sums(self.profile, key) for key in keys}
        return DegreeSums.of(tables).least() if len(keys) > 1 else tables[keys[0].tensor_parallel]

    def _bound_sums(self, family: Family, own: Sequence[LayerSums], *, is_grouped: bool) -> LayerSums:
        assert self.job.mixture is not None, "micro-batches differ"
        least = layer_sums(least_profile(self.by_class), family.table_key)
        work = [layer_times(each, splits=family.split_backward) for each in own]
        mean: FloatArray = np.average(work, axis=0, weights=self.job.mixture.counts)
        return replace(grouped_sums(least, self.bounds) if is_grouped else least, work=mean)

    def prices(self, family: Family) -> RunPrices:
        """Return the prices of all runs of layers of a family; of several degrees, the least of all."""
        return self._prices_of(family, self.sums(family))

    def stage_prices(self, family: Family) -> tuple[RunPrices, ...]:
        """Return the prices of all runs of layers of each stage's degree; of one degree, once."""
        degrees = family.stage_tensor_parallel or (family.tensor_parallel,)
        keys = (family.table_key._replace(tensor_parallel=degree) for degree in degrees)
        return tuple(self._prices_of(family, self._sums_of(self.profile, key), key) for key in keys)

    def bound_prices(self, family: Family) -> RunPrices:
        """Return the same for bounds; see `bound_sums`."""
        return self._prices_of(family, self.bound_sums(family))

    def _prices_of(self, family: Family, sums: LayerSums, table: TableKey | None = None) -> RunPrices:
        shares = family_shares(family, sums, self.job)
        # What devices of any speed, and pairs, take at least is known of their blocks alone.
        is_exact = not (self.cluster.device_speed or self.job.overlap_factor or sums.work is not None)
        copy_us_per_byte = self.job.copy_us_per_byte if is_exact else 0.0
        buffers = self.job.buffers
        tables = family.table_keys if table is None else (table,)
        key = tables, family.split_backward, shares, sums.work is None, buffers, copy_us_per_byte
        if key not in self._prices:
            self._prices[key] = run_prices(
                sums,
                splits=family.split_backward,
                shares=shares,
                buffers=buffers,
                copy_us_per_byte=copy_us_per_byte,
            )
        return self._prices[key]

    def figures(self, family: Family, layout: Layout) -> StageFigures:
        """Return times and bytes of a layout's stages."""
        if layout.has_own_degrees:
            every = self.degree_sums(family.table_keys)
            return figures_of_sums(every.of_stages(layout.cuts, layout.tensor_degrees), layout, self.job)
        if not self.by_class:
            return figures_of_sums(self.sums(family), layout, self.job)
        own = [self.sums_of_class(family, of) for of in range(len(self.by_class))]
        return figures_of_classes(self.sums(family), own, layout, self.job)
