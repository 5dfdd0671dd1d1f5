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

Behind it are the placement and schedule of this package (`to_placement`, `schedule`); nothing is searched
here. Where Tessel asserts, here a `ScheduleError` says what to do. Checked in tests/tessel/test_schedplan.py.

Source: Lin et al., Tessel (HPCA 2024); the names are those of its tutorial.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from tessel import placement as engine
from tessel.documents import DocumentKind, detect_kind, load_placement, load_schedule, save_document
from tessel.errors import ScheduleError
from tessel.orders import device_orders, earliest_starts
from tessel.placement import BlockKind, Edge, Placement
from tessel.schedule.block import Block, btype_of, edges_of, link
from tessel.schedule.schedule import Schedule
from tessel.schedule.tessel_file import TesselBlock, TesselFile, is_tessel_file, load_tessel_file
from tessel.schedule.window import Placed, find_window, unroll_window
from tessel.validation import find_violations

__all__ = ["Block", "SchedPlan"]

MAX_PRINTED_STEPS = 2000
"""Longest schedule that is printed step by step; no terminal shows more."""


class SchedPlan:
    """Blocks on devices: a placement while it is being written, or a schedule that was composed.

    Attributes:
        repetend: first step of one period of the repeating part, and the first after it, where there is one.
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
            unroll: returns the plan of as many micro-batches as asked for.
        """
        schedule.require_equal("a SchedPlan")
        plan = cls(schedule.placement.devices)
        index = schedule.placement.index_by_name
        by_place: dict[tuple[str, int], Block] = {}
        for start in schedule.starts:
            source = schedule.placement.block(start.block)
            block = Block(
                start.micro_batch, source.span, source.memory, btype_of(source.kind), gid=index[start.block]
            )
            by_place[start.block, start.micro_batch] = block
            plan._devices[block] = source.devices
            plan._steps[block] = start.start
        for edge in schedule.placement.edges:
            for micro_batch in range(schedule.micro_batches):
                pair = (by_place.get((edge.source, micro_batch)), by_place.get((edge.target, micro_batch)))
                if pair[0] is not None and pair[1] is not None:
                    Block.make_dependency(pair[0], pair[1])
        plan.repetend = find_window(schedule)
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
    def plans(self) -> list[list[Block | None]]:
        """Of each device, the block that it runs at each step, or None."""
        rows: list[list[Block | None]] = [[None] * self.nsteps for _ in range(self._ndevs)]
        for block, step in self._steps.items():
            for device in self._devices[block]:
                rows[device][step : step + block.span] = [block] * block.span
        return rows

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

    def blocks(self, step: int) -> tuple[Block, ...]:
        """Return the blocks that start at a step."""
        return tuple(block for block, start in self._steps.items() if start == step)

    def device_blocks(self, devid: int) -> tuple[Block, ...]:
        """Return the blocks of a device in the order in which they were added."""
        return tuple(block for block, places in self._devices.items() if devid in places)

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

    @staticmethod
    def concat(plans: Sequence[SchedPlan]) -> SchedPlan:
        """Return plans one after the other, each behind a barrier, as Tessel joins its phases.

        Raises:
            ScheduleError: there are none, or they differ in the number of devices.
        """
        if len({plan.ndevs for plan in plans}) != 1:
            raise ScheduleError(
                f"plans for {[plan.ndevs for plan in plans]} devices were given; give plans for equally many"
            )
        joined = SchedPlan(plans[0].ndevs)
        begin = 0
        for plan in plans:
            for block, step in plan._steps.items():
                joined._put(block, plan._devices[block], begin + step)
            begin += plan.nsteps
        return joined

    def unroll(self, nmicros: int) -> SchedPlan:
        """Return the schedule of so many micro-batches.

        Of a composed plan all of it is searched; any other plan repeats its repetend, as Tessel does.

        Raises:
            ScheduleError: the plan has no repetend, or not one that can be repeated.
        """
        if self._unroll is not None:
            return self._unroll(nmicros)
        if self.repetend is None:
            raise ScheduleError("the plan has no repetend to unroll; get one from Composer.compose")
        return self._repeated(nmicros, self.repetend)

    def validate(self, complete: bool = True) -> bool:
        """Return whether no block starts before those that it waits for have ended.

        Args:
            complete: whether each block that is waited for has to be in the plan.
        """
        if self._schedule is not None:
            return not find_violations(self._schedule)
        return all(
            self._steps[before] + before.span <= step if before in self._steps else not complete
            for block, step in self._steps.items()
            for before in block.before
        )

    def tighten(self) -> None:
        """Start every block as early as it can without another order on any device."""
        if self._schedule is not None:
            placement = self._schedule.placement
            earliest = earliest_starts(placement, device_orders(placement, self._schedule.start_by_block()))
            self._move({block: earliest[block.gid or 0, block.mid] for block in self._steps})
            return
        free = [0] * self._ndevs
        steps: dict[Block, int] = {}
        for block in self.chain_blocks():
            ends = [steps[before] + before.span for before in block.before if before in steps]
            steps[block] = max([*ends, *(free[device] for device in self._devices[block])])
            for device in self._devices[block]:
                free[device] = steps[block] + block.span
        self._move(steps)

    def stride(self) -> None:
        """Take out the steps at which no device runs anything."""
        is_busy = np.zeros(self.nsteps + 1, dtype=bool)
        for block, step in self._steps.items():
            is_busy[step : step + block.span] = True
        kept = np.concatenate([[0], np.cumsum(is_busy)])
        self._move({block: int(kept[step]) for block, step in self._steps.items()})

    def shift(self, block: Block, offset: int) -> None:
        """Move a block by so many steps, later or earlier.

        Raises:
            KeyError: the plan has no such block.
            ScheduleError: a device runs another block then, or the step is below 0.
        """
        step = self._steps[block] + offset
        places = self._devices[block]
        if step < 0 or self._first_free(places, block.span, step, apart_from=block) != step:
            raise ScheduleError(
                f"block {block} at step {self._steps[block]} cannot move by {offset}: devices {list(places)} "
                "are not free then; move what they run first"
            )
        self._move({**self._steps, block: step})

    def getstate(self) -> npt.NDArray[np.int64]:
        """Return all steps as numbers: what `loadstate` reads.

        Returns:
            int64, shape (micro-batches, blocks + 2): start of the block with that `gid`; in the last two
            columns the repetend.

        Raises:
            ScheduleError: a block has no `gid` or is missing in a micro-batch, or there is no repetend.
        """
        gids = [block.gid for block in self._steps]
        if None in gids or self.repetend is None:
            raise ScheduleError(
                "the plan has no repetend, or blocks without gid, so that it has no state; compose it first"
            )
        numbers = [gid for gid in gids if gid is not None]
        state = np.full((1 + max(b.mid for b in self._steps), 3 + max(numbers)), -1, dtype=np.int64)
        for block, gid in zip(self._steps, numbers, strict=True):
            state[block.mid, gid] = self._steps[block]
        state[:, -2:] = self.repetend
        if (state < 0).any():
            raise ScheduleError(
                "not every micro-batch of the plan has every block, so that it has no state; save it instead"
            )
        return state

    def loadstate(
        self, blocks: Sequence[Block], devices: Sequence[Sequence[int]], state: npt.NDArray[np.int64]
    ) -> None:
        """Put blocks where a state has them.

        Args:
            blocks: each with its `mid` and `gid`.
            devices: the devices of each.
            state: as `getstate` returns it.
        """
        for block, places in zip(blocks, devices, strict=True):
            if block.gid is None:
                raise ScheduleError(f"block {block} has no gid, by which its step is found; set it first")
            self._put(block, tuple(sorted(set(places))), int(state[block.mid, block.gid]))
        self.repetend = (int(state[0, -2]), int(state[0, -1]))

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
        """Write the file that Tessel's own loader and runtime read.

        Where nothing repeats, its repetend is the whole plan: it can be run, but not unrolled further. The
        documents of this package are written by `tessel.save(plan.schedule, file)`.

        Raises:
            ScheduleError: a block has span 0, which Tessel refuses.
            DocumentError: the file cannot be written.
        """
        is_numbered = all(block.gid is not None for block in self._steps)
        gid_of = {
            block: block.gid if is_numbered or self._is_schedule else number
            for number, block in enumerate(self.chain_blocks())
        }
        document = TesselFile(
            ndevs=self._ndevs,
            blocks=tuple(
                TesselBlock(
                    mid=block.mid,
                    span=block.span,
                    memory=block.memory,
                    btype=block.btype,
                    step=self._steps[block],
                    device=self._devices[block],
                    gid=gid_of[block],
                )
                for block in self.chain_blocks()
            ),
            repetend=self.repetend or (0, self.nsteps),
            edges=edges_of(gid_of),
        )
        save_document(file, msgspec.json.format(document.to_json(), indent=1))

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

    @property
    def _is_schedule(self) -> bool:
        """Whether there is more than one micro-batch, so that blocks cannot be numbered by their order."""
        return len({block.mid for block in self._steps}) > 1

    def _put(self, block: Block, devices: tuple[int, ...], step: int) -> None:
        """Put a block at this step and no other."""
        self.add_block(block, devices, step)
        if self._steps[block] != step:
            raise ScheduleError(
                f"block {block} is to start on devices {list(devices)} at step {step}, where another block "
                "runs; leave one of them out"
            )

    def _move(self, steps: Mapping[Block, int]) -> None:
        """Give every block its step; figures and repetend follow."""
        if steps == self._steps:
            return
        self._steps = dict(steps)
        self.repetend = None
        if self._schedule is not None:
            self._schedule = Schedule.of(
                self._schedule.placement,
                {(block.gid or 0, block.mid): step for block, step in steps.items()},
                micro_batches=self._schedule.micro_batches,
                memory=self._schedule.memory,
                lower_bound=self._schedule.lower_bound,
                found_by=self._schedule.found_by,
            )

    def _repeated(self, nmicros: int, window: tuple[int, int]) -> SchedPlan:
        """The plan with its window repeated; its blocks wait for each other as those here do."""
        kinds = {block.gid: block for block in self._steps}
        if None in kinds:
            raise ScheduleError("blocks without gid cannot be repeated; compose the placement first")
        placed = [
            Placed(block.gid or 0, block.mid, step, block.span, self._devices[block])
            for block, step in self._steps.items()
        ]
        edges = edges_of({block: block.gid for block in self._steps})
        longer = SchedPlan(self._ndevs)
        copies: dict[tuple[int, int], Block] = {}
        for each in unroll_window(placed, window, nmicros, edges):
            kind = kinds[each.gid]
            block = Block(each.mid, kind.span, kind.memory, kind.btype, gid=each.gid)
            copies[each.gid, each.mid] = block
            longer._put(block, each.devices, each.step)
        link(copies, edges)
        longer.repetend = (window[0], window[1] + longer.nsteps - self.nsteps)
        return longer

    def _first_free(
        self, devices: Sequence[int], span: int, step: int, *, apart_from: Block | None = None
    ) -> int:
        taken = sorted(
            (self._steps[block], self._steps[block] + block.span)
            for block, places in self._devices.items()
            if block in self._steps and block is not apart_from and not set(places).isdisjoint(devices)
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


def _plan_of_placement(placement: Placement) -> SchedPlan:
    plan = SchedPlan(placement.devices)
    by_name = {
        block.name: Block(0, block.span, block.memory, btype_of(block.kind), gid=gid)
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
    by_place: dict[tuple[int, int], Block] = {}
    for block in saved.blocks:
        own = Block(block.mid, block.span, block.memory, block.btype, gid=block.gid)
        plan._put(own, block.device, block.step)
        if block.gid is not None:
            by_place[block.gid, block.mid] = own
    link(by_place, saved.edges)
    plan.repetend = saved.repetend
    return plan
