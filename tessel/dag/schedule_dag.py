"""The dependency graph of a schedule, with earliest and latest starts, slack and the critical path.

A task is one block of one micro-batch, or one instruction. Arcs are the model's data dependencies (a backward
waits for its gradient) and the order on each device. Slack is how long a task can be delayed without
increasing the makespan; the tasks without slack form the critical path.

    device 0   F0 F1 .  .  B0 B0 .  B1 B1     F1 has two steps of slack and B0 one: eager starts are as early
    device 1   .  F0 B0 B0 F1 B1 B1 .  .      as the arcs allow, lazy ones as late as the makespan allows

A schedule of this package and a `PipelineSchedule` defined by the user both become a `Dag`:
`Dag.of_schedule`, and `tessel.dag.dag_of_pipeline`.

Memory is not modelled: it depends on the orders only, which neither eager nor lazy starts change. Checked in
tests/tessel/dag/test_dag.py.

Source: Chung et al., Perseus (SOSP 2024), section 4, for the DAG of a pipeline; its slack is what a slower,
cheaper clock may use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from tessel.batches import Batch
from tessel.errors import ScheduleError
from tessel.orders import device_orders
from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.validation import check_schedule


class Task(NamedTuple):
    """One block of one micro-batch.

    Attributes:
        block_index: its block in the placement.
        micro_batch: its micro-batch.
        duration: steps.
    """

    block_index: int
    micro_batch: int
    duration: int


class Arc(NamedTuple):
    """The target starts at least `lag` steps after the source ends; both are positions among the tasks."""

    source: int
    target: int
    lag: int


@dataclass(frozen=True)
class Dag:
    """Tasks and what each waits for.

    Attributes:
        tasks: in an order in which each comes after those it waits for.
        arcs: waits, by position among the tasks.
        batch: the class of each micro-batch; None where all take what the placement says.
    """

    placement: Placement
    micro_batches: int
    tasks: tuple[Task, ...]
    arcs: tuple[Arc, ...]
    batch: Batch | None = None

    @classmethod
    def of_schedule(cls, schedule: Schedule) -> Dag:
        """Return the DAG of a schedule: its placement's edges and the order on each device.

        Raises:
            ScheduleError: pairs run together.
        """
        schedule.require_apart("a critical path")
        placement = schedule.placement
        starts = schedule.start_by_block()
        batch = schedule.classes
        orders = device_orders(placement, starts, batch)
        index = placement.index_by_name
        tasks = [Task(block, m, schedule.span_of(block, m)) for block, m in starts]
        arcs = [
            (
                (index[edge.source], m),
                (index[edge.target], m),
                edge.lag if batch is None else batch.classes[batch.sequence[m]].lags[place],
            )
            for place, edge in enumerate(placement.edges)
            for m in range(schedule.micro_batches)
        ]
        arcs += [(before, after, 0) for order in orders for before, after in pairwise(order)]
        return replace(cls.of(placement, schedule.micro_batches, tasks, arcs), batch=batch)

    @classmethod
    def of(
        cls,
        placement: Placement,
        micro_batches: int,
        tasks: Sequence[Task],
        arcs: Iterable[tuple[tuple[int, int], tuple[int, int], int]],
    ) -> Dag:
        """Return the DAG of tasks in any order.

        Args:
            tasks: each block of each micro-batch once.
            arcs: (source, target, lag), tasks as (block index, micro-batch); arcs of no task do not count.

        Raises:
            ScheduleError: tasks wait for each other; the message names one.
        """
        position = {(task.block_index, task.micro_batch): number for number, task in enumerate(tasks)}
        numbered = [
            Arc(position[source], position[target], lag)
            for source, target, lag in arcs
            if source in position and target in position
        ]
        order = _topological(placement, tasks, numbered)
        rank = {number: rank for rank, number in enumerate(order)}
        return cls(
            placement=placement,
            micro_batches=micro_batches,
            tasks=tuple(tasks[number] for number in order),
            arcs=tuple(Arc(rank[source], rank[target], lag) for source, target, lag in numbered),
        )

    @cached_property
    def earliest(self) -> tuple[int, ...]:
        """The earliest start of each task; O(tasks + arcs)."""
        starts = [0] * len(self.tasks)
        for target, arcs in enumerate(self._arcs_to):
            for source, _, lag in arcs:
                starts[target] = max(starts[target], starts[source] + self.tasks[source].duration + lag)
        return tuple(starts)

    @cached_property
    def makespan(self) -> int:
        """Step at which the last task ends if all start as early as they can."""
        return max(start + task.duration for start, task in zip(self.earliest, self.tasks, strict=True))

    @cached_property
    def latest(self) -> tuple[int, ...]:
        """The latest start of each task with which the makespan stays; O(tasks + arcs)."""
        starts = [self.makespan - task.duration for task in self.tasks]
        for target in reversed(range(len(self.tasks))):
            for source, _, lag in self._arcs_to[target]:
                starts[source] = min(starts[source], starts[target] - lag - self.tasks[source].duration)
        return tuple(starts)

    @cached_property
    def slack(self) -> tuple[int, ...]:
        """Steps by which each task alone can be delayed without increasing the makespan."""
        return tuple(late - early for late, early in zip(self.latest, self.earliest, strict=True))

    def critical_path(self) -> tuple[Task, ...]:
        """Return tasks that follow each other without a pause from step 0 to the makespan.

        Where several paths are critical, the one whose last tasks come first in the order of tasks.
        """
        ends = [start + task.duration for start, task in zip(self.earliest, self.tasks, strict=True)]
        path = [ends.index(self.makespan)]
        while self.earliest[path[-1]] > 0:
            path.append(
                min(
                    source
                    for source, target, lag in self._arcs_to[path[-1]]
                    if ends[source] + lag == self.earliest[target]
                )
            )
        return tuple(self.tasks[number] for number in reversed(path))

    def to_schedule(
        self, when: Literal["eager", "lazy"] = "eager", *, memory: Sequence[int] | None = None
    ) -> Schedule:
        """Return the schedule in which every task starts as early, or as late, as it can.

        Args:
            when: "eager" for as early, "lazy" for as late.
            memory: limit in units, one per device, that the schedule is to state; None for none.

        Raises:
            ScheduleError: a block of a micro-batch is missing, or the limit is not kept.
        """
        if when not in ("eager", "lazy"):
            raise ValueError(f'tasks can start "eager" or "lazy", {when!r} was asked for')
        starts = self.earliest if when == "eager" else self.latest
        schedule = Schedule.of(
            self.placement,
            {
                (task.block_index, task.micro_batch): start
                for task, start in zip(self.tasks, starts, strict=True)
            },
            micro_batches=self.micro_batches,
            memory=memory,
            batch=self.batch,
            found_by=when,
        )
        check_schedule(schedule)
        return schedule

    @cached_property
    def _arcs_to(self) -> tuple[tuple[Arc, ...], ...]:
        arcs: list[list[Arc]] = [[] for _ in self.tasks]
        for arc in self.arcs:
            arcs[arc.target].append(arc)
        return tuple(map(tuple, arcs))


def _topological(placement: Placement, tasks: Sequence[Task], arcs: Sequence[Arc]) -> list[int]:
    pending = [0] * len(tasks)
    followers: list[list[int]] = [[] for _ in tasks]
    for source, target, _ in arcs:
        pending[target] += 1
        followers[source].append(target)
    order = [number for number, count in enumerate(pending) if not count]
    for number in order:  # grows while it is read
        for follower in followers[number]:
            pending[follower] -= 1
            if not pending[follower]:
                order.append(follower)
    if len(order) < len(tasks):
        stuck = next(task for task, count in zip(tasks, pending, strict=True) if count)
        name = placement.blocks[stuck.block_index].name
        raise ScheduleError(
            f"instructions wait for each other, among them {name}[{stuck.micro_batch}]; "
            "put what it waits for earlier in a device's stream, or correct a rule"
        )
    return order
