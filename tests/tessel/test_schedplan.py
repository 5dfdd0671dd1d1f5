"""Tessel's tutorial as its users know it: names, numbers and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tessel.documents import load_placement, load_schedule, save
from tessel.errors import DocumentError, InfeasibleError, ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.schedule.composer import Composer
from tessel.schedule.schedplan import Block, SchedPlan
from tessel.validation import find_violations


def vshape(ndevs: int) -> SchedPlan:
    """The tutorial's placement, capital letters and all."""
    sched = SchedPlan(ndevs)
    fblocks = [Block(0, span=1, memory=1, btype="Forward") for _ in range(ndevs)]
    fdevs = [[devid] for devid in range(ndevs)]
    bblocks = [Block(0, span=2, memory=-1, btype="Backward") for _ in range(ndevs)]
    bdevs = [[devid] for devid in range(ndevs)][::-1]
    sched.add_block_seq(fblocks + bblocks, fdevs + bdevs)
    return sched


def kshape(ndevs: int) -> SchedPlan:
    """Two branches that share the same two blocks, added by two sequences."""
    sched = SchedPlan(ndevs)
    shared = [Block(0, span=1, memory=1, btype="forward"), Block(0, span=1, memory=-1, btype="backward")]
    everywhere = [list(range(ndevs))] * 2
    half = ndevs // 2
    for first in (0, half):
        down = [Block(0, span=1, memory=1, btype="forward") for _ in range(half)]
        up = [Block(0, span=3, memory=-1, btype="backward") for _ in range(half)]
        places = [[first + number] for number in range(half)]
        sched.add_block_seq([*down, *shared, *up], [*places, *everywhere, *places[::-1]])
    return sched


def nnshape(ndevs: int) -> SchedPlan:
    """One sequence with blocks on all devices at its ends and in its middle, put in by position."""
    sched = SchedPlan(ndevs)
    fblocks = [Block(0, span=1, memory=1, btype="forward") for _ in range(ndevs)]
    fdevs = [[devid] for devid in range(ndevs)]
    bblocks = [Block(0, span=3, memory=-1, btype="backward") for _ in range(ndevs)]
    bdevs = [[ndevs - 1 - devid] for devid in range(ndevs)]
    every = list(range(ndevs))
    for where in (ndevs // 2, 0):
        fblocks.insert(where, Block(0, span=1, memory=0, btype="forward"))
        fdevs.insert(where, every)
    for where in (ndevs // 2, ndevs + 1):
        bblocks.insert(where, Block(0, span=1, memory=0, btype="backward"))
        bdevs.insert(where, every)
    sched.add_block_seq(fblocks + bblocks, fdevs + bdevs)
    return sched


def xshape(ndevs: int) -> SchedPlan:
    """Two sequences in opposite directions; where their first steps meet, a block moves on."""
    sched = SchedPlan(ndevs)
    for places in (range(ndevs), range(ndevs)[::-1]):
        down = [Block(0, span=1, memory=1, btype="forward") for _ in places]
        up = [Block(0, span=3, memory=-1, btype="backward") for _ in places]
        sched.add_block_seq(down + up, [[p] for p in places] + [[p] for p in places[::-1]])
    return sched


@pytest.mark.parametrize(("shape", "memory", "period"), [(kshape, 6, 6), (nnshape, 6, 8), (xshape, 4, 8)])
def test_periods_are_those_that_tessel_finds(
    shape: Callable[[int], SchedPlan], memory: int, period: int
) -> None:
    composed = Composer.compose(shape(4), memory)
    assert composed.schedule.repetend is not None
    assert composed.schedule.repetend.period == period
    assert composed.schedule.repetend.optimal
    assert find_violations(composed.schedule) == ()


def test_the_tutorial_runs_as_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    placement = vshape(ndevs=4)
    memory = 4
    nmicros = 4
    schedule = Composer.compose_n(placement, memory, nmicros)
    print(schedule)
    assert capsys.readouterr().out.splitlines()[3].startswith(".  .  .  f0 b0 b0 f1 b1 b1")
    start, end = schedule.repetend or (0, 0)
    assert end - start == 3
    assert [schedule.peak_memory(device) for device in range(4)] == [4, 3, 2, 1]
    assert schedule.nsteps == 21
    unrolled = schedule.unroll(nmicros + 2)
    assert unrolled.nsteps == 27
    assert {block.mid for block in unrolled.all_blocks()} == set(range(6))
    save(schedule.schedule, tmp_path / "vshape.json")
    assert find_violations(load_schedule(tmp_path / "vshape.json")) == ()
    assert SchedPlan.load(tmp_path / "vshape.json").nsteps == 21
    schedule.save(tmp_path / "tessel.json")
    assert SchedPlan.load(tmp_path / "tessel.json").nsteps == 21


@pytest.mark.parametrize("memory", [2, 3, 4])
@pytest.mark.parametrize("shape", [vshape, kshape])
def test_composed_schedules_are_valid_with_their_repetend(shape: type[SchedPlan], memory: int) -> None:
    composed = Composer.compose(shape(4), memory)
    for plan in (composed, composed.unroll(1), composed.unroll(20)):
        assert find_violations(plan.schedule) == ()
        assert all(plan.peak_memory(device) <= memory for device in range(4))
    assert composed.repetend is not None
    assert composed.unroll(20).repetend is not None


def test_several_copies_beat_one_under_a_tight_limit() -> None:
    """Backward spans of 3 and memory 3: 16 steps for three micro-batches, where one copy takes 8 for one."""
    plan = vshape(4)
    for block in plan.all_blocks():
        block.span = 3 if block.btype == "backward" else 1
    repetend = Composer.compose(plan, 3).schedule.repetend
    assert repetend is not None
    assert (repetend.period, repetend.micro_batches) == (16, 3)


def test_compose_fast_is_compose() -> None:
    plan = vshape(3)
    assert Composer.compose_fast(plan, 3, wc_ratio=(128, 0.05)).schedule.starts == (
        Composer.compose(plan, 3).schedule.starts
    )


def test_a_placement_is_the_engines(tmp_path: Path) -> None:
    placement = kshape(4).to_placement()
    assert sorted(placement.index_by_name) == sorted(f"{way}{number}" for way in "fb" for number in range(5))
    for way in ("f", "b"):
        assert sum(placement.block(f"{way}{n}").devices == (0, 1, 2, 3) for n in range(5)) == 1
    save(placement, tmp_path / "kshape.json")
    assert load_placement(tmp_path / "kshape.json") == placement
    assert SchedPlan.load(tmp_path / "kshape.json").to_placement().devices == 4


def test_hand_written_schedules_read_a_tutorial_placement() -> None:
    """Its backward blocks wait for forwards only through the chain; they are matched all the same."""
    placement = vshape(4).to_placement()
    names = [rule.name for rule in HANDWRITTEN if rule.why_not(placement, 8) is None]
    assert {"1f1b", "gpipe", "eager-1f1b"} <= set(names)


def test_parts_and_copies() -> None:
    plan = vshape(2)
    assert [str(block) for block in plan.chain_blocks()] == ["f0", "f0", "b0", "b0"]
    assert plan.copy(3).chain_blocks()[0].mid == 3
    assert plan.extract(1, 3).nsteps == 3
    assert str(plan) == "f0 .  .  .  b0 b0\n.  f0 b0 b0 .  ."
    first, last = plan.chain_blocks()[0], plan.chain_blocks()[-1]
    assert plan.device(last) == (0,)
    assert plan.step(last) == 4
    Block.make_dependency(first, last)
    assert list(first.after) == [plan.chain_blocks()[1], last]


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(ScheduleError, match='"forward" or "backward"'):
        Block(0, span=1, memory=1, btype="sideways")
    with pytest.raises(ScheduleError, match="2 blocks and 1 lists"):
        SchedPlan(1).add_block_seq([Block(0, 1, 0, "forward")] * 2, [[0]])
    with pytest.raises(ScheduleError, match=r"name at least one"):
        SchedPlan(1).add_block(Block(0, 1, 0, "forward"), [1], 0)
    with pytest.raises(ScheduleError, match="compose it first"):
        _ = vshape(2).schedule
    with pytest.raises(ScheduleError, match="no repetend to unroll"):
        vshape(2).unroll(4)
    with pytest.raises(InfeasibleError):
        Composer.compose(vshape(2), 0)


def test_a_file_that_tessel_saved_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "tessel.json"
    path.write_text(
        '{"ndevs": 2, "repetend": [1, 4], "blocks": ['
        '{"mid": 0, "span": 1, "memory": 1, "btype": "forward", "gid": 0, "step": 0, "device": [0]},'
        '{"mid": 1, "span": 1, "memory": 1, "btype": "forward", "gid": 0, "step": 1, "device": [0]},'
        '{"mid": 0, "span": 2, "memory": -1, "btype": "backward", "gid": 1, "step": 2, "device": [0, 1]}]}'
    )
    plan = SchedPlan.load(path)
    assert str(plan) == "f0 f1 b0 b0\n.  .  b0 b0"
    assert plan.repetend == (1, 4)
    assert [plan.peak_memory(device) for device in range(2)] == [2, 0]
    path.write_text('{"ndevs": 2}')
    with pytest.raises(DocumentError, match="missing required field `blocks`"):
        SchedPlan.load(path)
    path.write_text("[]")
    with pytest.raises(DocumentError):
        SchedPlan.load(path)


def test_names_of_backwards_without_forwards_and_long_plans() -> None:
    plan = SchedPlan(2)
    plan.add_block_seq([Block(0, 1, 0, "forward"), None, Block(0, 5000, 0, "backward")], [[0], None, [1]])
    assert [block.name for block in plan.to_placement().blocks] == ["f0", "b1"]
    assert str(plan) == "SchedPlan of 2 devices, 2 blocks and 5002 steps"
    with pytest.raises(ScheduleError, match="add another block, or the same devices"):
        plan.add_block(plan.all_blocks()[0], [1], 0)
    with pytest.raises(ScheduleError, match="at least 1"):
        SchedPlan(0)
