"""Classes, batches and schedules of them: what is refused, what is derived, what goes round."""

from __future__ import annotations

import json

import msgspec
import pytest

from tessel.batches import Batch, MicroBatchClass, folded_placement, scaled_class
from tessel.errors import ScheduleError
from tessel.orders import device_orders, earliest_starts
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.schedule import Schedule, decode_schedule
from tessel.shapes import vshape
from tessel.validation import check_schedule, find_violations
from tests.samples.batches.batch_samples import batch_of, with_spans

PLACEMENT = vshape(2)


def classes(*factors: float, placement: Placement = PLACEMENT) -> tuple[MicroBatchClass, ...]:
    return tuple(scaled_class(placement, f"{factor:g}", factor) for factor in factors)


def one_after_the_other(placement: Placement, batch: Batch) -> Schedule:
    starts, step = {}, 0
    for micro_batch in range(batch.micro_batches):
        alone = earliest_starts(
            placement,
            [[t for t in order if t.micro_batch == 0] for order in _orders_of_one(placement)],
            batch.taken([micro_batch]),
        )
        starts |= {(block, micro_batch): step + at for (block, _), at in alone.items()}
        step = max(starts[b, micro_batch] + int(batch.spans[micro_batch, b]) for b, _ in alone)
    return Schedule.of(placement, starts, micro_batches=batch.micro_batches, batch=batch)


def _orders_of_one(placement: Placement):  # type: ignore[no-untyped-def]  # orders
    position = {name: number for number, name in enumerate(placement.index_by_name)}
    serial = {}
    step = 0
    for name in ("f0", "f1", "b1", "b0"):
        serial[position[name], 0] = step
        step += 10
    return device_orders(placement, serial)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"classes": (), "sequence": (0,)}, "no class"),
        ({"classes": classes(1), "sequence": ()}, "no micro-batch"),
        ({"classes": classes(1), "sequence": (0, 1)}, "class 1; there are classes 0..0"),
        ({"classes": classes(1) * 2, "sequence": (0,)}, "'1' occurs twice"),
        (
            {"classes": (*classes(1), MicroBatchClass(name="x", spans=(1,), memory=(0,))), "sequence": (0,)},
            "give one a block",
        ),
        ({"classes": (MicroBatchClass(name="x", spans=(1, 2), memory=(0,)),), "sequence": (0,)}, "of each"),
    ],
)
def test_what_is_no_batch_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        Batch(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ScheduleError, match="span or lag of -1"):
        MicroBatchClass(name="x", spans=(-1,), memory=(0,))
    with pytest.raises(ScheduleError, match="memory 1"):
        MicroBatchClass(name="x", spans=(1,), memory=(10**14,))
    with pytest.raises(ScheduleError, match="factor 0"):
        scaled_class(PLACEMENT, "x", 0)
    with pytest.raises(ScheduleError, match="4 blocks and 4 edges, the placement 6 and 7"):
        Batch(classes=classes(1), sequence=(0,)).check(vshape(3))


def test_a_scaled_class_frees_what_it_adds() -> None:
    blocks = [
        Block(name="f", kind=BlockKind.FORWARD, devices=(0,), span=3, memory=3),
        Block(name="i", kind=BlockKind.BACKWARD_INPUT, devices=(0,), span=2, memory=-1),
        Block(name="w", kind=BlockKind.BACKWARD_WEIGHT, devices=(0,), span=0, memory=-2),
    ]
    placement = Placement(devices=1, blocks=tuple(blocks), edges=(Edge("f", "i", 2), Edge("i", "w")))
    for factor in (0.1, 0.5, 1.5, 2.5, 7.3):
        made = scaled_class(placement, "x", factor)
        assert sum(made.memory) == 0
        assert made.spans == (max(1, round(3 * factor)), max(1, round(2 * factor)), 0)
        assert made.lags == (round(2 * factor), 0)


def test_equal_parts_are_as_many_as_possible() -> None:
    batch = Batch(classes=classes(1, 2, 3), sequence=(0, 1, 0, 0, 1, 0))
    assert batch.equal_parts() == ((0, 2, 1), (3, 5, 4))
    assert Batch(classes=classes(1, 2), sequence=(0, 0, 1)).equal_parts() == ((0, 1, 2),)


def test_a_folded_placement_has_the_blocks_of_all_its_micro_batches() -> None:
    batch = Batch(classes=classes(1, 3), sequence=(0, 1))
    folded = folded_placement(PLACEMENT, batch, (0, 1))
    assert [block.span for block in folded.blocks] == [*batch.spans[0], *batch.spans[1]]
    assert len(folded.edges) == 2 * len(PLACEMENT.edges)
    assert {edge.source.partition(".")[2] == edge.target.partition(".")[2] for edge in folded.edges} == {True}


def test_a_schedule_of_classes_goes_round_as_version_2() -> None:
    placement = with_spans(PLACEMENT, 10)
    batch = Batch(classes=classes(1, 2.5, placement=placement), sequence=(0, 1, 0))
    schedule = one_after_the_other(placement, batch)
    check_schedule(schedule)
    assert schedule.makespan == 80 + 200 + 80
    assert schedule.peak_memory == (25, 25)
    text = schedule.to_json()
    assert json.loads(text)["schema_version"] == 2
    assert decode_schedule(text) == schedule
    with pytest.raises(ScheduleError, match="batch and schema_version 1"):
        decode_schedule(text.replace(b'"schema_version":2', b'"schema_version":1'))
    with pytest.raises(ScheduleError, match="equal micro-batches"):
        schedule.require_equal("tessel compare")


def test_a_schedule_of_equal_micro_batches_stays_version_1_and_says_nothing_of_classes() -> None:
    names = PLACEMENT.index_by_name
    starts = {(names["f0"], 0): 0, (names["f1"], 0): 1, (names["b1"], 0): 2, (names["b0"], 0): 5}
    schedule = Schedule.of(PLACEMENT, starts, micro_batches=1)
    check_schedule(schedule)
    printed = json.loads(schedule.to_json())
    assert printed["schema_version"] == 1
    assert "batch" not in printed
    assert decode_schedule(json.dumps({**printed, "schema_version": 2})).classes is None


@pytest.mark.parametrize("what", ["span", "lag", "memory", "length"])
def test_validation_takes_each_micro_batch_for_what_it_is(what: str) -> None:
    batch = batch_of(PLACEMENT, 3, 5)
    schedule = one_after_the_other(PLACEMENT, batch)
    assert not find_violations(schedule)
    own = batch.classes[batch.sequence[1]]
    longer = {
        "span": {"spans": tuple(span + 9 for span in own.spans)},
        "lag": {"lags": tuple(lag + 9 for lag in own.lags)},
        "memory": {"memory": tuple(2 * units for units in own.memory)},
        "length": {},
    }[what]
    classes = tuple(msgspec.structs.replace(own, **longer) if each == own else each for each in batch.classes)
    sequence = batch.sequence[:-1] if what == "length" else batch.sequence
    wrong = msgspec.structs.replace(
        schedule, batch=Batch(classes=classes, sequence=sequence), memory=schedule.peak_memory
    )
    assert find_violations(wrong)
