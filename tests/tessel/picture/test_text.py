"""Schedules as text: every kind is told from the others without colours, and the width is kept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.dag import Dag
from tessel.handwritten import HANDWRITTEN
from tessel.picture.text import text_grid
from tessel.placement import Block, Edge, Placement
from tessel.schedule import Schedule
from tessel.shapes import make_shape, vshape

RULES = {rule.name: rule for rule in HANDWRITTEN}


def one_f_one_b(devices: int, micro_batches: int, backward_span: int = 3) -> Schedule:
    placement = vshape(devices, backward_span=backward_span)
    return RULES["1f1b"].build(placement, micro_batches=micro_batches, memory=None)


def lines(schedule: Schedule, width: int = 100) -> list[str]:
    return text_grid(schedule, width=width).plain.splitlines()


def test_a_small_schedule_by_hand() -> None:
    assert lines(one_f_one_b(2, 2)) == [
        "device 0  0>1>......0<<<<<..1<<<<<",
        "device 1  ..0>0<<<<<1>1<<<<<......",
        "> forward   < backward   . idle",
    ]


def test_halves_of_a_backward_have_marks_of_their_own() -> None:
    placement = vshape(2, split_backward=True)
    text = lines(RULES["zb-h1"].build(placement, micro_batches=4, memory=None))
    assert text[-1] == "> forward   i backward, input   w backward, weight   . idle"
    assert {"i", "w"} <= set(text[0])


@settings(max_examples=30, deadline=None)
@given(
    devices=st.integers(1, 12),
    micro_batches=st.integers(1, 40),
    backward_span=st.integers(0, 300),
    width=st.integers(20, 120),
)
def test_the_width_is_kept_and_idle_time_is_seen(
    devices: int, micro_batches: int, backward_span: int, width: int
) -> None:
    schedule = Dag.of_schedule(one_f_one_b(devices, micro_batches, backward_span)).to_schedule("eager")
    *rows, legend = lines(schedule, width)

    assert len(rows) == devices
    assert len({len(row) for row in rows}) == 1
    assert len(rows[0]) <= width
    if "one column" not in legend:
        label = len(f"device {devices - 1}") + 2
        per_step = (len(rows[0]) - label) // schedule.makespan
        assert per_step >= 1
        for device, row in enumerate(rows):
            busy = sum(
                schedule.placement.block(start.block).span
                for start in schedule.starts
                if device in schedule.placement.block(start.block).devices
            )
            assert row[label:].count(".") == (schedule.makespan - busy) * per_step


def test_chunks_of_a_device_have_marks_of_their_own() -> None:
    schedule = RULES["interleaved"].build(make_shape("interleaved", 2), micro_batches=2, memory=None)
    *rows, legend = lines(schedule)
    assert all({">", "}", "<", "{"} <= set(row) for row in rows)
    assert legend.startswith("> } forward   < { backward   . idle   a mark a chunk")


def test_blocks_of_no_kind_have_a_mark_a_name() -> None:
    placement = Placement(
        devices=1,
        blocks=tuple(
            Block(name=name, devices=(0,), span=2) for name in ("tower_0", "tower_back_0", "exchange_0")
        ),
        edges=(Edge("tower_0", "tower_back_0"), Edge("tower_back_0", "exchange_0")),
    )
    starts = {(block, 0): 2 * block for block in range(3)}
    row, legend = lines(Schedule.of(placement, starts, micro_batches=1, memory=None, found_by="hand"))
    assert row == "device 0  0###0+++0==="
    assert legend == "= exchange   # tower   + tower backward   . idle"
