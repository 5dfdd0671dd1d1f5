"""First schedules: hand-written rules as they are built, and as far as time goes."""

from __future__ import annotations

import numpy as np
import pytest

from tessel.handwritten import HANDWRITTEN
from tessel.placement import Block, BlockKind, Placement
from tessel.search import find_schedule
from tessel.search.budget import SearchBudget
from tessel.search.makespan import initial_schedules as rules
from tessel.search.makespan.device_orders import orders_of_devices
from tessel.search.makespan.initial_schedules import _starts_of
from tessel.search.model.instance import build_instance
from tessel.shapes import interleaved, make_shape, vshape, zbv
from tessel.validation import check_schedule

PLACEMENTS = (
    vshape(4, backward_span=2, lag=1),
    vshape(4, split_backward=True, forward_span=(3, 5, 4, 4), lag=1),
    vshape(3, choose_backward=True),
    vshape(3, recompute=True, recompute_memory=0),
    interleaved(3, chunks=2, forward_span=2),
    zbv(3, split_backward=True, forward_span=5, lag=2),
    make_shape("xshape", 4),
    make_shape("nnshape", 4),
    make_shape("kshape", 4, lag=3),
)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("micro_batches", [1, 5, 8])
@pytest.mark.parametrize("limit", [None, 3, 6])
def test_rules_start_as_they_are_built(placement: Placement, micro_batches: int, limit: int | None) -> None:
    memory = None if limit is None else (limit,) * placement.devices
    instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    has_recompute = any(block.kind is BlockKind.RECOMPUTE for block in placement.blocks)
    fitting = []
    for rule in HANDWRITTEN:
        starts = list(_starts_of(rule, instance))
        if rule.why_not(placement, micro_batches, memory) is not None:
            continue
        start = starts[0]
        fitting.append(rule.name)
        built = rule.build(placement, micro_batches=micro_batches, memory=memory).start_by_block()
        for (block, micro_batch), when in built.items():
            own = start[micro_batch * instance.num_blocks + block]
            # 1F1B lets a recomputation wait for its gradient; here it starts at once.
            assert own == when or (has_recompute and own < when)
        assert (start >= 0).sum() == len(built)
    assert fitting or limit == 3


def test_orders_that_wait_for_each_other_are_none() -> None:
    arrays = build_instance(vshape(2), micro_batches=1, memory=None).arrays
    f0, f1, b1, b0 = (arrays.serial_order[place : place + 1] for place in range(4))
    orders = orders_of_devices(arrays, [np.concatenate([f0, b0]), np.concatenate([f1, b1])])
    assert orders is not None
    assert orders.sequence.tolist() == arrays.serial_order.tolist()
    assert orders_of_devices(arrays, [np.concatenate([b0, f0]), np.concatenate([f1, b1])]) is None


def test_adding_and_freeing_in_one_step_counts_as_the_rules_count_it() -> None:
    blocks = (
        Block(name="f", devices=(0,), span=0, memory=1),
        Block(name="b", devices=(0,), span=0, memory=-1),
        Block(name="work", devices=(0,), span=2),
    )
    placement = Placement(devices=1, blocks=blocks)
    instance = build_instance(placement, micro_batches=3, memory=(1,))
    for rule in HANDWRITTEN:
        starts = list(_starts_of(rule, instance))
        assert bool(starts) == (rule.why_not(placement, 3, (1,)) is None)


def test_rules_that_take_too_much_work_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_TASKS_UNASKED", 0)
    placement = zbv(3, split_backward=True)
    hurried = find_schedule(placement, micro_batches=24, memory=9, budget=SearchBudget(0.003))
    check_schedule(hurried)
    assert hurried.found_by == "serial"
    patient = find_schedule(placement, micro_batches=24, memory=9, budget=SearchBudget(0.3))
    check_schedule(patient)
    assert patient.makespan < hurried.makespan
