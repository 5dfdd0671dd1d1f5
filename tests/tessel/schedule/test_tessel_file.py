"""Files for Tessel's own loader and runtime: what its rules make of them, and what is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessel import shapes
from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.schedule.composer import Composer
from tessel.schedule.schedplan import Block, SchedPlan
from tessel.search import find_schedule
from tessel.validation import find_violations
from tests.oracles import tessel_reader

SHAPES = [("vshape", 4), ("xshape", 4), ("mshape", 6), ("kshape", 6), ("finetune", 4), ("alphafold", 4)]


def plan_of(placement: Placement, folder: Path) -> SchedPlan:
    path = folder / "placement.json"
    path.write_bytes(placement.to_json())
    return SchedPlan.load(path)


@pytest.mark.parametrize(("shape", "memory"), SHAPES)
def test_tessels_rules_read_and_unroll_what_is_saved(shape: str, memory: int, tmp_path: Path) -> None:
    placement = shapes.make_shape(shape, 4)
    composed = Composer.compose(plan_of(placement, tmp_path), memory)
    composed.save(tmp_path / "plan.json")
    blocks, repetend = tessel_reader.read(tmp_path / "plan.json")
    found = composed.schedule
    assert found.repetend is not None
    # Tessel repeats one micro-batch at a time; a period of several it can only run as it stands.
    for more in range(3) if found.repetend.micro_batches == 1 else [0]:
        longer = tessel_reader.unroll(blocks, repetend, more)
        tessel_reader.check(placement.devices, longer)
        starts = {(block["gid"], block["mid"]): block["step"] for block in longer}
        unrolled = Schedule.of(
            found.placement, starts, micro_batches=found.micro_batches + more, memory=found.memory
        )
        assert find_violations(unrolled) == ()
        assert unrolled.makespan == found.makespan + more * found.repetend.period
    again = SchedPlan.load(tmp_path / "plan.json")
    assert again.validate()
    assert (again.getstate() == composed.getstate()).all()
    assert again.unroll(found.micro_batches + found.repetend.micro_batches).validate()


def test_a_schedule_in_which_nothing_repeats_and_a_placement_are_files_too(tmp_path: Path) -> None:
    found = find_schedule(shapes.kshape(4), micro_batches=3, memory=6)
    assert found.repetend is None
    for number, plan in enumerate(
        [SchedPlan.of_schedule(found), plan_of(shapes.vshape(3, split_backward=True), tmp_path)]
    ):
        path = tmp_path / f"{number}.json"
        plan.save(path)
        blocks, repetend = tessel_reader.read(path)
        assert repetend == (0, plan.nsteps)
        assert sorted({block["gid"] for block in blocks}) == list(range(len(plan.to_placement().blocks)))
        assert SchedPlan.load(path).validate()
        assert SchedPlan.load(path).nsteps == plan.nsteps


def test_what_tessel_would_refuse_is_refused_before_it_is_written(tmp_path: Path) -> None:
    plan = SchedPlan(1)
    plan.add_block(Block(0, span=0, memory=0, btype="forward"), [0], 0)
    with pytest.raises(ScheduleError, match="has span 0, which Tessel's loader refuses"):
        plan.save(tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()


def test_a_file_whose_blocks_overlap_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    block = '{"mid": 0, "span": 2, "memory": 0, "btype": "forward", "gid": %d, "step": %d, "device": [0]}'
    path.write_text(f'{{"ndevs": 1, "repetend": null, "blocks": [{block % (0, 0)}, {block % (1, 1)}]}}')
    with pytest.raises(ScheduleError, match="at step 1, where another block runs"):
        SchedPlan.load(path)
