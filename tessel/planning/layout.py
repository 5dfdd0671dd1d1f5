"""A layout: one way to use the devices, before and without the order of its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from tessel.errors import ScheduleError
from tessel.profiles.profile import Branches

PlacementName = Literal["vshape", "interleaved", "zbv", "xshape", "mshape", "kshape", "custom"]
"""Which device runs which stage. With P devices: `vshape` stage i on device i; `interleaved` stage i on
device i mod P; `zbv` the first P stages down, the second P back up; `xshape` two copies of the chain of P
stages in opposite directions (Chimera), so that device d holds stages d and P - 1 - d, and half of the
micro-batches go each way; `mshape` one stage a device between the first and the last layer, which are stages
of their own, divided over all devices; `kshape` two branches side by side, one stage a device, and what joins
them divided over all; `custom` whatever `stage_devices` says."""


TowerName = Literal["first", "own", "bubbles"]
"""Where a tower runs: `first`, it is cut with the language model, in front of it; else see `PlacedTower`."""

_WORDS = {
    "vshape": "chain",
    "interleaved": "interleaved",
    "zbv": "V down and up (zbv)",
    "xshape": "both ways (xshape)",
    "mshape": "chain, ends on all (mshape)",
    "kshape": "two branches (kshape)",
    "custom": "your placement",
}
"""Placements as who trains models calls them, with the option's value where that is another word."""


TOWER_PLACEMENTS: dict[str, tuple[PlacementName, ...]] = {
    "own": ("vshape",),
    "bubbles": ("vshape", "interleaved", "zbv", "custom"),
}
"""Placements that a tower can stand with."""


def name_devices(devices: Iterable[int]) -> str:
    """Return numbers of devices as text, runs of them by their ends: `0-3,8`."""
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


class PlacedTower(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the tower stands whose layers come before the language model's.

    Attributes:
        where: `own`, its devices have no layer of the language model; `bubbles`, each device of the pipeline
            holds all of it, and one of them runs it for a micro-batch, forward and backward, in time that
            the pipeline leaves it.
        layers: of the tower.
        recompute: in `bubbles`, whether it runs its forward again before its backward.
    """

    where: Literal["own", "bubbles"]
    layers: int
    recompute: bool = False


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Degrees, cuts and placement of a training step.

    Attributes:
        data_parallel: replicas of the pipeline.
        pipeline: devices of one pipeline, each a group of `tensor_parallel` × `context_parallel` devices.
        tensor_parallel: devices over which each layer is split; the most, where stages differ.
        stage_tensor_parallel: of a `vshape` whose stages differ in that, the degree of each.
        context_parallel: devices over which the sequence of each sample is split; each holds all weights.
        expert_parallel: devices, of those of all replicas and parts of a sequence, over which the routed
            experts are divided.
        micro_batch: samples of one micro-batch.
        micro_batches: micro-batches of one replica in a step.
        placement: which device runs which stage.
        cuts: first and last layer of each stage, inclusive, in model order; stages of a device: `chunks`.
        recompute: whether a stage runs its forward again before its backward, one a stage.
        split_backward: whether the order may split backwards into input and weight halves.
        stage_devices: of a `custom` placement: the device, within one pipeline, of each stage.
        branch_devices: of a `kshape`: devices of the first branch; the second has the others.
        device_order: devices of the cluster by slot, where they are not 0, 1, 2, …: position p of the
            pipeline has the next D·C·T slots, replica by replica, and in each part by part of the
            sequence, D, C and T being the degrees of data, context and its tensor parallelism.
        tower: where the tower stands that is not cut with the language model; in `bubbles` its layers are in
            no cut.
    """

    data_parallel: int
    pipeline: int
    micro_batch: int
    micro_batches: int
    cuts: tuple[tuple[int, int], ...]
    tensor_parallel: int = 1
    stage_tensor_parallel: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    context_parallel: int = 1
    expert_parallel: int = 1
    placement: PlacementName = "vshape"
    recompute: tuple[bool, ...] = ()
    split_backward: bool = False
    stage_devices: tuple[int, ...] = ()
    branch_devices: int = 0
    device_order: tuple[int, ...] = ()
    tower: PlacedTower | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        counts = (
            self.data_parallel,
            self.pipeline,
            self.tensor_parallel,
            self.context_parallel,
            self.expert_parallel,
            self.micro_batch,
            self.micro_batches,
        )
        if min(counts) < 1:
            raise ScheduleError(f"a layout has degree or count {min(counts)}, and each is at least 1")
        if self.weight_replicas % self.expert_parallel:
            raise ScheduleError(
                f"expert-parallel degree {self.expert_parallel} does not divide the {self.weight_replicas} "
                "devices of data × context parallelism, over which experts are divided; give one that does"
            )
        self._check_placement()
        own = self.tensor_degrees
        if self.has_own_degrees and (
            self.placement != "vshape"
            or len(own) != self.pipeline
            or not 1 <= min(own) < max(own)
            or max(own) != self.tensor_parallel
        ):
            raise ScheduleError(
                f"tensor-parallel degrees {self.named_tensor_degrees} are given for the {self.pipeline} "
                f"stages of a {self.placement}, {self.tensor_parallel} as the largest; give each stage of a "
                "vshape one, or all the same"
            )
        if self.recompute and len(self.recompute) != len(self.cuts):
            raise ScheduleError(
                f"recomputation is given for {len(self.recompute)} of {len(self.cuts)} stages; give all"
            )
        expected = self.cuts[0][0]
        for first, last in self.cuts:
            if first != expected or last < first:
                raise ScheduleError(
                    f"stage {(first, last)} does not begin at layer {expected}, where the one before it ends"
                )
            expected = last + 1

    @property
    def placement_words(self) -> str:
        """Which device runs which stage, in a few words."""
        words = _WORDS[self.placement]
        if self.branch_devices:
            return f"{words} of {self.branch_devices} + {self.pipeline - self.branch_devices} devices"
        words = f"{words}, {self.chunks} stages a device" if self.chunks > 1 else words
        return f"{words}, {self._tower_words}" if self.tower else words

    @property
    def _tower_words(self) -> str:
        """Where the tower stands."""
        assert self.tower, "there is one"
        if self.tower.where == "own":
            own = self.tower_stages
            return f"tower on {own} device{'s' if own > 1 else ''} of its own"
        return "tower in bubbles, recomputed" if self.tower.recompute else "tower in bubbles"

    @property
    def tower_stages(self) -> int:
        """Stages of a tower that has devices of its own; 0 where none has."""
        return sum(last < self.tower.layers for _, last in self.cuts) if self.tower else 0

    @property
    def bubbles(self) -> PlacedTower | None:
        """The tower that each device holds and runs in idle time; None where there is none such."""
        return self.tower if self.tower and self.tower.where == "bubbles" else None

    def refuse_bubbles(self, what: str) -> None:
        """Refuse a tower in bubbles where each block has a device.

        Args:
            what: who handles it, as the message begins, such as "a real run".

        Raises:
            ScheduleError: there is one.
        """
        if self.bubbles is not None:
            raise ScheduleError(
                f"{what} has each block on a device of its own, and this plan runs the tower in bubbles, on "
                "whichever is idle; plan with --tower first or own"
            )

    def _check_placement(self) -> None:
        """Refuse stages that the placement does not give every device, and a tower that it cannot have."""
        if self.tower and self.placement not in TOWER_PLACEMENTS[self.tower.where]:
            raise ScheduleError(
                f"a tower runs {self.tower.where} with {', '.join(TOWER_PLACEMENTS[self.tower.where])}, not "
                f"with {self.placement}; give another placement"
            )
        if self.tower and self.tower.layers not in [first for first, _ in self.cuts]:
            raise ScheduleError(
                f"no stage begins behind the tower of {self.tower.layers} layers; cut there, or leave it out"
            )
        if self.bubbles is not None and self.cuts[0][0] != self.bubbles.layers:
            raise ScheduleError(
                f"a tower of {self.bubbles.layers} layers runs in bubbles, and the first stage begins at "
                f"layer {self.cuts[0][0]}; begin behind the tower"
            )
        if self.placement == "custom":
            if len(self.stage_devices) != len(self.cuts) or set(self.stage_devices) != set(
                range(self.pipeline)
            ):
                raise ScheduleError(
                    f"stage devices {self.stage_devices} are given for {len(self.cuts)} stages on "
                    f"{self.pipeline} devices; give each stage one, and each device a stage"
                )
        elif self.placement == "mshape":
            ends = {len(self.cuts), *(last - first for first, last in (self.cuts[0], self.cuts[-1]))}
            inner = self.tensor_parallel * self.context_parallel * self.expert_parallel
            if self.pipeline < 2 or inner > 1 or ends != {self.pipeline + 2, 0}:
                raise ScheduleError(
                    f"mshape has the first and the last layer by themselves and a stage for each of at least "
                    f"2 devices between, without parallelism within them; {len(self.cuts)} stages are given "
                    f"for {self.pipeline} devices; cut so, or give another placement"
                )
        elif self.placement == "kshape":
            if not 0 < self.branch_devices < self.pipeline or len(self.cuts) != self.pipeline + 1:
                raise ScheduleError(
                    f"kshape has a stage for each device of two branches, and one for what joins them; "
                    f"{len(self.cuts)} stages are given for {self.branch_devices} of {self.pipeline} devices "
                    "in the first branch; cut so, or give another placement"
                )
        elif not self.cuts or len(self.cuts) % self.pipeline:
            raise ScheduleError(
                f"{len(self.cuts)} stages do not spread evenly over {self.pipeline} devices; give a multiple"
            )
        elif self.placement in ("vshape", "xshape") and len(self.cuts) != self.pipeline:
            raise ScheduleError(
                f"{self.placement} has one stage per device, and {len(self.cuts)} are given for "
                f"{self.pipeline} devices; give as many, or another placement"
            )
        if self.branch_devices and self.placement != "kshape":
            raise ScheduleError(
                f"branch_devices is {self.branch_devices}, and {self.placement} has no branches; leave it out"
            )
        if self.placement == "xshape" and self.micro_batches % 2:
            raise ScheduleError(
                f"{self.micro_batches} micro-batches cannot go half each way; give an even number to xshape"
            )
        if self.device_order and sorted(self.device_order) != list(range(self.devices)):
            raise ScheduleError(
                f"device_order names {len(self.device_order)} devices, and the layout uses each of "
                f"{self.devices} once; give every number from 0 once"
            )

    @property
    def chunks(self) -> int:
        """Stages of the chain on each device; on the fullest one where they differ."""
        if self.placement == "custom":
            return max(self.stage_devices.count(device) for device in range(self.pipeline))
        if self.placement in ("mshape", "kshape"):
            return 1
        return len(self.cuts) // self.pipeline

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.weight_replicas * sum(self.tensor_degrees)

    @property
    def has_own_degrees(self) -> bool:
        """Whether positions of the pipeline differ in their tensor-parallel degree."""
        return not isinstance(self.stage_tensor_parallel, msgspec.UnsetType)

    @property
    def tensor_degrees(self) -> tuple[int, ...]:
        """Devices over which each layer is split, by position of the pipeline."""
        own = self.stage_tensor_parallel
        return (self.tensor_parallel,) * self.pipeline if isinstance(own, msgspec.UnsetType) else own

    @property
    def named_tensor_degrees(self) -> str:
        """The tensor-parallel degree, or that of each stage, as it is given: `8,8,4x6`."""
        if not self.has_own_degrees:
            return str(self.tensor_parallel)
        runs = [(str(degree), len([*run])) for degree, run in groupby(self.tensor_degrees)]
        return ",".join(f"{name}x{count}" if count > 2 else ",".join([name] * count) for name, count in runs)

    @property
    def weight_replicas(self) -> int:
        """Devices that hold the same weights of one pipeline, but for experts."""
        return self.data_parallel * self.context_parallel

    @property
    def expert_replicas(self) -> int:
        """Devices that hold the same experts of one pipeline."""
        return self.weight_replicas // self.expert_parallel

    @property
    def global_batch(self) -> int:
        """Samples of a training step."""
        return self.data_parallel * self.micro_batches * self.micro_batch

    @property
    def shards(self) -> int:
        """Devices over which the first and the last layer are divided; 0 where they are not."""
        return self.pipeline if self.placement == "mshape" else 0

    @property
    def joined(self) -> int:
        """Devices over which what joins two branches is divided; 0 where none run side by side."""
        return self.pipeline * self.tensor_parallel if self.placement == "kshape" else 0

    @property
    def branches(self) -> Branches | None:
        """Where the branches stand that run side by side; None where none do."""
        if self.placement != "kshape":
            return None
        return Branches(second=self.cuts[self.branch_devices][0], joined=self.cuts[-1][0])

    @property
    def divided_stages(self) -> tuple[int, ...]:
        """The stages that are divided over all devices of a pipeline."""
        last = len(self.cuts) - 1
        return {"mshape": (0, last), "kshape": (last,)}.get(self.placement, ())

    def devices_at(self, position: int) -> tuple[int, ...]:
        """Return the devices of the cluster at one position of the pipeline, replica by replica."""
        slots = self.slots_at(position)
        return tuple(self.device_order[slot] for slot in slots) if self.device_order else tuple(slots)

    def slots_at(self, position: int) -> range:
        """Return the slots of one position of the pipeline, which `device_order` gives to devices."""
        degree, replicas = self.tensor_degree_at(position), self.weight_replicas
        ahead = sum(self.tensor_degrees[:position]) if self.has_own_degrees else position * degree
        return range(replicas * ahead, replicas * (ahead + degree))

    def tensor_degree_at(self, position: int) -> int:
        """Return the devices over which each layer at a position of the pipeline is split."""
        own = self.stage_tensor_parallel
        return self.tensor_parallel if isinstance(own, msgspec.UnsetType) else own[position]

    def cluster_devices(self, stage: int) -> tuple[int, ...]:
        """Return the devices of the cluster that hold a stage, over all replicas and copies."""
        positions = self.devices_of(stage)
        if self.placement == "xshape":
            positions = (*positions, *(self.pipeline - 1 - position for position in positions))
        found = dict.fromkeys(device for position in positions for device in self.devices_at(position))
        return tuple(found)

    @property
    def named_degrees(self) -> str:
        """The degrees of every kind of parallelism; those of context and experts where they are above 1."""
        found = (
            f"data-parallel {self.data_parallel} × pipeline {self.pipeline} × tensor-parallel "
            f"{self.named_tensor_degrees}"
        )
        for kind, degree in (("context", self.context_parallel), ("expert", self.expert_parallel)):
            found += f" × {kind}-parallel {degree}" if degree > 1 else ""
        return found

    @property
    def device_names(self) -> tuple[str, ...]:
        """What tables and pictures call the devices of each position of the pipeline: `3`, `4-7` or `0,8`."""
        return tuple(name_devices(self.devices_at(position)) for position in range(self.pipeline))

    def next_stage(self, stage: int) -> int:
        """Return the stage that takes what a stage makes; -1 of the last."""
        last = len(self.cuts) - 1
        if self.placement == "kshape" and stage == self.branch_devices - 1:
            return last
        return stage + 1 if stage < last else -1

    def devices_of(self, stage: int) -> tuple[int, ...]:
        """Return the devices, within one pipeline, that hold a stage: one, or all where it is divided."""
        if stage in self.divided_stages:
            return tuple(range(self.pipeline))
        return (self.device_of(stage),)

    def device_of(self, stage: int) -> int:
        """Return the device, within one pipeline, that holds a stage (of `xshape`: on the way down).

        Of a stage that is divided over all devices it is the first.
        """
        if stage in self.divided_stages:
            return 0
        if self.placement == "mshape":
            return stage - 1
        if self.placement == "custom":
            return self.stage_devices[stage]
        if self.placement == "zbv":
            row, column = divmod(stage, self.pipeline)
            return self.pipeline - 1 - column if row % 2 else column
        return stage % self.pipeline


def layout_of_layers(layout: Layout, bounds: Sequence[int]) -> Layout:
    """Return a layout of groups as one of their layers."""
    cuts = tuple((bounds[first], bounds[last + 1] - 1) for first, last in layout.cuts)
    return msgspec.structs.replace(layout, cuts=cuts, tower=_behind(layout, bounds))


def layout_of_groups(layout: Layout, bounds: Sequence[int]) -> Layout:
    """Return a layout of layers, each of whose stages begins a group, as one of groups."""
    index = {first: group for group, first in enumerate(bounds)}
    cuts = tuple((index[first], index[last + 1] - 1) for first, last in layout.cuts)
    return msgspec.structs.replace(layout, cuts=cuts, tower=_behind(layout, index))


def _behind(layout: Layout, place: Mapping[int, int] | Sequence[int]) -> PlacedTower | msgspec.UnsetType:
    """Return the tower, given where what comes behind it begins."""
    tower = layout.tower
    return msgspec.structs.replace(tower, layers=place[tower.layers]) if tower else tower
