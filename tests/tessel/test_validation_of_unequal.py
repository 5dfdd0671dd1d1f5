"""Schedules of pairs and of classes are judged as plain ones; each rule of theirs is named when broken."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tessel.batches import Batch, MicroBatchClass
from tessel.orders import Task
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.schedule import Schedule
from tessel.schedule.overlap import Overlap, neighbours, paired_starts
from tessel.shapes import make_shape
from tessel.validation import find_violations
from tests.oracles.placement_samples import placements
from tests.oracles.schedule_rules import broken_rules, named_rules
from tests.oracles.unrolled_schedules import figured, unrolled
from tests.samples.random_schedules import draw_schedule

replace = msgspec.structs.replace


@st.composite
def of_pairs(draw: st.DrawFn) -> Schedule:
    """Return a valid schedule of a chain in which at least one pair runs together."""
    devices = draw(st.integers(1, 2))
    spans = st.lists(st.integers(1, 4), min_size=devices, max_size=devices)
    placement = make_shape(
        "vshape",
        devices,
        forward_span=draw(spans),
        backward_span=draw(spans),
        forward_memory=draw(st.integers(-1, 2)),
        backward_memory=draw(st.integers(-2, 1)),
        lag=draw(st.integers(0, 1)),
    )
    drawn = draw_schedule(placement, 3, np.random.default_rng(draw(st.integers(0, 2**32))))
    tasks = [Task(placement.index_by_name[each.block], each.micro_batch) for each in drawn.starts]
    orders = [
        [task for task in tasks if device in placement.blocks[task.block_index].devices]
        for device in range(devices)
    ]
    factor = draw(st.sampled_from([0.3, 0.6, 0.67, 1.0]))
    pairs = neighbours(placement, orders, forward_first=draw(st.booleans()))
    found = paired_starts(placement, orders, pairs, factor)
    assume(found.pairs)
    overlap = Overlap.of(placement, factor, found.pairs)
    return _limited(draw, Schedule.of(placement, found.starts, micro_batches=3, overlap=overlap))


@st.composite
def of_classes(draw: st.DrawFn) -> Schedule:
    """Return a valid schedule of micro-batches of two classes."""
    placement = draw(placements(has_choice=False))
    classes = tuple(
        MicroBatchClass(
            name=name,
            spans=tuple(draw(st.integers(0, 3)) for _ in placement.blocks),
            memory=tuple(draw(st.integers(-2, 2)) for _ in placement.blocks),
            lags=tuple(draw(st.integers(0, 2)) for _ in placement.edges),
        )
        for name in ("short", "long")
    )
    sequence = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=3)))
    batch = Batch(classes=classes, sequence=sequence)
    steps = {(block, each): 0 for block in range(len(placement.blocks)) for each in range(len(sequence))}
    empty = Schedule.of(placement, steps, micro_batches=len(sequence), batch=batch)
    plain = draw_schedule(unrolled(empty).placement, 1, np.random.default_rng(draw(st.integers(0, 2**32))))
    for each in plain.starts:
        name, micro_batch = each.block.split("/")
        steps[placement.index_by_name[name], int(micro_batch)] = each.start
    assume(plain.makespan)
    return _limited(draw, Schedule.of(placement, steps, micro_batches=len(sequence), batch=batch))


def _limited(draw: st.DrawFn, schedule: Schedule) -> Schedule:
    room = draw(st.none() | st.integers(0, 1))
    return replace(schedule, memory=None if room is None else tuple(p + room for p in schedule.peak_memory))


def together(schedule: Schedule) -> dict[tuple[str, int], tuple[str, int]]:
    """Return the forward of each backward that is in a pair."""
    pairs = schedule.overlap.pairs if isinstance(schedule.overlap, Overlap) else ()
    return {
        (each.backward, each.backward_micro_batch): (each.forward, each.forward_micro_batch) for each in pairs
    }


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(schedule=of_pairs() | of_classes(), data=st.data())
def test_any_starts_break_what_the_definitions_say_of_plain_blocks(
    schedule: Schedule, data: st.DataObject
) -> None:
    assert find_violations(schedule) == ()
    moves = {
        (each.block, each.micro_batch): data.draw(st.integers(-2, 2) | st.just(0)) for each in schedule.starts
    }
    for backward, forward in together(schedule).items():
        moves[backward] = moves[forward]
    starts = [
        replace(each, start=max(0, each.start + moves[each.block, each.micro_batch]))
        for each in schedule.starts
    ]
    found = figured(replace(schedule, starts=tuple(starts)))
    assert named_rules(find_violations(found)) == broken_rules(unrolled(found))


def changed_pair(**fields: object) -> Callable[[Schedule], Schedule]:
    def change(schedule: Schedule) -> Schedule:
        pair = replace(schedule.overlap.pairs[0], **fields)
        return replace(schedule, overlap=replace(schedule.overlap, pairs=(pair,)))

    return change


def changed_batch(*, blocks: int = 0, edges: int = 0, more: int = 0) -> Callable[[Schedule], Schedule]:
    """Return what gives a schedule a batch for so many more blocks, edges and micro-batches than it has."""

    def change(schedule: Schedule) -> Schedule:
        num_blocks = len(schedule.placement.blocks) + blocks
        lags = (0,) * (len(schedule.placement.edges) + edges)
        one = MicroBatchClass(name="c", spans=(2,) * num_blocks, memory=(0,) * num_blocks, lags=lags)
        return replace(schedule, batch=Batch(classes=(one,), sequence=(0,) * (schedule.micro_batches + more)))

    return change


def torn(schedule: Schedule) -> Schedule:
    """Return the schedule with the backward of the pair a step later."""
    starts = (
        replace(each, start=5) if (each.block, each.start) == ("b1", 4) else each for each in schedule.starts
    )
    return replace(schedule, starts=tuple(starts))


BREAKS: tuple[tuple[str, Callable[[Schedule], Schedule]], ...] = (
    ("pairs of classes", changed_batch()),
    ("blocks of a pair", changed_pair(forward="nobody")),
    ("blocks of a pair", changed_pair(forward_micro_batch=9)),
    ("blocks of a pair", changed_pair(backward_micro_batch=9)),
    ("kinds of a pair", changed_pair(forward="b1", forward_micro_batch=1)),
    ("kinds of a pair", changed_pair(backward="f1")),
    ("kinds of a pair", changed_pair(forward="f0")),
    ("kinds of a pair", changed_pair(forward="g", backward="h")),
    (
        "pairs once",
        lambda found: replace(found, overlap=replace(found.overlap, pairs=found.overlap.pairs * 2)),
    ),
    ("pairs start together", torn),
    ("size of the batch", lambda found: changed_batch(more=1)(replace(found, overlap=msgspec.UNSET))),
    ("figures of the batch", lambda found: changed_batch(blocks=1)(replace(found, overlap=msgspec.UNSET))),
    ("figures of the batch", lambda found: changed_batch(edges=1)(replace(found, overlap=msgspec.UNSET))),
)


@pytest.mark.parametrize(("rule", "breaks"), BREAKS)
def test_a_broken_rule_is_named_alone(rule: str, breaks: Callable[[Schedule], Schedule]) -> None:
    """Device 1 runs f1 of micro-batch 1 together with b1 of micro-batch 0."""
    devices = {"f0": (0,), "f1": (1,), "b1": (1,), "b0": (0,), "g": (0, 1), "h": (0, 1)}
    blocks = tuple(
        Block(
            name=name,
            devices=held,
            span=2,
            kind=BlockKind.BACKWARD if name in ("b1", "b0", "h") else BlockKind.FORWARD,
        )
        for name, held in devices.items()
    )
    placement = Placement(devices=2, blocks=blocks, edges=(Edge("f0", "b0"),))
    steps = ((0, 2), (0, 4), (4, 7), (9, 11), (13, 15), (17, 17))
    starts = {(block, each): at for block, pair in enumerate(steps) for each, at in enumerate(pair)}
    starts[5, 1] = 19
    pair = (Task(1, 1), Task(2, 0))
    overlap = Overlap.of(placement, 0.5, (pair,))
    found = figured(Schedule.of(placement, starts, micro_batches=2, overlap=overlap))
    assert find_violations(found) == ()
    assert named_rules(find_violations(breaks(found))) == {rule}
