"""Do real ranks confirm which way is faster? The steps of a case, replayed by ranks that sleep.

Of a case, three ways are replayed: the plan, V-1F1B (1F1B on the plain chain over all devices), and the
fastest of all other hand-written ways, alone or with any degrees. Each device of one replica is a process
of the engine. A block sleeps for the time that it was planned with, so that eight ranks need hardly a core;
messages, dependencies and the meetings of divided blocks are the engine's own. A divided block's planned
time contains its collectives, so it ends that long after the last of its ranks came. What replicas do is
the same in each, and what follows the last block (sums over replicas, the optimizer) is added as planned.

All times of a case are paced alike: stretched or compressed by one factor, so that the longest way takes a
few seconds and a step is long beside a message of this machine. Ways take turns, round after round.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from benchmarks.whole_plan.cases import LINK, SHARES, bytes_of_1f1b
from tessel.engine import EngineError
from tessel.engine.run import makespan_ms
from tessel.engine.synthetic.run import run_synthetic
from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.planning.orders.timed_order import schedule_in_order
from tessel.planning.plan_result import PlannedStep
from tessel.schedule import Schedule
from tessel.search import SearchBudget
from tessel.tuned_model.layout_choice import LayoutRequest, plan_layers
from tuner.plan import LayersPlan

PLAN, V_1F1B, BEST_OTHER = "plan", "V-1F1B", "best other"

DIFFERENCE = 0.05
"""From which difference of simulated steps real ranks are asked who wins."""

LONGEST_S, LEAST_STEP_S = 8.0, 1.0
"""Of a paced case: the longest way takes no longer, and the plan as long where that allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run a case's step.

    Attributes:
        role: `plan`, `V-1F1B` or `best other`.
        name: what it is, in words.
        schedule: of one replica, a device of it a rank.
        step_us: microseconds of one step of the schedule's spans.
        simulated_ms: of the whole step, as planned.
        after_ms: of these, what follows the last block.
    """

    role: str
    name: str
    schedule: Schedule
    step_us: float
    simulated_ms: float
    after_ms: float


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """What ranks made of a case.

    Attributes:
        model: its name.
        devices: of the case.
        micro_batches: of the case.
        pace: real seconds of a simulated one.
        names: of the ways, by role.
        simulated_ms: their steps, by role.
        real_ms: each counted step, without pace, what follows the last block included, by role.
        refused: ways that ranks cannot replay, and why.
        load: of the machine, before and after.
    """

    model: str
    devices: int
    micro_batches: int
    pace: float
    names: dict[str, str]
    simulated_ms: dict[str, float]
    real_ms: dict[str, tuple[float, ...]]
    refused: dict[str, str] = {}
    load: tuple[float, float] = (0.0, 0.0)

    def median_ms(self, role: str) -> float:
        """Return the median step of a way on ranks."""
        return statistics.median(self.real_ms[role])

    @property
    def is_contradicted(self) -> bool:
        """Whether ranks name another winner than was simulated."""
        return any(agrees is False for _, _, agrees in self.verdicts.values())

    @property
    def verdicts(self) -> dict[str, tuple[float, float, bool | None]]:
        """Simulated and real ratio of each other way to the plan, and whether the same one wins.

        None where the simulated ones differ too little to ask.
        """
        found = {}
        for role in self.real_ms:
            if role == PLAN:
                continue
            simulated = self.simulated_ms[role] / self.simulated_ms[PLAN]
            real = self.median_ms(role) / self.median_ms(PLAN)
            is_asked = max(simulated, 1 / simulated) > 1 + DIFFERENCE
            found[role] = (simulated, real, (simulated > 1) == (real > 1) if is_asked else None)
        return found


def find_ways(layers: LayersPlan, devices: int, micro_batches: int, *, work: float) -> tuple[Way, ...]:
    """Plan a case under the looser memory limit, and return the plan and what it is compared with.

    Args:
        layers: as the tuner measured them.
        devices: all are used.
        micro_batches: of the step.
        work: units of work of the plan.

    Raises:
        ScheduleError: nothing fits.
    """
    request = LayoutRequest(devices=devices, micro_batches=micro_batches, link=LINK)
    limit = int(max(SHARES) * bytes_of_1f1b(layers, request))
    request = replace(request, memory_limit_bytes=limit)
    found = plan_layers(layers, request, budget=SearchBudget(work_limit=work))
    chain = msgspec.structs.replace(layers, tensor_parallel={})
    alone = plan_layers(chain, replace(request, replicates=False), budget=SearchBudget(work_limit=work / 2))
    others = {
        each.name: each.planned
        for result in (found, alone)
        for each in result.baselines
        if each.planned is not None and each.fits
    }
    v_1f1b = next((each.planned for each in alone.baselines if each.name == "1f1b" and each.fits), None)
    ways = [_way(PLAN, found.best)]
    if v_1f1b is not None:
        ways.append(_way(V_1F1B, v_1f1b))
    rest = sorted(
        (each for each in others.values() if each is not v_1f1b), key=lambda each: each.estimate.step_us
    )
    if rest:
        ways.append(_way(BEST_OTHER, rest[0]))
    return tuple(ways)


def choose_pace(ways: Sequence[Way]) -> float:
    """Return the real seconds of a simulated one, for the plan and what it is compared with."""
    seconds = [(way.simulated_ms - way.after_ms) / 1e3 for way in ways]
    return min(LONGEST_S / max(seconds), LEAST_STEP_S / seconds[0])


def replay(
    ways: Sequence[Way], *, pace: float, rounds: int, repeats: int
) -> tuple[dict[str, tuple[float, ...]], dict[str, str]]:
    """Run ways in turn on real ranks.

    Returns:
        Each counted step by role, in milliseconds without pace; what was refused, and why.
    """
    steps: dict[str, list[float]] = {}
    refused: dict[str, str] = {}
    for _ in range(rounds):
        for way in ways:
            if way.role in refused:
                continue
            try:
                results = run_synthetic(
                    {way.role: way.schedule},
                    step_us=way.step_us * pace,
                    repeats=repeats,
                    timeout_s=300,
                    holds_collectives=True,
                )
            except (EngineError, ScheduleError) as error:
                refused[way.role] = str(error)
                continue
            for step in range(repeats):
                events = [result.events[way.role][step] for result in results]
                steps.setdefault(way.role, []).append(makespan_ms(events) / pace + way.after_ms)
    return {role: tuple(found) for role, found in steps.items()}, refused


def confirm_case(
    layers: LayersPlan,
    devices: int,
    micro_batches: int,
    *,
    work: float,
    rounds: int,
    repeats: int,
    slower: float = 1.0,
    roles: Collection[str] = (PLAN, V_1F1B, BEST_OTHER),
) -> Confirmed:
    """Plan a case, and replay its ways of these roles, so many times slower than `choose_pace` has it.

    Raises:
        ScheduleError: nothing fits.
    """
    before = os.getloadavg()[0]
    ways = find_ways(layers, devices, micro_batches, work=work)
    pace = slower * choose_pace(ways)
    ways = tuple(way for way in ways if way.role in roles)
    real, refused = replay(ways, pace=pace, rounds=rounds, repeats=repeats)
    return Confirmed(
        model=layers.model,
        devices=devices,
        micro_batches=micro_batches,
        pace=pace,
        names={way.role: way.name for way in ways},
        simulated_ms={way.role: way.simulated_ms for way in ways},
        real_ms=real,
        refused=refused,
        load=(before, os.getloadavg()[0]),
    )


def confirmation(cases: Sequence[Confirmed], *, header: Mapping[str, str]) -> Iterator[str]:
    """Yield the report, in Markdown.

    Args:
        cases: every one.
        header: `date`, `command`, `commit`, `machine`.
    """
    asked = [agrees for case in cases for _, _, agrees in case.verdicts.values() if agrees is not None]
    loads = [load for case in cases for load in case.load]
    yield f"# Who wins on real ranks, {header['date']}"
    yield ""
    yield f"Command: `{header['command']}`,"
    yield f"commit `{header['commit']}`. Machine: {header['machine']}, load {min(loads):.1f} to"
    yield f"{max(loads):.1f}. Cases of the table of whole plans: each model and number of devices once,"
    yield "micro-batches twice the devices, the looser memory limit. Replayed are the plan, V-1F1B and the"
    yield "fastest other hand-written way, in turn. Blocks sleep for the times that they were planned with,"
    yield "times the pace, a divided one from when its last rank came, since that time contains its"
    yield "collectives; messages, meetings of divided blocks and orders are the engine's. One replica runs;"
    yield "sums over replicas and the optimizer's update are added as *planned*. Ratios are steps over the"
    yield "plan's. Planned afresh, so that steps may differ a little from the table's. A spread is of the"
    yield "plan's steps, the largest over the least."
    yield ""
    yield f"Simulated steps differ by more than {DIFFERENCE:.0%} in {len(asked)} comparisons; real ranks name"
    yield f"the same winner in {sum(asked)} of them."
    yield ""
    yield (
        "| model | devices | micro-batches | pace | against | plan, simulated ms | plan, real ms | spread | "
        "simulated ratio | real ratio | same winner |"
    )
    yield "|---" * 11 + "|"
    for case in cases:
        yield from _rows(case)


def _rows(case: Confirmed) -> Iterator[str]:
    of_case = f"| {case.model} | {case.devices} | {case.micro_batches} | {case.pace:.2f}"
    for role, (simulated, real, agrees) in case.verdicts.items():
        plan = case.real_ms[PLAN]
        says = "-" if agrees is None else "yes" if agrees else "**no**"
        yield (
            f"{of_case} | {role}: {case.names[role]} | {case.simulated_ms[PLAN]:.1f} | "
            f"{case.median_ms(PLAN):.1f} | {max(plan) / min(plan) - 1:.1%} | {simulated:.3f} | {real:.3f} | "
            f"{says} |"
        )
    for role, why in case.refused.items():
        yield f"{of_case} | {role}: {case.names[role]} is not replayed: {why} |{' - |' * 6}"


def _way(role: str, planned: PlannedStep) -> Way:
    schedule = planned.schedule or schedule_in_order(planned.order, planned.step)
    estimate = planned.estimate
    return Way(
        role=role,
        name=planned.name,
        schedule=over_every_device(schedule, planned.layout.tensor_parallel),
        step_us=planned.step.step_us,
        simulated_ms=estimate.step_us / 1e3,
        after_ms=(estimate.step_us - estimate.pipeline_us) / 1e3,
    )


def over_every_device(schedule: Schedule, tensor_parallel: int) -> Schedule:
    """Return the schedule with each device of the pipeline as the devices that divide its tensors."""
    if tensor_parallel == 1:
        return schedule
    placement = schedule.placement
    blocks = tuple(
        msgspec.structs.replace(
            block,
            devices=tuple(
                device * tensor_parallel + part for device in block.devices for part in range(tensor_parallel)
            ),
        )
        for block in placement.blocks
    )
    wide = Placement(
        devices=placement.devices * tensor_parallel,
        blocks=blocks,
        edges=placement.edges,
        choices=placement.choices,
    )
    return Schedule.of(
        wide,
        schedule.start_by_block(),
        micro_batches=schedule.micro_batches,
        memory=None,
        found_by=schedule.found_by,
    )
