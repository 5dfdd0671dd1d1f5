"""What ranks did is drawn as it was: every action a bar, on its rank, at its time."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tessel.engine.job import Event
from tessel.engine.real import real_schedule
from tessel.picture import bars_of
from tessel.placement import BlockKind


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
    bars = bars_of(real_schedule(step))
    assert [(bar.device, bar.block, bar.micro_batch, bar.start, bar.end, bar.kind) for bar in bars] == [
        (0, "0F0", 0, 1000, 2000, BlockKind.FORWARD),
        (0, "2B1", 1, 3500, 5000, BlockKind.BACKWARD),
        (1, "0F0 on 1", 0, 1100, 2000, BlockKind.FORWARD),
        (1, "1W1", 1, 2000, 2000, BlockKind.BACKWARD_WEIGHT),
    ]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_bars_of_a_rank_do_not_overlap(times: list[float]) -> None:
    moments = sorted(times)
    events = tuple(
        Event(action=f"0F{number}", ready_s=start, start_s=start, end_s=end)
        for number, (start, end) in enumerate(itertools.pairwise(moments))
    )
    bars = bars_of(real_schedule([events]))
    assert all(bar.end <= after.start for bar, after in itertools.pairwise(bars))
