"""The drawing in each module's docstring is the schedule that the module builds."""

from __future__ import annotations

import importlib
import re

import pytest

from tessel.handwritten import HANDWRITTEN
from tessel.placement import BlockKind, Placement
from tessel.schedule import Schedule
from tessel.shapes import interleaved, vshape, xshape, zbv

RULES = {rule.name: rule for rule in HANDWRITTEN}
LETTERS = {
    BlockKind.FORWARD: "F",
    BlockKind.BACKWARD: "B",
    BlockKind.BACKWARD_INPUT: "B",
    BlockKind.BACKWARD_WEIGHT: "W",
    BlockKind.RECOMPUTE: "R",
}
JOINT = vshape(2, backward_span=2)
SPLIT = vshape(3, split_backward=True, backward_span=2)
SPLIT_V = zbv(2, split_backward=True, backward_span=2)
DRAWN = {
    "gpipe": ("gpipe", JOINT, 3),
    "1f1b": ("one_f_one_b", JOINT, 4),
    "eager-1f1b": ("eager_1f1b", JOINT, 4),
    "early-recompute-1f1b": ("early_recompute", vshape(2, recompute=True, backward_span=2), 3),
    "1f1b-limited": ("limited_1f1b", JOINT, 3),
    "interleaved": ("interleaved_1f1b", interleaved(2, backward_span=2), 4),
    "breadth-first": ("looped_bfs", interleaved(2, backward_span=2), 3),
    "zb-h1": ("zero_bubble.zb_h1", SPLIT, 4),
    "zb-h2": ("zero_bubble.zb_h2", SPLIT, 5),
    "interleaved-zb": ("zero_bubble.interleaved_zb", interleaved(2, split_backward=True, backward_span=2), 4),
    "zb-v": ("zero_bubble.zb_v", SPLIT_V, 4),
    "v-half": ("zero_bubble.v_half", SPLIT_V, 4),
    "v-min": ("zero_bubble.v_min", SPLIT_V, 4),
    "chimera": ("chimera", xshape(4, backward_span=2), 2),
    "dualpipe-v": ("dualpipe_v", SPLIT_V, 4),
}


@pytest.mark.parametrize("name", RULES)
def test_the_docstring_draws_what_the_rule_builds(name: str) -> None:
    module, placement, micro_batches = DRAWN[name]
    documentation = importlib.import_module(f"tessel.handwritten.{module}").__doc__ or ""
    drawn = re.findall(
        r"^    device \d   ((?:(?:[FBWR]\d|\.) *)+)", documentation, re.MULTILINE | re.IGNORECASE
    )
    memory = (1,) * placement.devices if RULES[name].needs_limit else None
    schedule = RULES[name].build(placement, micro_batches=micro_batches, memory=memory)
    assert [row.split() for row in drawn] == draw(schedule, placement)


def draw(schedule: Schedule, placement: Placement) -> list[list[str]]:
    """A letter and micro-batch a step; small letters for stages of the second chunk or direction."""
    rows = [["."] * schedule.makespan for _ in range(placement.devices)]
    for start in schedule.starts:
        block = placement.block(start.block)
        letter = LETTERS[block.kind]
        if int(re.findall(r"\d+", block.name)[0]) >= placement.devices:
            letter = letter.lower()
        for step in range(start.start, start.start + block.span):
            for device in block.devices:
                rows[device][step] = f"{letter}{start.micro_batch}"
    return rows
