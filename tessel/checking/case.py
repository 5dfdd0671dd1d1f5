"""Case of a check: blocks on devices, the order of each device, and, with a profile, where the blocks come
from.

Orders name blocks (`f3`, `b3_input`), so that the same order runs on the placement of other cuts, of another
micro-batch size or with recomputation: that is how a change is tried. A joint backward of an order runs both
halves where a placement has nothing but halves. Starts are as early as the orders allow; whether they end at
all is what `earliest_starts` finds out. Checked in tests/tessel/checking/test_deadlock.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from tessel.errors import ScheduleError
from tessel.orders import Task, device_orders, earliest_starts
from tessel.placement import Placement
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.costs.training_step import TrainingStep, estimate_step, step_of_figures
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.profiles.profile import Profile
from tessel.schedule import Schedule

NamedTask = tuple[str, int]
"""A block's name and a micro-batch."""

NamedOrders = tuple[tuple[NamedTask, ...], ...]
"""The tasks of each device, first to last."""

MakeOrders = Callable[[Placement, int], NamedOrders | None]
"""Makes the orders of a placement and so many micro-batches; None where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayout:
    """Where the blocks come from.

    Attributes:
        profile: layers and their costs.
        layout: degrees, cuts and placement.
        job: what is asked for: devices and links, optimizer, framework.
    """

    profile: Profile
    layout: Layout
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Orders on a placement.

    Attributes:
        name: for messages.
        placement: blocks of one micro-batch.
        orders: of each device.
        micro_batches: how many are run.
        limits: room of each device in the placement's units, or None where there is no limit; negative where
            not even the static bytes fit.
        step_us: microseconds of a step; None where it has no length.
        static_bytes: bytes that each device holds throughout; None where memory is not counted in bytes.
        priced: where the blocks come from; None where they were given.
        step: the training step of the layout; None without one.
        make_orders: makes the same kind of order for other blocks or micro-batches; None where the order
            follows no rule that is known.
        is_order_free: whether the order may be changed; Megatron's may not.
        pairs: forwards and backwards of one device that its framework runs together.
        overlap_factor: share of the sum of its blocks that such a pair takes; None to leave pairs out.
        other_orders: orders that its framework runs as well, and the words that ask for them.
    """

    name: str
    placement: Placement
    orders: NamedOrders
    micro_batches: int
    limits: tuple[int, ...] | None = None
    step_us: float | None = None
    static_bytes: tuple[int, ...] | None = None
    priced: PricedLayout | None = None
    step: TrainingStep | None = None
    make_orders: MakeOrders | None = None
    is_order_free: bool = True
    pairs: tuple[tuple[NamedTask, NamedTask], ...] = ()
    overlap_factor: float | None = None
    other_orders: tuple[tuple[str, NamedOrders], ...] = ()

    @property
    def num_tasks(self) -> int:
        """Tasks of all devices."""
        return sum(map(len, self.orders))


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What became of a case.

    Attributes:
        schedule: each task as early as the orders allow.
        length: microseconds of the training step; of the pipeline where nothing else is known; steps where a
            step has no length.
        fits: whether every device keeps its limit.
        memory: most that each device holds, static bytes included.
    """

    schedule: Schedule
    length: float
    fits: bool
    memory: tuple[int, ...]


def case_of_schedule(
    name: str,
    schedule: Schedule,
    *,
    step_us: float | None = None,
    static_bytes: tuple[int, ...] | None = None,
) -> Case:
    """Return the case of a schedule, whose starts give the orders."""
    schedule.require_equal("tessel check")
    return Case(
        name=name,
        placement=schedule.placement,
        orders=orders_of_schedule(schedule),
        micro_batches=schedule.micro_batches,
        limits=schedule.memory,
        step_us=step_us,
        static_bytes=static_bytes,
    )


def case_of_layout(
    name: str, priced: PricedLayout, orders: NamedOrders, *, micro_batches: int, **more: object
) -> Case:
    """Return the case of a profile's layers in these orders.

    Raises:
        ScheduleError: the profile cannot price the layout; says why.
    """
    # Stages that no order makes fit are cases too: what they need is said, and what would make them fit.
    figures = stage_figures(priced.profile, priced.layout, priced.job)
    step = step_of_figures(priced.layout, figures)
    return replace(
        Case(
            name=name,
            placement=step.placement,
            orders=orders,
            micro_batches=micro_batches,
            limits=step.limits,
            step_us=step.step_us,
            static_bytes=step.figures.static_bytes,
            priced=priced,
            step=step,
        ),
        **more,  # type: ignore[arg-type]  # fields of Case, checked where it is made
    )


def with_layout(case: Case, layout: Layout) -> Case:
    """Return the case of another layout of the same profile, in the same orders.

    Raises:
        ScheduleError: see `case_of_layout`; or the case has no profile.
    """
    if case.priced is None:
        raise ScheduleError(f"{case.name} has no profile, so that layers cannot be moved; give --profile")
    priced = replace(case.priced, layout=layout)
    return case_of_layout(
        case.name,
        priced,
        case.orders,
        micro_batches=layout.micro_batches,
        make_orders=case.make_orders,
        is_order_free=case.is_order_free,
    )


def simulate(case: Case) -> Simulated:
    """Run every task as early as the orders allow.

    Raises:
        DeadlockError: tasks wait for each other.
        ScheduleError: an order has a block that the placement has not.
    """
    return simulated(case, timed(case))


def timed(case: Case) -> Schedule:
    """Return the schedule of a case; see `simulate`."""
    starts = earliest_starts(case.placement, task_orders(case.placement, case.orders))
    return Schedule.of(case.placement, starts, micro_batches=case.micro_batches, memory=None)


def simulated(case: Case, schedule: Schedule) -> Simulated:
    """Return the figures of a schedule of the case's placement, whatever found it."""
    static = case.static_bytes or (0,) * case.placement.devices
    fits = case.limits is None or all(
        held <= room for held, room in zip(schedule.peak_memory, case.limits, strict=True)
    )
    if case.step is not None:
        length = estimate_step(case.step, schedule).step_us
    else:
        length = schedule.makespan * (1.0 if case.step_us is None else case.step_us)
    return Simulated(
        schedule=schedule,
        length=length,
        fits=fits,
        memory=tuple(a + b for a, b in zip(static, schedule.peak_memory, strict=True)),
    )


def orders_of_schedule(schedule: Schedule) -> NamedOrders:
    """Return the tasks of each device by name."""
    return named_orders(schedule.placement, device_orders(schedule.placement, schedule.start_by_block()))


def named_orders(placement: Placement, orders: Sequence[Sequence[Task]]) -> NamedOrders:
    """Return tasks by the names of their blocks."""
    names = [block.name for block in placement.blocks]
    return tuple(tuple((names[task.block_index], task.micro_batch) for task in order) for order in orders)


def task_orders(placement: Placement, orders: NamedOrders) -> list[list[Task]]:
    """Return orders as tasks of a placement; a joint backward as both halves where it has nothing else.

    Raises:
        ScheduleError: the placement has no such block.
    """
    forms: dict[str, tuple[int, ...]] = {}
    return [[task for named in order for task in _tasks(placement, named, forms)] for order in orders]


def _tasks(placement: Placement, named: NamedTask, forms: dict[str, tuple[int, ...]]) -> Iterator[Task]:
    name, micro_batch = named
    if name not in forms:
        forms[name] = tuple(_blocks(placement, name))
    for block in forms[name]:
        yield Task(block, micro_batch)


def _blocks(placement: Placement, name: str) -> Iterator[int]:
    index = placement.index_by_name
    wanted = (name,) if name in index else (f"{name}_input", f"{name}_weight")
    for each in wanted:
        if each not in index:
            raise ScheduleError(
                f"an order runs block {name}, which these stages do not have; give a profile with both "
                f"halves of "
                "the backward where orders split it"
            )
        yield index[each]


def with_cuts(layout: Layout, cuts: Sequence[tuple[int, int]]) -> Layout:
    """Return the layout with other cuts."""
    return msgspec.structs.replace(layout, cuts=tuple(cuts))
