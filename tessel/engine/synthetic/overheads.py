"""Overheads of real ranks that the simulation does not model, measured once per machine and number of ranks.

In a schedule an action takes as long as its block, and the next begins at once, or after the lag of an edge.
A real process also has scheduling latency. Four figures describe it:

    action      what an action takes beyond its block's duration
    gap         from the end of an action to the start of the next, where that has not to wait
    hop         from the end of an action to the start of the one on another rank that waits for it
    collective  what a block on all ranks takes beyond its duration, from the last rank's start to the last
                rank's end: the ranks wait for each other first, and wake one after the other

They are measured on real ranks that run 1F1B and ZB-H1 over sleeping stages, and for collectives 1F1B on an m
shape, with short and long stages: the longer a rank has slept, the colder its core and caches are, and the
longer it takes to go on (8 ranks alone on a core took 0.25 ms beyond an action of 2.5 ms and 0.55 ms beyond
one of 10 ms). The mean over a step, since a makespan sums many, is one sample of a measurement of role
`device`, kept in the records under the number of ranks and the environment; the median of the samples is
used, which is robust against steps on a busy machine. Not modelled: large tensors (their cost is the lag of
an edge) and other load on the machine. Checked in tests/tessel/engine/synthetic/test_overheads.py, and
against real makespans by benchmarks/simulator.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from records import Environment, Measurement, RecordStore, Status, Workload
from records.workload import Tensor, describe
from tessel.engine.actions import Action, ActionKind, actions_of, schedule_of_actions
from tessel.engine.devices import CPUS, Devices
from tessel.engine.job import Event
from tessel.engine.synthetic.run import run_synthetic, sleep_spec
from tessel.handwritten import HANDWRITTEN
from tessel.placement import Block, Edge, Placement
from tessel.placement_builder import ShapeOptions
from tessel.schedule import Schedule
from tessel.shapes import make_shape

_STAGES_MS = (2, 10)
"""How long the forward and each half of the backward take: overheads rise between these, and not beyond."""

_REPEATS = 5
_TIMEOUT_S = 300.0
_READY_S = 2e-4
"""An action whose inputs are there within this time after the action before has not waited."""


_KEPT_NAMES = {"collective_us": "meeting"}
"""Of overheads that were renamed, the names in the records, by which they are found."""


class Overheads(NamedTuple):
    """Microseconds on top of what is simulated."""

    action_us: float
    gap_us: float
    hop_us: float
    collective_us: float


class Calibration(NamedTuple):
    """Overheads after blocks of several durations.

    Attributes:
        durations_us: microseconds, rising.
    """

    durations_us: tuple[float, ...]
    overheads: tuple[Overheads, ...]

    def at(self, duration_us: float) -> Overheads:
        """Return those of a block in between, linearly; of a shorter or longer one those of the nearest."""
        columns = zip(*self.overheads, strict=True)
        return Overheads(*(float(np.interp(duration_us, self.durations_us, column)) for column in columns))

    def without_actions(self) -> Calibration:
        """Return those for blocks whose durations already hold what an action takes beyond its own work."""
        bare = (each._replace(action_us=0.0, collective_us=0.0) for each in self.overheads)
        return self._replace(overheads=tuple(bare))


class Found(NamedTuple):
    """Overheads, and whether they were measured now and not found in the records."""

    calibration: Calibration
    is_new: bool


def known_overheads(
    store: RecordStore,
    num_ranks: int,
    *,
    target: str,
    machine: Environment,
    devices: Devices = CPUS,
    anew: bool = False,
) -> Found:
    """Return the overheads of this machine: from the records, or measured now and kept there.

    Args:
        num_ranks: ranks that run at once; a single rank has those of two.
        target: canonical text of the target that records are kept under.
        machine: this machine; versions are replaced by those of what the ranks run on.
        devices: where each rank keeps its tensors, and what carries them; ranks that share a GPU have records
            of their own.
        anew: whether to measure even what the records have; the newest counts.

    Raises:
        EngineError: the ranks failed.
        RecordError: the records cannot be read or written.
    """
    found = [
        _known(store, max(2, num_ranks), ms, target=target, machine=machine, devices=devices, anew=anew)
        for ms in _STAGES_MS
    ]
    overheads, are_new = zip(*found, strict=True)
    return Found(Calibration(tuple(1000.0 * ms for ms in _STAGES_MS), overheads), is_new=any(are_new))


def _known(
    store: RecordStore,
    num_ranks: int,
    stage_ms: int,
    *,
    target: str,
    machine: Environment,
    devices: Devices,
    anew: bool,
) -> tuple[Overheads, bool]:
    """Return the overheads at one duration, and whether they were measured now."""
    environment = _environment(machine)
    workloads = _workloads(num_ranks, stage_ms, devices)
    kept = [
        store.find_latest(
            workload.fingerprint, backend=devices.backend, target=target, environment=environment
        )
        for workload in workloads
    ]
    if not anew and all(record is not None and record.measurement.status is Status.OK for record in kept):
        medians = (record.measurement.latency_us for record in kept if record is not None)
        return Overheads(*medians), False
    samples = _measure(num_ranks, stage_ms, devices)
    now = time.time()
    store.append_many(
        (
            workload,
            Measurement(
                workload_fingerprint=workload.fingerprint,
                backend=devices.backend,
                target=target,
                environment=environment,
                status=Status.OK,
                samples_us=own,
                measured_at=now,
            ),
        )
        for workload, own in zip(workloads, samples, strict=True)
    )
    return Overheads(*map(statistics.median, samples)), True


def makespan_with_overheads_ms(schedule: Schedule, calibration: Calibration, *, step_us: float) -> float:
    """Simulate a schedule's orders again, each action and hop longer by what real ranks take.

    Args:
        schedule: its orders count, not its starts.
        calibration: of the machine that is to run it.
        step_us: microseconds of one of its steps.
    """
    schedule.require_equal("a real run")
    placement = schedule.placement
    by_block = [calibration.at(block.span * step_us) for block in placement.blocks]
    lag_us = {
        block.name: max(0, round(own.hop_us - own.gap_us))
        for block, own in zip(placement.blocks, by_block, strict=True)
    }
    slow = Placement(
        devices=placement.devices,
        blocks=tuple(
            msgspec.structs.replace(
                block, span=round(block.span * step_us) + round(_longer_us(block, own) + own.gap_us)
            )
            for block, own in zip(placement.blocks, by_block, strict=True)
        ),
        edges=tuple(
            Edge(
                edge.source,
                edge.target,
                round(edge.lag * step_us) + lag_us[edge.source] * _crosses(placement, edge),
            )
            for edge in placement.edges
        ),
        choices=placement.choices,
    )
    return schedule_of_actions(slow, actions_of(schedule)).makespan / 1000


def overheads_of_chain(step: Sequence[Sequence[Event]], seconds: Sequence[Mapping[str, float]]) -> Overheads:
    """Return the means over one real step of stages on one rank each, without collectives.

    Args:
        step: the events of each rank; some rank waits for another, and some action does not wait.
        seconds: how long each stage takes by the letter of the action.
    """
    action, gap = [], []
    for events in step:
        for position, event in enumerate(events):
            stage, kind, _ = event.parsed
            action.append(event.end_s - event.start_s - seconds[stage][kind])
            if position and event.start_s - event.ready_s < _READY_S:
                gap.append(event.start_s - events[position - 1].end_s)
    action_us, gap_us, hop_us = (1e6 * statistics.mean(values) for values in (action, gap, list(_hops(step))))
    return Overheads(action_us, gap_us, hop_us, collective_us=0.0)


def collective_us_of(step: Sequence[Sequence[Event]], seconds: Sequence[Mapping[str, float]]) -> float:
    """Return what a block on all ranks takes beyond its duration, in the mean over one real step.

    Args:
        step: the events of each rank; some action is on all of them.
        seconds: how long each stage takes by the letter of the action.
    """
    by_action: dict[Action, list[Event]] = defaultdict(list)
    for event in itertools.chain.from_iterable(step):
        by_action[event.parsed].append(event)
    return 1e6 * statistics.mean(
        max(event.end_s for event in events)
        - max(event.start_s for event in events)
        - seconds[action.stage][action.kind]
        for action, events in by_action.items()
        if len(events) == len(step)
    )


def _environment(machine: Environment) -> Environment:
    versions = (("python", platform.python_version()), ("torch", importlib.metadata.version("torch")))
    return msgspec.structs.replace(machine, num_threads=1, versions=versions)


def _workloads(num_ranks: int, stage_ms: int, devices: Devices) -> tuple[Workload, ...]:
    shared = [("ranks_per_gpu", str(devices.ranks_per_gpu))] if devices.gpus else []
    return tuple(
        describe(
            "device",
            [Tensor((1,), "float32")],
            [],
            [0],
            [
                ("overhead", _KEPT_NAMES.get(name, name.removesuffix("_us"))),
                *shared,
                ("ranks", str(num_ranks)),
                ("stage_ms", str(stage_ms)),
            ],
        )
        for name in Overheads._fields
    )


def _measure(num_ranks: int, stage_ms: int, devices: Devices) -> tuple[tuple[float, ...], ...]:
    """Return the samples of each overhead, one per step."""
    spans = ShapeOptions(
        choose_backward=True,
        forward_span=stage_ms,
        # A joint backward takes as long as both halves, so one duration per letter holds for both schedules.
        backward_span=2 * stage_ms,
        backward_input_span=stage_ms,
        backward_weight_span=stage_ms,
        tensor_parallel_span=stage_ms,
    )
    chain = make_shape("vshape", num_ranks, **spans)
    steps = [
        overheads_of_chain(step, seconds)
        for step, seconds in _run(chain, ("1f1b", "zb-h1"), num_ranks, devices)
    ]
    action_us, gap_us, hop_us, _ = zip(*steps, strict=True)
    with_collectives = make_shape("mshape", num_ranks, **spans)
    collective_us = tuple(
        collective_us_of(step, seconds)
        for step, seconds in _run(with_collectives, ("1f1b",), num_ranks, devices)
    )
    return action_us, gap_us, hop_us, collective_us


def _run(
    placement: Placement, names: Sequence[str], num_ranks: int, devices: Devices
) -> Iterator[tuple[list[tuple[Event, ...]], tuple[dict[str, float], ...]]]:
    """Yield the events of every counted step by rank, and how long each stage was to take."""
    step_us = 1000.0
    schedules = {
        rule.name: rule.build(placement, micro_batches=2 * num_ranks)
        for rule in HANDWRITTEN
        if rule.name in names
    }
    results = run_synthetic(
        schedules, step_us=step_us, repeats=_REPEATS, timeout_s=_TIMEOUT_S, devices=devices
    )
    seconds = sleep_spec(placement, step_us=step_us).seconds
    for name in schedules:
        for step in range(_REPEATS):
            yield [result.events[name][step] for result in results], seconds


def _longer_us(block: Block, own: Overheads) -> float:
    """Return what a block takes beyond its duration, by whether it is a collective."""
    return own.collective_us if len(block.devices) > 1 else own.action_us


def _hops(step: Sequence[Sequence[Event]]) -> Iterator[float]:
    """Yield seconds from the end of an action to the start of the one on another rank that waited for it."""
    place = {event.parsed: (rank, event) for rank, events in enumerate(step) for event in events}
    for rank, events in enumerate(step):
        for event in events:
            source = next((place[action] for action in _sources(event.parsed) if action in place), None)
            if source is not None and source[0] != rank and source[1].end_s > event.ready_s:
                yield event.start_s - source[1].end_s


def _sources(action: Action) -> tuple[Action, ...]:
    """Return the actions of which one is what a first one waits for."""
    if action.kind is ActionKind.FORWARD:
        return (action._replace(stage=action.stage - 1),)
    if action.kind is ActionKind.BACKWARD_WEIGHT:
        return ()
    after = action._replace(stage=action.stage + 1)
    return tuple(after._replace(kind=kind) for kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT))


def _crosses(placement: Placement, edge: Edge) -> bool:
    """Whether what an edge hands on must travel: a rank that has both ends has it already."""
    source, target = placement.block(edge.source).devices, placement.block(edge.target).devices
    return not set(target) <= set(source)
