"""Totals of Tessel's five shapes: what a composed plan unrolls to is what the command finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessel import shapes
from tessel.schedule.composer import Composer
from tessel.schedule.schedplan import SchedPlan
from tessel.schedule.window import is_exact
from tessel.validation import find_violations


@pytest.mark.parametrize(
    ("shape", "memory", "totals"),
    [
        ("vshape", 4, (44, 268)),
        ("xshape", 4, (70, 518)),
        ("mshape", 6, (60, 396)),
        pytest.param("nnshape", 6, (76, 524), marks=pytest.mark.slow),
        ("kshape", 6, (52, 388)),
    ],
)
def test_unrolled_plans_have_the_totals_of_the_command(
    shape: str, memory: int, totals: tuple[int, int], tmp_path: Path
) -> None:
    (tmp_path / "placement.json").write_bytes(shapes.make_shape(shape, 4).to_json())
    composed = Composer.compose(SchedPlan.load(tmp_path / "placement.json"), memory)
    assert composed.repetend is not None
    assert is_exact(composed.schedule, composed.repetend)
    for micro_batches, total in zip((8, 64), totals, strict=True):
        plan = composed.unroll(micro_batches)
        assert plan.nsteps == total
        assert find_violations(plan.schedule) == ()
        assert all(plan.peak_memory(device) <= memory for device in range(4))
        # Tessel's runtime unrolls the file on from here, by a period each time.
        assert plan.repetend is not None
        assert is_exact(plan.schedule, plan.repetend)


def test_blocks_of_the_placement_are_numbered_as_those_of_the_plan(tmp_path: Path) -> None:
    """A runtime finds the part of the model that a block of the plan stands for by its number."""
    (tmp_path / "placement.json").write_bytes(shapes.xshape(4).to_json())
    micro = SchedPlan.load(tmp_path / "placement.json")
    composed = Composer.compose(micro, 4)
    for block in composed.all_blocks():
        own = next(each for each in micro.all_blocks() if each.gid == block.gid)
        assert (own.btype, micro.device(own)) == (block.btype, composed.device(block))
