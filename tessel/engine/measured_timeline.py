"""The measured timeline of one step, as data for pictures and traces.

Checked in tests/tessel/engine/test_measured_timeline.py.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from tessel.engine.actions import (
    ActionKind,
    actions_of,
    kinds_by_block,
    schedule_of_actions,
)
from tessel.engine.job import Event
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.schedule import Schedule

RealStep = Sequence[Sequence[Event]]
"""The events of each rank in one step."""

_KIND = {
    ActionKind.FORWARD: BlockKind.FORWARD,
    ActionKind.BACKWARD: BlockKind.BACKWARD,
    ActionKind.BACKWARD_INPUT: BlockKind.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: BlockKind.BACKWARD_WEIGHT,
}


def measured_schedule(step: RealStep) -> Schedule:
    """Return the step as a schedule to look at, a microsecond a step, from the first rank's begin.

    Each of its blocks stands for one action of one rank, named such as `0F3`, because no two runs of a block
    take equally long. It says nothing about memory.
    """
    begin_s = begin_of(step)
    blocks: list[Block] = []
    starts: dict[tuple[int, int], int] = {}
    for rank, events in enumerate(step):
        for event in events:
            action = event.parsed
            start_us = round((event.start_s - begin_s) * 1e6)
            end_us = round((event.end_s - begin_s) * 1e6)
            starts[len(blocks), action.micro_batch] = start_us
            blocks.append(
                Block(
                    # A block on several ranks does not start on all of them at the same microsecond.
                    name=event.action if _is_first(step, rank, event) else f"{event.action} on {rank}",
                    kind=_KIND[action.kind],
                    devices=(rank,),
                    span=end_us - start_us,
                )
            )
    return Schedule.of(
        Placement(devices=len(step), blocks=tuple(blocks)),
        starts,
        micro_batches=1 + max(micro_batch for _, micro_batch in starts),
        found_by="a real run",
    )


def with_measured_spans(schedule: Schedule, steps: Iterable[RealStep]) -> Schedule:
    """Return the schedule's orders with each block as long as it really took, a microsecond a step.

    A block's span is the median over steps, ranks and micro-batches, those of a class where they differ, and
    0 where it never ran; edges have no lag. What is left between this makespan and the real one is what ranks
    take beside their blocks.

    Raises:
        EngineError: the placement has blocks that no action stands for.
    """
    batch = schedule.classes
    taken_us: dict[tuple[int, tuple[int, ActionKind]], list[float]] = defaultdict(list)
    for step in steps:
        for event in chain.from_iterable(step):
            stage, kind, micro_batch = event.parsed
            own = 0 if batch is None else batch.sequence[micro_batch]
            taken_us[own, (stage, kind)].append((event.end_s - event.start_s) * 1e6)
    placement = schedule.placement
    kinds = kinds_by_block(placement)
    spans = [
        tuple(round(statistics.median(taken_us[own, kinds[block]] or [0.0])) for block in range(len(kinds)))
        for own in range(1 if batch is None else len(batch.classes))
    ]
    if batch is not None:
        batch = msgspec.structs.replace(
            batch,
            classes=tuple(
                msgspec.structs.replace(each, spans=own, lags=(0,) * len(each.lags))
                for each, own in zip(batch.classes, spans, strict=True)
            ),
        )
    real = Placement(
        devices=placement.devices,
        blocks=tuple(
            msgspec.structs.replace(block, span=span)
            for block, span in zip(placement.blocks, spans[0], strict=True)
        ),
        edges=tuple(Edge(edge.source, edge.target) for edge in placement.edges),
        choices=placement.choices,
    )
    return schedule_of_actions(real, actions_of(schedule), batch=batch, found_by=schedule.found_by)


def begin_of(step: RealStep) -> float:
    """Return when the first rank began, in seconds on the clock of the events."""
    return min(events[0].ready_s for events in step if events)


def _is_first(step: RealStep, rank: int, event: Event) -> bool:
    return not any(event.action == other.action for events in step[:rank] for other in events)
