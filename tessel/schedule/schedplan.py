"""Tessel's own names for placements and schedules: `SchedPlan` and `Block`, as its tutorial uses them.

A placement is written by adding sequences of blocks; a composed schedule is read by asking where blocks
stand. Both are a `SchedPlan`, which prints a device per row and a step per column:

    >>> from tessel.schedule.schedplan import Block, SchedPlan
    >>> plan = SchedPlan(2)
    >>> forwards = [Block(0, span=1, memory=1, btype="Forward") for _ in range(2)]
    >>> backwards = [Block(0, span=2, memory=-1, btype="Backward") for _ in range(2)]
    >>> plan.add_block_seq(forwards + backwards, [[0], [1], [1], [0]])
    >>> print(plan)
    f0 .  .  .  b0 b0
    .  f0 b0 b0 .  .

Behind it are the placement and schedule of this package (`to_placement`, `save`); nothing is searched here.
Where Tessel asserts, here a `ScheduleError` says what to do. Checked in tests/tessel/test_schedplan.py.

Source: Lin et al., Tessel (HPCA 2024); the names are those of its tutorial.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from tessel import placement as engine
from tessel.documents import DocumentKind, detect_kind, load_placement, load_schedule, save_document
from tessel.errors import ScheduleError, shown
from tessel.placement import BlockKind, Edge, Placement
from tessel.schedule.schedule import Schedule
from tessel.schedule.tessel_file import TesselFile, is_tessel_file, load_tessel_file

MAX_PRINTED_STEPS = 2000
"""Longest schedule that is printed step by step; no terminal shows more."""


class Block:
    """One piece of one micro-batch's work; compared by identity, and its span and memory may be changed.

    Attributes:
        mid: micro-batch.
        span: steps, >= 0.
        memory: units added on each of its devices when it starts; negative frees.
        btype: "forward" or "backward", in any case.
        gid: position in its placement, once it has one.
        before: blocks that it waits for.
        after: blocks that wait for it.
    """

    def __init__(self, mid: int, span: int, memory: int, btype: str, *, gid: int | None = None) -> None:
        self.mid = mid
        self.span = span
        self.memory = memory
        self.btype = _block_type(btype)
        self.gid = gid
        # Dictionaries keep the order in which dependencies were made; sets would not.
        self.before: dict[Block, None] = {}
        self.after: dict[Block, None] = {}

    @staticmethod
    def make_dependency(prev: Block, next: Block) -> None:
        """Make `next` wait for `prev`."""
        prev.after[next] = None
        next.before[prev] = None

    def __repr__(self) -> str:
        return f"{self.btype[0]}{self.mid}"


class SchedPlan:
    """Blocks on devices: a placement while it is being written, or a schedule that was composed.

    Attributes:
        repetend: first step of the repeating part and the first after it, where there is one.
    """

    def __init__(self, ndevs: int) -> None:
        if ndevs < 1:
            raise ScheduleError(f"a plan for {ndevs} devices was asked for; give at least 1")
        self.repetend: tuple[int, int] | None = None
        self._ndevs = ndevs
        self._devices: dict[Block, tuple[int, ...]] = {}
        self._steps: dict[Block, int] = {}
        self._schedule: Schedule | None = None
        self._unroll: Callable[[int], SchedPlan] | None = None

    @classmethod
    def of_schedule(cls, schedule: Schedule, unroll: Callable[[int], SchedPlan] | None = None) -> SchedPlan:
        """Return a schedule as a plan.

        Args:
            schedule: what the plan shows.
            unroll: returns the plan of as many micro-batches as asked for.
        """
        plan = cls(schedule.placement.devices)
        index = schedule.placement.index_by_name
        by_place: dict[tuple[str, int], Block] = {}
        for start in schedule.starts:
            source = schedule.placement.block(start.block)
            block = Block(
                start.micro_batch, source.span, source.memory, _btype_of(source.kind), gid=index[start.block]
            )
            by_place[start.block, start.micro_batch] = block
            plan._devices[block] = source.devices
            plan._steps[block] = start.start
        for edge in schedule.placement.edges:
            for micro_batch in range(schedule.micro_batches):
                pair = (by_place.get((edge.source, micro_batch)), by_place.get((edge.target, micro_batch)))
                if pair[0] is not None and pair[1] is not None:
                    Block.make_dependency(pair[0], pair[1])
        if schedule.repetend is not None:
            plan.repetend = (schedule.repetend.start, schedule.repetend.end)
        plan._schedule = schedule
        plan._unroll = unroll
        return plan

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> SchedPlan:
        """Return the plan of a saved placement or schedule, also of one that Tessel saved.

        Raises:
            DocumentError: the file is none of these.
        """
        if is_tessel_file(file):
            return _plan_of_tessel_file(load_tessel_file(file))
        if detect_kind(file) is DocumentKind.PLACEMENT:
            return _plan_of_placement(load_placement(file))
        return cls.of_schedule(load_schedule(file))

    @property
    def ndevs(self) -> int:
        """Number of devices."""
        return self._ndevs

    @property
    def nsteps(self) -> int:
        """Step at which the last block ends."""
        return max((step + block.span for block, step in self._steps.items()), default=0)

    @property
    def schedule(self) -> Schedule:
        """The whole schedule with its figures.

        Raises:
            ScheduleError: the plan is a placement.
        """
        if self._schedule is None:
            raise ScheduleError("the plan is a placement, not a schedule; compose it first")
        return self._schedule

    def add_block_seq(self, blocks: Sequence[Block | None], devices: Sequence[Sequence[int] | None]) -> None:
        """Add blocks of which each waits for the one before; None stands for an empty step.

        A block that the plan already has stays where it is, so that sequences can meet.

        Args:
            blocks: the blocks in order.
            devices: the devices of each.

        Raises:
            ScheduleError: the lists differ in length, or a device does not exist.
        """
        if len(blocks) != len(devices):
            raise ScheduleError(
                f"{len(blocks)} blocks and {len(devices)} lists of devices were given; give a list per block"
            )
        step = 0
        for block, places in zip(blocks, devices, strict=True):
            if block is None or places is None:
                step += 1
                continue
            self.add_block(block, places, step)
            step = self._steps[block] + block.span
        present = [block for block in blocks if block is not None]
        for earlier, later in pairwise(present):
            Block.make_dependency(earlier, later)

    def add_block(self, block: Block, device: Sequence[int], step: int) -> None:
        """Put a block on devices at the step, or where they are next free.

        Raises:
            ScheduleError: a device does not exist, or the plan has the block on other devices.
        """
        places = tuple(sorted(set(device)))
        unknown = [number for number in places if not 0 <= number < self._ndevs]
        if unknown or not places:
            raise ScheduleError(
                f"block {block} is on devices {list(device)}, the plan has 0..{self._ndevs - 1}; "
                "name at least one of these"
            )
        if block in self._devices:
            if self._devices[block] != places:
                raise ScheduleError(
                    f"block {block} is on devices {list(self._devices[block])} already and was added on "
                    f"{list(places)}; add another block, or the same devices"
                )
            return
        self._devices[block] = places
        self._steps[block] = self._first_free(places, block.span, step)

    def all_blocks(self) -> list[Block]:
        """Return the blocks in the order in which they were added."""
        return list(self._devices)

    def chain_blocks(self) -> list[Block]:
        """Return the blocks by step, then by first device."""
        return sorted(self._devices, key=lambda block: (self._steps[block], self._devices[block][0]))

    def device(self, block: Block) -> tuple[int, ...]:
        """Return the devices of a block."""
        return self._devices[block]

    def step(self, block: Block) -> int:
        """Return the step at which a block starts."""
        return self._steps[block]

    def peak_memory(self, device: int) -> int:
        """Return the most units that the device holds at once."""
        held = peak = 0
        for block in self.chain_blocks():
            if device in self._devices[block]:
                held += block.memory
                peak = max(peak, held)
        return peak

    def copy(self, mid: int | None = None) -> SchedPlan:
        """Return a placement with blocks of its own, of that micro-batch if one is given."""
        copied = SchedPlan(self._ndevs)
        twin = {
            block: Block(
                block.mid if mid is None else mid, block.span, block.memory, block.btype, gid=block.gid
            )
            for block in self._devices
        }
        for block, places in self._devices.items():
            copied._devices[twin[block]] = places
            copied._steps[twin[block]] = self._steps[block]
            for later in block.after:
                if later in twin:
                    Block.make_dependency(twin[block], twin[later])
        return copied

    def extract(self, from_step: int, to_step: int) -> SchedPlan:
        """Return the blocks that start from one step on and before another, as a plan that starts at 0."""
        part = SchedPlan(self._ndevs)
        for block, step in self._steps.items():
            if from_step <= step < to_step:
                part._devices[block] = self._devices[block]
                part._steps[block] = step - from_step
        return part

    def unroll(self, nmicros: int) -> SchedPlan:
        """Return the schedule of so many micro-batches with the same repetend.

        Raises:
            ScheduleError: the plan was not composed.
        """
        if self._unroll is None:
            raise ScheduleError("the plan has no repetend to unroll; get one from Composer.compose")
        return self._unroll(nmicros)

    def to_placement(self) -> Placement:
        """Return the plan's blocks as the placement of one micro-batch, in the order of steps.

        Forward blocks are named f0, f1, …; a backward block is named like the last forward before it on its
        devices that has none yet.

        Raises:
            ScheduleError: blocks wait for each other in a cycle, or a number is out of range.
        """
        if self._schedule is not None:
            return self._schedule.placement
        blocks = self.chain_blocks()
        names = self._names(blocks)
        return Placement(
            devices=self._ndevs,
            blocks=tuple(
                engine.Block(
                    name=names[block],
                    kind=BlockKind(block.btype),
                    devices=self._devices[block],
                    span=block.span,
                    memory=block.memory,
                )
                for block in blocks
            ),
            edges=tuple(
                Edge(names[block], names[later])
                for block in blocks
                for later in block.after
                if later in names
            ),
        )

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the schedule document, or the placement document where nothing was composed.

        Raises:
            DocumentError: the file cannot be written.
        """
        document = self.to_placement().to_json() if self._schedule is None else self._schedule.to_json()
        save_document(file, msgspec.json.format(document, indent=1))

    def __repr__(self) -> str:
        steps = self.nsteps
        if steps > MAX_PRINTED_STEPS:
            return f"SchedPlan of {self._ndevs} devices, {len(self._devices)} blocks and {steps} steps"
        width = max((len(repr(block)) for block in self._devices), default=1)
        rows = [["."] * steps for _ in range(self._ndevs)]
        for block, step in self._steps.items():
            for device in self._devices[block]:
                rows[device][step : step + block.span] = [repr(block)] * block.span
        return "\n".join(" ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)

    def _first_free(self, devices: Sequence[int], span: int, step: int) -> int:
        taken = sorted(
            (self._steps[block], self._steps[block] + block.span)
            for block, places in self._devices.items()
            if block in self._steps and not set(places).isdisjoint(devices)
        )
        for start, end in taken:
            if start < step + span and step < end:
                step = end
        return step

    def _names(self, blocks: Sequence[Block]) -> dict[Block, str]:
        names: dict[Block, str] = {}
        waiting: dict[tuple[int, ...], list[int]] = {}
        for number, block in enumerate(block for block in blocks if block.btype == "forward"):
            names[block] = f"f{number}"
            waiting.setdefault(self._devices[block], []).append(number)
        unmatched = len(names)
        for block in blocks:
            if block.btype == "backward":
                forwards = waiting.get(self._devices[block])
                if forwards:
                    names[block] = f"b{forwards.pop()}"
                else:
                    names[block] = f"b{unmatched}"
                    unmatched += 1
        return names


def _block_type(given: str) -> Literal["forward", "backward"]:
    match given.lower():
        case "forward":
            return "forward"
        case "backward":
            return "backward"
        case _:
            raise ScheduleError(f'a block has btype {shown(given)!r}; it is "forward" or "backward"')


def _btype_of(kind: BlockKind) -> Literal["forward", "backward"]:
    """What a kind counts as here: all but forwards run on the way back."""
    return "forward" if kind is BlockKind.FORWARD else "backward"


def _plan_of_placement(placement: Placement) -> SchedPlan:
    plan = SchedPlan(placement.devices)
    by_name = {
        block.name: Block(0, block.span, block.memory, _btype_of(block.kind), gid=gid)
        for gid, block in enumerate(placement.blocks)
    }
    for block in placement.blocks:
        before = [edge for edge in placement.edges if edge.target == block.name]
        for edge in before:
            Block.make_dependency(by_name[edge.source], by_name[block.name])
        ends = [plan._steps.get(by_name[edge.source], 0) + by_name[edge.source].span for edge in before]
        plan.add_block(by_name[block.name], block.devices, max(ends, default=0))
    return plan


def _plan_of_tessel_file(saved: TesselFile) -> SchedPlan:
    plan = SchedPlan(saved.ndevs)
    for block in saved.blocks:
        own = Block(block.mid, block.span, block.memory, block.btype, gid=block.gid)
        plan.add_block(own, block.device, block.step)
    plan.repetend = saved.repetend
    return plan
