"""Plans that are edited: joined, tightened, strided, shifted, and turned into numbers and back."""

from __future__ import annotations

import numpy as np
import pytest

from tessel import shapes
from tessel.errors import ScheduleError
from tessel.schedule.schedplan import Block, SchedPlan
from tessel.schedule.window import Placed, unroll_window
from tessel.search import find_schedule


def chain(mid: int = 0) -> SchedPlan:
    """A forward on two devices in turn, and its backward."""
    plan = SchedPlan(2)
    blocks = [Block(mid, 1, 1, "forward"), Block(mid, 2, 1, "forward"), Block(mid, 2, -1, "backward")]
    plan.add_block_seq(blocks, [[0], [1], [0, 1]])
    for gid, block in enumerate(blocks):
        block.gid = gid
    return plan


def test_concat_stride_and_tighten() -> None:
    joined = SchedPlan.concat([chain(0), chain(1)])
    assert str(joined) == "f0 .  .  b0 b0 f1 .  .  b1 b1\n.  f0 f0 b0 b0 .  f1 f1 b1 b1"
    assert joined.plans[1][4] is joined.blocks(3)[0]
    assert [block.mid for block in joined.device_blocks(1)] == [0, 0, 1, 1]
    first = joined.chain_blocks()[0]
    joined.shift(first, 0)
    with pytest.raises(ScheduleError, match="cannot move by 3"):
        joined.shift(first, 3)
    last = joined.chain_blocks()[-1]
    joined.shift(last, 4)
    assert (joined.nsteps, joined.validate()) == (14, True)
    joined.stride()
    assert (joined.nsteps, joined.validate()) == (10, True)
    joined.shift(last, 1)
    joined.tighten()
    assert str(joined) == "f0 .  .  b0 b0 f1 .  .  b1 b1\n.  f0 f0 b0 b0 .  f1 f1 b1 b1"
    joined.shift(first, 1)
    assert not joined.validate()


def test_a_part_is_valid_only_if_what_it_waits_for_may_be_missing() -> None:
    part = chain().extract(1, 5)
    assert part.validate(complete=False)
    assert not part.validate()


def test_a_found_schedule_keeps_its_figures_when_it_is_edited() -> None:
    found = find_schedule(shapes.vshape(3, lag=2), micro_batches=3)
    plan = SchedPlan.of_schedule(found)
    for block in plan.all_blocks():
        plan.shift(block, 100_000)
    plan.stride()
    assert plan.schedule.starts != found.starts or plan.nsteps == found.makespan
    plan.tighten()
    assert plan.validate()
    assert plan.nsteps == plan.schedule.makespan == found.makespan
    with pytest.raises(ScheduleError, match="give plans for equally many"):
        SchedPlan.concat([plan, chain()])


def test_states_are_steps_by_micro_batch_and_block() -> None:
    plan = SchedPlan.concat([chain(0), chain(1)])
    with pytest.raises(ScheduleError, match="no repetend"):
        plan.getstate()
    plan.repetend = (5, 10)
    state = plan.getstate()
    assert state.tolist() == [[0, 1, 3, 5, 10], [5, 6, 8, 5, 10]]
    again = SchedPlan(2)
    blocks = [block for mid in range(2) for block in chain(mid).all_blocks()]
    again.loadstate(blocks, [[0], [1], [0, 1]] * 2, state)
    assert (str(again), again.repetend) == (str(plan), (5, 10))
    assert (again.getstate() == state).all()
    plan.unroll(4).loadstate([], [], np.array([[0, 1]]))


def test_repeating_a_window_needs_every_block_of_it_equally_often() -> None:
    plan = SchedPlan.concat([chain(0), chain(1)])
    plan.repetend = (5, 10)
    longer = plan.unroll(4)
    assert (longer.nsteps, longer.validate(), longer.repetend) == (20, True, (5, 20))
    assert longer.unroll(5).nsteps == 25 if longer.repetend == (15, 20) else True
    with pytest.raises(ScheduleError, match="1 micro-batches were asked for, the plan has 2"):
        plan.unroll(1)
    plan.repetend = (5, 8)
    with pytest.raises(ScheduleError, match="does not hold every block"):
        plan.unroll(3)


def test_windows_keep_the_distance_that_dependencies_across_them_need() -> None:
    """The forward of a micro-batch ends where the backward of the one before starts, a window later."""
    placed = [
        Placed(0, 0, 0, 3, (0,)),
        Placed(0, 1, 3, 3, (0,)),
        Placed(1, 0, 3, 1, (1,)),
        Placed(1, 1, 6, 1, (1,)),
    ]
    period = 6 - 3
    longer = unroll_window(placed, (3, 6), 3, [(0, 1)])
    starts = {(each.gid, each.mid): each.step for each in longer}
    assert starts[1, 1] >= starts[0, 1] + 3
    assert starts[0, 2] - starts[0, 1] == period
