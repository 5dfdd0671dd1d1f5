"""What ranks did is drawn as it was: every action a bar, on its rank, at its time."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tessel.batches import Batch, scaled_class
from tessel.engine import actions_from_csv, schedule_of_actions
from tessel.engine.job import Event
from tessel.engine.measured_timeline import RealStep, measured_schedule, with_measured_spans
from tessel.engine.run import one_f_one_b_of
from tessel.picture.bars import bars_of
from tessel.placement import BlockKind
from tessel.shapes import make_shape


def test_bars_are_the_events() -> None:
    step = [
        (
            Event(action="0F0", ready_s=10.0, start_s=10.001, end_s=10.002),
            Event(action="2B1", ready_s=10.002, start_s=10.0035, end_s=10.005),
        ),
        (
            Event(action="0F0", ready_s=10.0, start_s=10.0011, end_s=10.002),
            Event(action="1W1", ready_s=10.002, start_s=10.002, end_s=10.002),
        ),
    ]
    bars = bars_of(measured_schedule(step))
    assert [(bar.device, bar.block, bar.micro_batch, bar.start, bar.end, bar.kind) for bar in bars] == [
        (0, "0F0", 0, 1000, 2000, BlockKind.FORWARD),
        (0, "2B1", 1, 3500, 5000, BlockKind.BACKWARD),
        (1, "0F0 on 1", 0, 1100, 2000, BlockKind.FORWARD),
        (1, "1W1", 1, 2000, 2000, BlockKind.BACKWARD_WEIGHT),
    ]


def test_orders_are_simulated_with_the_medians_of_what_blocks_took() -> None:
    """Two ranks, a micro-batch; F of stage 0 took 1, 3 and 2 ms, and what ranks waited for does not count."""
    schedule = schedule_of_actions(make_shape("vshape", 2), actions_from_csv("0F0,0B0\n1F0,1B0\n"))

    def step(first_s: float) -> RealStep:
        return [
            (
                Event(action="0F0", ready_s=0.0, start_s=0.0, end_s=first_s),
                Event(action="0B0", ready_s=first_s, start_s=5.0, end_s=5.004),
            ),
            (
                Event(action="1F0", ready_s=0.0, start_s=1.0, end_s=1.010),
                Event(action="1B0", ready_s=1.010, start_s=2.0, end_s=2.020),
            ),
        ]

    real = with_measured_spans(schedule, map(step, (0.001, 0.003, 0.002)))
    assert [(block.name, block.span) for block in real.placement.blocks] == [
        ("f0", 2000),
        ("f1", 10000),
        ("b1", 20000),
        ("b0", 4000),
    ]
    assert real.makespan == 36000


def test_micro_batches_that_differ_have_the_medians_of_their_class_and_1f1b_as_given() -> None:
    placement = make_shape("vshape", 1)
    batch = Batch(
        classes=tuple(scaled_class(placement, name, int(name)) for name in "13"), sequence=(0, 1, 1)
    )
    actions = actions_from_csv("0F2,0B2,0F0,0B0,0F1,0B1\n")
    schedule = schedule_of_actions(placement, actions, batch=batch)
    assert schedule.makespan == (1 + 3 + 3) * sum(block.span for block in placement.blocks)
    took_ms = {"0F0": 1, "0B0": 2, "0F1": 4, "0B1": 8, "0F2": 6, "0B2": 10}
    step = [
        tuple(
            Event(action=name, ready_s=place, start_s=place, end_s=place + took / 1000)
            for place, (name, took) in enumerate(took_ms.items())
        )
    ]
    real = with_measured_spans(schedule, [step])
    assert real.classes is not None
    assert [each.spans for each in real.classes.classes] == [(1000, 2000), (5000, 9000)]
    assert real.makespan == 3000 + 2 * 14000
    given = one_f_one_b_of(schedule)["1f1b"]
    assert given.classes == batch
    assert [start.micro_batch for start in given.starts if start.block == "f0"] == [0, 1, 2]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_bars_of_a_rank_do_not_overlap(times: list[float]) -> None:
    moments = sorted(times)
    events = tuple(
        Event(action=f"0F{number}", ready_s=start, start_s=start, end_s=end)
        for number, (start, end) in enumerate(itertools.pairwise(moments))
    )
    bars = bars_of(measured_schedule([events]))
    assert all(bar.end <= after.start for bar, after in itertools.pairwise(bars))
