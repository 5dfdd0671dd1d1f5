"""Tessel's own names for its time-optimal solver: `StepOptimalSolver`, a door to `find_schedule`.

    >>> from tessel.schedule.schedplan import Block
    >>> solver = StepOptimalSolver(1)
    >>> first, second = (Block(mid, span=2, memory=0, btype="forward") for mid in range(2))
    >>> solver.add_block(first, [0], 0)
    >>> solver.add_block(second, [0], 3)
    >>> solver.solve([1])
    5

Blocks of any micro-batches, their devices, their dependencies and a limit go in, the shortest plan comes out.
Micro-batches that are alike are searched as such. Where the search ends without a proof it says so in the
log, and `is_optimal` is false. Tessel's `BubbleOptimalSolver` finds the least period of a repetend whose
micro-batches are given; here `tessel.search.find_repetend` finds those too. Checked in
tests/tessel/schedule/test_solver_and_timer.py against exhaustive search.

Source: Lin et al., Tessel (HPCA 2024), whose solver this replaces.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tessel import placement as engine
from tessel import search
from tessel.errors import InfeasibleError, ScheduleError
from tessel.placement import BlockKind, Edge, Placement
from tessel.schedule.schedplan import Block, SchedPlan
from tessel.schedule.schedule import Schedule

logger = logging.getLogger(__name__)

WORK = 10.0
"""Units of work of one search, about ten seconds; Tessel's own has no limit."""


class StepOptimalSolver:
    """Collects blocks and dependencies, and finds the plan of the fewest steps.

    Attributes:
        is_optimal: whether the last `solve` proved that no plan has fewer steps.
    """

    def __init__(self, ndevs: int) -> None:
        self.is_optimal = False
        self._ndevs = ndevs
        self._devices: dict[Block, tuple[int, ...]] = {}
        self._least_step: dict[Block, int] = {}
        self._edges: dict[tuple[Block, Block], None] = {}
        self._solution: SchedPlan | None = None

    @classmethod
    def of(cls, blocks: Sequence[Block], devices: Sequence[Sequence[int]], ndevs: int) -> StepOptimalSolver:
        """Return a solver of these blocks with those of their dependencies that lie among them."""
        solver = cls(ndevs)
        for block, places in zip(blocks, devices, strict=True):
            solver.add_block(block, places, 0)
        solver._add_dependencies(blocks)
        return solver

    @property
    def ndevs(self) -> int:
        """Number of devices."""
        return self._ndevs

    @property
    def nblocks(self) -> int:
        """Number of blocks."""
        return len(self._devices)

    def device(self, block: Block) -> tuple[int, ...]:
        """Return the devices of a block."""
        return self._devices[block]

    def add_block(self, block: Block, devs: Sequence[int], step: int) -> None:
        """Add a block that starts at the step or later.

        Raises:
            ScheduleError: the solver has the block already.
        """
        if block in self._devices:
            raise ScheduleError(f"block {block} was added already; add each block once")
        self._devices[block] = tuple(sorted(set(devs)))
        self._least_step[block] = step

    def add_micro_plan(self, micro: SchedPlan) -> None:
        """Add all blocks of a plan, each at its step or later, with their dependencies."""
        for block in micro.all_blocks():
            self.add_block(block, micro.device(block), micro.step(block))
        self._add_dependencies(micro.all_blocks())

    def add_dependency_constraints(self, blocks: Sequence[Block]) -> None:
        """Make each of these blocks wait for the one before."""
        for earlier, later in pairwise(blocks):
            self._edges[earlier, later] = None

    def solve(
        self,
        memory: int | Sequence[int],
        upper_time: int | None = None,
        accept: int | None = None,
        silence: bool = True,
    ) -> int | None:
        """Return the fewest steps found, None where no plan keeps the limit in fewer than `upper_time`.

        Args:
            memory: limit in units, one for all devices or one per device.
            upper_time: the plan is to take fewer steps; None for no limit.
            accept: without effect; Tessel ends its search at a plan of so many steps.
            silence: without effect; nothing is printed.
        """
        del accept, silence
        self._solution, self.is_optimal = None, False
        if not self._devices:
            self._solution, self.is_optimal = SchedPlan(self._ndevs), True
            return 0
        micro_batches = self._equal_micro_batches() or [list(self._devices)]
        found = self._search(micro_batches, memory, work=WORK)
        if found is None:
            return None
        self.is_optimal = found.optimal
        if not found.optimal:
            logger.warning("%d steps, unproven: at least %d are needed", found.makespan, found.lower_bound)
        if upper_time is not None and found.makespan >= upper_time:
            return None
        self._solution = self._plan(micro_batches, found.start_by_block())
        return found.makespan

    def satisfy(self, memory: int | Sequence[int]) -> bool:
        """Return whether any plan keeps the limit, one for all devices or one per device."""
        if not self._devices:
            return True
        micro_batches = self._equal_micro_batches() or [list(self._devices)]
        return self._search(micro_batches, memory, work=0.0) is not None

    def solutions(self) -> Iterable[SchedPlan]:
        """Return the plan that `solve` found, if any; Tessel's solver goes on to others as short."""
        return () if self._solution is None else (self._solution,)

    def _search(
        self, micro_batches: Sequence[Sequence[Block]], memory: int | Sequence[int], *, work: float
    ) -> Schedule | None:
        """The shortest schedule found, None where none keeps the limit."""
        try:
            return search.find_schedule(
                self._placement(micro_batches[0]),
                micro_batches=len(micro_batches),
                memory=memory,
                budget=search.SearchBudget(work),
            )
        except InfeasibleError:
            return None

    def _add_dependencies(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            for later in block.after:
                if later in self._devices:
                    self._edges[block, later] = None

    def _equal_micro_batches(self) -> list[list[Block]] | None:
        """The blocks of each micro-batch in one order, where all are alike and none waits for another."""
        numbered: dict[int, dict[int | None, Block]] = {}
        for block in self._devices:
            numbered.setdefault(block.mid, {})[block.gid] = block
        is_numbered = all(None not in each for each in numbered.values())
        if not is_numbered or sum(map(len, numbered.values())) != self.nblocks:
            return None
        if any(before.mid != after.mid for before, after in self._edges):
            return None
        rows = [[each[gid] for gid in sorted(each, key=lambda gid: gid or 0)] for each in numbered.values()]
        return rows if all(self._signature(row) == self._signature(rows[0]) for row in rows) else None

    def _signature(self, row: Sequence[Block]) -> object:
        """What two micro-batches have in common if they are alike."""
        place = {block: number for number, block in enumerate(row)}
        edges = sorted((place[a], place[b]) for a, b in self._edges if a in place and b in place)
        costs = [(b.gid, b.span, b.memory, b.btype, self._devices[b], self._least_step[b]) for b in row]
        return costs, edges

    def _placement(self, blocks: Sequence[Block]) -> Placement:
        """These blocks as one micro-batch; a block that may not start at once waits for one of span 0."""
        name = {block: f"block{number}" for number, block in enumerate(blocks)}
        waiting = [block for block in blocks if self._least_step[block] > 0]
        gates = [
            engine.Block(
                name=f"wait_{name[block]}",
                kind=BlockKind.OTHER,
                devices=self._devices[block][:1],
                span=0,
                memory=0,
            )
            for block in waiting
        ]
        own = [
            engine.Block(
                name=name[block],
                kind=BlockKind(block.btype),
                devices=self._devices[block],
                span=block.span,
                memory=block.memory,
            )
            for block in blocks
        ]
        lags = [Edge(f"wait_{name[block]}", name[block], self._least_step[block]) for block in waiting]
        edges = [Edge(name[a], name[b]) for a, b in self._edges if a in name and b in name]
        edges += [
            Edge(name[a], name[b]) for a, b in self._copies_in_order(blocks) if (a, b) not in self._edges
        ]
        return Placement(devices=self._ndevs, blocks=(*own, *gates), edges=(*edges, *lags))

    def _copies_in_order(self, blocks: Sequence[Block]) -> list[tuple[Block, Block]]:
        """Copies of one block run in the order of their micro-batches, which costs nothing."""
        by_gid: dict[int, list[Block]] = {}
        for block in blocks:
            if block.gid is not None:
                by_gid.setdefault(block.gid, []).append(block)
        return [
            pair
            for copies in by_gid.values()
            for pair in pairwise(sorted(copies, key=lambda block: block.mid))
        ]

    def _plan(
        self, micro_batches: Sequence[Sequence[Block]], starts: dict[tuple[int, int], int]
    ) -> SchedPlan:
        plan = SchedPlan(self._ndevs)
        for number in range(len(micro_batches[0])):
            # Alike micro-batches may change places at any block: the first start is the first one's.
            steps = sorted(starts[number, each] for each in range(len(micro_batches)))
            for row, step in zip(micro_batches, steps, strict=True):
                plan.add_block(row[number], self._devices[row[number]], step)
        return plan
