"""Families of ways to use the devices, before any cut: degrees, micro-batch size, placement, halves.

A *family* is what a layout is without its cuts and recomputation: each family is bounded from below as a
whole (`tessel.planning.candidates.bounds`), and only those that may hold something faster are cut. Devices
that differ are given to positions in every order that differs, where these are few; else as they come, and by
memory and by speed, since what a first stage holds in flight is more than what a last one does, and the
search swaps them. Checked in
tests/tessel/planning/candidates/test_families.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, combinations
from typing import NamedTuple

import msgspec

from tessel.errors import ScheduleError
from tessel.handwritten.construction.stages import NotAPipelineError, read_pipeline
from tessel.placement import Placement
from tessel.planning.cluster import Cluster
from tessel.planning.costs.stage_costs import TableKey, costs_of, cuts_at
from tessel.planning.cutting.cut import Cut, Section
from tessel.planning.layout import TOWER_PLACEMENTS, Layout, PlacedTower, PlacementName
from tessel.planning.options import CustomPlacement, PlanOptions
from tessel.profiles.profile import Branches, Profile
from tessel.profiles.towers import tower_layers

MAX_DEVICE_ORDERS = 120
"""Orders of unequal devices up to which each is a family of its own: those of five devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A layout without cuts; attributes as in `Layout`, and

    Attributes:
        num_stages: stages of the chain, or of the branches and what joins them.
        stage_tensor_parallel: empty where stages have the same degree.
        branches: of a `kshape`: where they stand.
        tower_stages: stages of a tower that has devices of its own.
    """

    data_parallel: int
    pipeline: int
    tensor_parallel: int
    micro_batch: int
    micro_batches: int
    placement: PlacementName
    num_stages: int
    split_backward: bool
    stage_devices: CustomPlacement = ()
    branch_devices: int = 0
    device_order: tuple[int, ...] = ()
    branches: Branches | None = None
    context_parallel: int = 1
    expert_parallel: int = 1
    tower: PlacedTower | msgspec.UnsetType = msgspec.UNSET
    tower_stages: int = 0
    stage_tensor_parallel: tuple[int, ...] = ()

    def layout(self, bounds: Sequence[int], recompute: Sequence[bool] = ()) -> Layout:
        """Return the layout whose stages begin at these layers.

        Args:
            bounds: 0, the first layer of each later stage, and the number of layers.
            recompute: by stage; empty for nowhere.
        """
        return Layout(
            data_parallel=self.data_parallel,
            pipeline=self.pipeline,
            tensor_parallel=self.tensor_parallel,
            stage_tensor_parallel=self.stage_tensor_parallel or msgspec.UNSET,
            context_parallel=self.context_parallel,
            expert_parallel=self.expert_parallel,
            micro_batch=self.micro_batch,
            micro_batches=self.micro_batches,
            placement=self.placement,
            cuts=cuts_at(bounds),
            recompute=tuple(recompute) if any(recompute) else (),
            split_backward=self.split_backward,
            stage_devices=self.stage_devices,
            branch_devices=self.branch_devices,
            device_order=self.device_order,
            tower=self.tower,
        )

    def any_layout(self, num_layers: int) -> Layout:
        """Return some layout of the family, for what does not depend on its cuts."""
        starts = (
            section.first + stage
            for section in self.sections(num_layers)
            for stage in range(section.num_stages)
        )
        return self.layout((*starts, num_layers))

    def sections(self, num_layers: int) -> tuple[Section, ...]:
        """Return the layers that are cut by themselves, of all layers together.

        Divided ends are the first and the last layer alone; branches and what joins them are apart, as is a
        tower on devices of its own.
        """
        if self.placement == "mshape":
            inner = Section(1, num_layers - 1, self.pipeline)
            return (Section(0, 1, 1), inner, Section(num_layers - 1, num_layers, 1))
        if self.branches is not None:
            second, joined = self.branches.second, self.branches.joined
            return (
                Section(0, second, self.branch_devices),
                Section(second, joined, self.pipeline - self.branch_devices),
                Section(joined, num_layers, 1),
            )
        if self.tower:
            own = self.tower.layers
            return (
                Section(0, own, self.tower_stages),
                Section(own, num_layers, self.num_stages - self.tower_stages),
            )
        return (Section(0, num_layers, self.num_stages),)

    def allows(self, cut: Cut) -> bool:
        """Whether a cut is of the family: its stages begin where sections do."""
        stage = 0
        for section in self.sections(cut.bounds[-1]):
            if cut.bounds[stage] != section.first:
                return False
            stage += section.num_stages
        return True

    @property
    def table_keys(self) -> tuple[TableKey, ...]:
        """Which figures each tensor-parallel degree runs with, ascending."""
        degrees = sorted(set(self.tensor_degrees))
        return tuple(self.table_key._replace(tensor_parallel=degree) for degree in degrees)

    @property
    def table_key(self) -> TableKey:
        """Which figures of the profile it runs with; of several degrees, those of the largest."""
        return TableKey(
            self.micro_batch,
            self.tensor_parallel,
            self.shards,
            self.joined,
            self.context_parallel,
            self.expert_parallel,
        )

    @property
    def tensor_degrees(self) -> tuple[int, ...]:
        """Devices over which each layer is split, by position of the pipeline."""
        return self.stage_tensor_parallel or (self.tensor_parallel,) * self.pipeline

    @property
    def widths(self) -> tuple[int, ...]:
        """Devices at each position of the pipeline, over all replicas."""
        return tuple(self.data_parallel * self.context_parallel * each for each in self.tensor_degrees)

    @property
    def shards(self) -> int:
        """Devices over which first and last layer are divided; 0 where they are not."""
        return self.pipeline if self.placement == "mshape" else 0

    @property
    def joined(self) -> int:
        """Devices over which what joins two branches is divided; 0 where none run side by side."""
        return self.pipeline * self.tensor_parallel if self.placement == "kshape" else 0

    @property
    def chain(self) -> CustomPlacement:
        """Device, within one pipeline, of each stage; of an `xshape` on the way down.

        Of a stage that is divided over all devices it is the one next to its neighbour's. Branches are no
        chain: theirs stand one after the other.
        """
        if self.placement == "custom":
            return self.stage_devices
        stages = range(self.num_stages)
        if self.placement == "mshape":
            return (0, *range(self.pipeline), self.pipeline - 1)
        if self.placement == "kshape":
            return (*range(self.pipeline), self.pipeline - 1)
        if self.placement == "zbv":
            turn = 2 * self.pipeline - 1
            return tuple(min(stage, turn - stage) for stage in stages)
        return tuple(stage % self.pipeline for stage in stages)

    @property
    def chunks(self) -> int:
        """Stages of the chain on each device; on the fullest one where they differ."""
        return 1 if self.placement in ("mshape", "kshape") else -(-self.num_stages // self.pipeline)


def family_of(layout: Layout) -> Family:
    """Return the family of a layout."""
    names = Family.__dataclass_fields__.keys() - {"num_stages", "stage_tensor_parallel", "tower_stages"}
    return Family(
        num_stages=len(layout.cuts),
        tower_stages=layout.tower_stages,
        stage_tensor_parallel=layout.tensor_degrees if layout.has_own_degrees else (),
        **{name: getattr(layout, name) for name in names},
    )


def chain_of(placement: Placement) -> CustomPlacement:
    """Return the device of each stage of a placement that is one chain, such as one from a file.

    Raises:
        ScheduleError: it is no chain of stages on one device each, or leaves out a device.
    """
    try:
        devices = read_pipeline(placement).chain_devices()
    except NotAPipelineError as error:
        raise ScheduleError(
            f"the placement has no stages to plan with: {error}; draw a chain of them"
        ) from error
    if devices is None or set(devices) != set(range(placement.devices)):
        raise ScheduleError(
            "the placement is not one chain of stages on one device each that uses every device, and layers "
            "can only be cut into a chain; give such a placement, or one by name"
        )
    return devices


def families(
    profile: Profile, cluster: Cluster, *, global_batch: int, options: PlanOptions
) -> Iterator[Family]:
    """Yield every family that options, devices, profile and batch allow.

    Args:
        profile: micro-batch sizes and degrees of parallelism within a layer are those that it has.
        cluster: how many devices there are; each layout uses all of them.
        global_batch: samples of a training step.
        options: what may be chosen from.
    """
    for degrees in sorted({table.degrees for table in profile.tables}):
        inner = degrees.tensor_parallel * degrees.context_parallel
        if not options.allows(degrees) or cluster.devices % inner:
            continue
        positions = cluster.devices // inner
        for pipeline in (degree for degree in range(1, positions + 1) if positions % degree == 0):
            data_parallel = positions // pipeline
            samples = data_parallel * degrees.micro_batch
            if (
                options.pipeline not in (None, pipeline)
                or options.data_parallel not in (None, data_parallel)
                or pipeline > len(profile.layers)
                or global_batch % samples
                or data_parallel * degrees.context_parallel % degrees.expert_parallel
            ):
                continue
            for shape in _shapes(pipeline, profile, options):
                if shape.placement == "xshape" and global_batch // samples % 2:
                    continue
                family = Family(
                    data_parallel=data_parallel,
                    pipeline=pipeline,
                    **degrees._asdict(),
                    micro_batches=global_batch // samples,
                    placement=shape.placement,
                    num_stages=shape.num_stages,
                    split_backward=False,
                    stage_devices=shape.stage_devices,
                    branch_devices=shape.branch_devices,
                    branches=profile.branches if shape.branch_devices else None,
                    tower=PlacedTower(where="own", layers=tower_layers(profile))
                    if shape.tower_stages
                    else msgspec.UNSET,
                    tower_stages=shape.tower_stages,
                )
                if not _is_measured(profile, family.table_key):
                    continue
                yield from variants(family, profile, cluster, options)


def variants(family: Family, profile: Profile, cluster: Cluster, options: PlanOptions) -> Iterator[Family]:
    """Yield a family with joint and with split backwards, and in each order of unequal devices."""
    for split_backward in _splits(profile, family.table_keys, options):
        for device_order in _device_orders(cluster, family.widths):
            yield replace(family, split_backward=split_backward, device_order=device_order)


def explain_none(profile: Profile, cluster: Cluster, *, global_batch: int, options: PlanOptions) -> str:
    """Return the sentence for a plan that has no family at all."""
    if options.tower == "own":
        return (
            f"no degrees give the tower of {profile.name} devices of its own out of {cluster.devices} for a "
            f"global batch of {global_batch}, one stage a device (placement vshape); use more devices, fix "
            "less, or run the tower first"
        )
    wanted = set(options.placements)
    if wanted == {"kshape"} and profile.branches is None:
        return f"{profile.name} has no two branches that meet, as kshape runs; use another placement"
    if wanted == {"mshape"} and not profile.shards:
        return (
            f"first and last layer of {profile.name} were not measured divided over devices, as mshape runs "
            "them; measure them, or use another placement"
        )
    tables = ", ".join(str(table.degrees) for table in profile.tables)
    has_experts = any(table.expert_parallel > 1 for table in profile.tables)
    experts = "; expert-parallel degrees divide data × context parallelism" if has_experts else ""
    return (
        f"no degrees use {cluster.devices} devices for a global batch of {global_batch} with the profile's "
        f"micro-batch sizes × tensor-parallel degrees ({tables}), its {len(profile.layers)} layers and the "
        "options given; choose a global batch that is a multiple of devices × micro-batch size, or fix less"
        f"{experts}"
    )


class _Shape(NamedTuple):
    """A placement of a pipeline, as `Family` has it."""

    placement: PlacementName
    num_stages: int
    stage_devices: CustomPlacement = ()
    branch_devices: int = 0
    tower_stages: int = 0


def _shapes(pipeline: int, profile: Profile, options: PlanOptions) -> Iterator[_Shape]:
    num_layers = len(profile.layers)
    if options.tower == "own":
        if options.chunks in (None, 1) and set(options.placements) & set(TOWER_PLACEMENTS["own"]):
            yield from _with_own_tower(pipeline, profile)
        return
    for placement in options.placements:
        if not isinstance(placement, str):
            is_fitting = max(placement) + 1 == pipeline and len(placement) <= num_layers
            if is_fitting and options.chunks in (None, -(-len(placement) // pipeline)):
                yield _Shape("custom", len(placement), placement)
            continue
        if placement == "mshape":
            if pipeline > 1 and pipeline + 2 <= num_layers and options.chunks in (None, 1):
                yield _Shape(placement, pipeline + 2)
            continue
        if placement == "kshape":
            if options.chunks in (None, 1):
                yield from _branched(pipeline, profile.branches)
            continue
        for chunks in _chunks(placement, pipeline, options.max_chunks):
            if pipeline * chunks <= num_layers and options.chunks in (None, chunks):
                yield _Shape(placement, pipeline * chunks)


def _with_own_tower(pipeline: int, profile: Profile) -> Iterator[_Shape]:
    """Yield a shape for each number of devices that a tower may have by itself."""
    layers = tower_layers(profile)
    for own in range(1, pipeline):
        if own <= layers and pipeline - own <= len(profile.layers) - layers:
            yield _Shape("vshape", pipeline, tower_stages=own)


def _branched(pipeline: int, branches: Branches | None) -> Iterator[_Shape]:
    """Yield a shape for each number of devices that the first of two branches may have."""
    if branches is None:
        return
    for first in range(1, pipeline):
        if first <= branches.second and pipeline - first <= branches.joined - branches.second:
            yield _Shape("kshape", pipeline + 1, branch_devices=first)


def _chunks(placement: PlacementName, pipeline: int, max_chunks: int) -> Sequence[int]:
    """Return stages a device; on a pipeline of one device every placement is a `vshape`."""
    if placement == "vshape":
        return (1,)
    if pipeline == 1:
        return ()
    if placement == "interleaved":
        return range(2, max_chunks + 1)
    return (2,) if placement == "zbv" else (1,)


def _splits(profile: Profile, keys: Iterable[TableKey], options: PlanOptions) -> tuple[bool, ...]:
    can_split = profile.is_training and all(
        cost.is_splittable for key in keys for cost in costs_of(profile, key)
    )
    if options.split_backward is None:
        return (False, True) if can_split else (False,)
    return (options.split_backward and can_split,)


def _is_measured(profile: Profile, key: TableKey) -> bool:
    """Whether what is divided was measured so: ends of a model whose other layers are whole, or joints."""
    if key.shards:
        known = {(table.micro_batch, table.shards) for table in profile.shards}
        return key.degrees[1:] == (1, 1, 1) and (key.micro_batch, key.shards) in known
    degrees = {table.degrees for table in profile.tables}
    return not key.joined or key.degrees._replace(tensor_parallel=key.joined) in degrees


def _device_orders(cluster: Cluster, widths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return orders of unequal devices, as they come first; groups of these widths share a position.

    They are all that differ in speed or memory, or a few where these are many: see `tries_every_order`.
    """
    if not cluster.is_uneven:
        return (within_nodes(cluster, widths),)
    numbers = range(cluster.devices)
    kinds = [_kind(cluster, device) for device in numbers]
    by_memory = sorted(numbers, key=lambda device: (-kinds[device].memory, -kinds[device].speed, device))
    by_speed = sorted(numbers, key=lambda device: (-kinds[device].speed, -kinds[device].memory, device))
    slowest_first = sorted(numbers, key=lambda device: (kinds[device].speed, -kinds[device].memory, device))
    found = [tuple(numbers), tuple(by_memory), tuple(by_speed), tuple(slowest_first)]
    if tries_every_order(cluster, widths):
        groups = _groups(by_speed, widths)
        found += _distinct_orders(groups, [tuple(kinds[device] for device in group) for group in groups])
    return tuple({_kinds_of(order, kinds, widths): order for order in reversed(found)}.values())[::-1]


def within_nodes(cluster: Cluster, widths: Sequence[int]) -> tuple[int, ...]:
    """Return an order of equal devices in which wide positions have the first ones; empty for as they come.

    Groups of unequal degrees, one after the other, may begin within a node and end in the next. From the
    widest on, each begins at a multiple of its width, where widths are powers of two.
    """
    if len(set(widths)) == 1 or not cluster.devices_per_node:
        return ()
    slots: list[tuple[int, ...]] = [()] * len(widths)
    first = 0
    for position in sorted(range(len(widths)), key=lambda position: -widths[position]):
        slots[position] = tuple(range(first, first := first + widths[position]))
    order = tuple(chain.from_iterable(slots))
    return () if order == tuple(range(first)) else order


def tries_every_order(cluster: Cluster, widths: Sequence[int]) -> bool:
    """Return whether families hold every order of a cluster's devices that differs from others.

    Args:
        widths: devices of each position, which are alike where that can be.
    """
    if not cluster.is_uneven:
        return True
    if len(set(widths)) > 1:
        return False
    by_kind = sorted(range(cluster.devices), key=lambda device: _kind(cluster, device))
    counts = Counter(tuple(_kind(cluster, device) for device in group) for group in _groups(by_kind, widths))
    return num_distinct_orders(counts.values()) <= MAX_DEVICE_ORDERS


def num_distinct_orders(counts: Iterable[int]) -> int:
    """Return in how many ways things stand in a row of which so many are alike."""
    found, total = 1, 0
    for count in counts:
        total += count
        found *= math.comb(total, count)
    return found


def swapped_orders(family: Family, cluster: Cluster) -> Iterator[tuple[int, ...]]:
    """Yield the orders of devices in which two positions of a family have changed places, if that matters."""
    if not family.device_order:
        return
    groups = _groups(family.device_order, family.widths)
    kinds = [sorted(_kind(cluster, device) for device in group) for group in groups]
    for one, other in combinations(range(len(groups)), 2):
        if kinds[one] != kinds[other] and len(kinds[one]) == len(kinds[other]):
            swapped = list(groups)
            swapped[one], swapped[other] = groups[other], groups[one]
            yield tuple(chain.from_iterable(swapped))


class _Kind(NamedTuple):
    """What tells devices apart."""

    speed: float
    memory: int


def _kind(cluster: Cluster, device: int) -> _Kind:
    return _Kind(cluster.speed_of(device), cluster.memory_of(device) or 0)


def _groups(order: Sequence[int], widths: Sequence[int]) -> list[tuple[int, ...]]:
    ends = accumulate(widths)
    return [tuple(order[end - width : end]) for end, width in zip(ends, widths, strict=True)]


def _kinds_of(
    order: Sequence[int], kinds: Sequence[_Kind], widths: Sequence[int]
) -> tuple[tuple[_Kind, ...], ...]:
    """Return the kinds of devices at each position, whichever of them stands where."""
    return tuple(tuple(sorted(kinds[device] for device in group)) for group in _groups(order, widths))


def _distinct_orders(groups: Sequence[tuple[int, ...]], kinds: Sequence[object]) -> Iterator[tuple[int, ...]]:
    """Yield the devices of groups in every order in which the kinds of groups differ."""
    if not groups:
        yield ()
        return
    for place in dict.fromkeys(kinds.index(kind) for kind in kinds):
        others = [*groups[:place], *groups[place + 1 :]]
        for rest in _distinct_orders(others, [*kinds[:place], *kinds[place + 1 :]]):
            yield (*groups[place], *rest)
