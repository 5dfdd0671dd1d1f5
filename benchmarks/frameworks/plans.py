"""The plans that frameworks are given: eight layers on two ranks, one of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessel.engine.actions import actions_from_csv, schedule_of_actions
from tessel.exports.recipe import Recipe, recipe_of_schedule
from tessel.handwritten.chimera import CHIMERA
from tessel.handwritten.construction.rule import Rule
from tessel.handwritten.gpipe import GPIPE
from tessel.handwritten.interleaved_1f1b import INTERLEAVED_1F1B
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.handwritten.zero_bubble.zb_h1 import ZB_H1
from tessel.handwritten.zero_bubble.zb_v import ZB_V
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.shapes import interleaved, vshape, xshape, zbv

LAYERS = ("tok_embeddings", *(f"layers.{index}" for index in range(6)), "lm_head")
"""Of torchtitan's debug model; its norm is with the head."""


def plans() -> Mapping[str, Recipe]:
    """Return recipes by what is peculiar to them."""
    chain = _recipe(_built(ONE_F_ONE_B, vshape(2)))
    return {
        "1F1B": chain,
        "GPipe": _recipe(_built(GPIPE, vshape(2))),
        "one micro-batch": _recipe(_built(ONE_F_ONE_B, vshape(2), micro_batches=1)),
        "micro-batches out of order": _recipe(_out_of_order()),
        "recomputing all": replace(chain, recompute=(True, True)),
        "recomputing the first stage": replace(chain, recompute=(True, False)),
        "two replicas": replace(chain, data_parallel=2),
        "interleaved": _recipe(_built(INTERLEAVED_1F1B, interleaved(2))),
        "zero bubble": _recipe(_built(ZB_H1, vshape(2, split_backward=True))),
        "zero bubble, V": _recipe(_built(ZB_V, zbv(2, split_backward=True))),
        "both ways": _recipe(_built(CHIMERA, xshape(2))),
    }


def one_rank() -> Recipe:
    """Return a recipe without a pipeline."""
    return _recipe(_built(GPIPE, vshape(1), micro_batches=2))


def _built(rule: Rule, placement: Placement, micro_batches: int = 4) -> Schedule:
    return rule.build(placement, micro_batches=micro_batches)


def _out_of_order() -> Schedule:
    """Return an order in which the first rank runs micro-batches otherwise than the last."""
    text = "0F0,0F2,0F1,0F3,0B2,0B0,0B3,0B1\n1F2,1B2,1F0,1B0,1F3,1B3,1F1,1B1\n"
    return schedule_of_actions(vshape(2), actions_from_csv(text))


def _recipe(schedule: Schedule) -> Recipe:
    found = recipe_of_schedule(schedule, model="debug model")
    count = found.num_stages // found.copies
    size = len(LAYERS) // count
    cuts = tuple((size * stage, size * (stage + 1) - 1) for stage in range(count))
    return replace(found, layers=LAYERS, cuts=cuts * found.copies, micro_batch=1)
