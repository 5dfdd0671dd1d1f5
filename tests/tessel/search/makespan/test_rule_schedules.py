"""Hand-written rules as starts of tasks: what the rules themselves build."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.handwritten import HANDWRITTEN, StreamRule
from tessel.handwritten.construction.greedy import Preference, run_greedily
from tessel.placement import Block, BlockKind, Placement
from tessel.schedule.schedule import peak_memory
from tessel.search.makespan.device_orders import orders_of_devices, starts_of_devices
from tessel.search.makespan.incumbent import makespan_of
from tessel.search.makespan.rule_schedules import Simulation, may_pay, rule_schedules, simulate
from tessel.search.model.instance import InstanceArrays, build_instance
from tessel.shapes import SHAPES, interleaved, make_shape, vshape, zbv

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
        starts = list(rule_schedules(rule, instance, variants=True))
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
    deadlocked = [np.concatenate([b0, f0]), np.concatenate([f1, b1])]
    assert orders_of_devices(arrays, deadlocked) is None
    assert starts_of_devices(arrays, deadlocked) is None


def test_adding_and_freeing_in_one_step_counts_as_the_rules_count_it() -> None:
    blocks = (
        Block(name="f", devices=(0,), span=0, memory=1),
        Block(name="b", devices=(0,), span=0, memory=-1),
        Block(name="work", devices=(0,), span=2),
    )
    placement = Placement(devices=1, blocks=blocks)
    instance = build_instance(placement, micro_batches=3, memory=(1,))
    for rule in HANDWRITTEN:
        starts = list(rule_schedules(rule, instance, variants=True))
        assert bool(starts) == (rule.why_not(placement, 3, (1,)) is None)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    devices=st.integers(2, 4),
    variant=st.sampled_from(["split_backward", "choose_backward", "recompute", "infer"]),
    spans=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    micro_batches=st.integers(1, 9),
    limit=st.integers(0, 3),
    preference=st.builds(
        Preference, opening_first=st.booleans(), deepest_first=st.booleans(), is_split=st.booleans()
    ),
)
def test_what_is_listed_by_preference_is_what_is_simulated(
    *,
    shape: str,
    devices: int,
    variant: str,
    spans: list[int],
    micro_batches: int,
    limit: int,
    preference: Preference,
) -> None:
    placement = make_shape(
        shape, devices, forward_span=spans[0], backward_span=spans[1], lag=spans[2] - 1, **{variant: True}
    )
    flow = preference.flow(placement)
    groups = preference.groups(flow)
    limits = dict.fromkeys(flow.opening, limit) if limit else flow.depth
    simulated = run_greedily(flow, micro_batches=micro_batches, in_flight=limits, groups=groups)
    arrays = build_instance(placement, micro_batches=micro_batches, memory=None).arrays
    found = simulate(arrays, flow, limits, groups)
    assert found is not None
    listed = {
        (task % arrays.num_blocks, task // arrays.num_blocks): int(found.start[task])
        for task in np.flatnonzero(found.start >= 0).tolist()
    }
    assert listed == simulated
    assert found.makespan == max(
        start + placement.blocks[block].span for (block, _), start in simulated.items()
    )
    assert tuple(found.peaks) == peak_memory(placement, simulated)


def test_simulations_that_cannot_pay_end_early_and_others_do_not() -> None:
    placement = zbv(16, split_backward=True, lag=1)
    rule = next(each for each in HANDWRITTEN if each.name == "1f1b")
    assert isinstance(rule, StreamRule)
    free = build_instance(placement, micro_batches=256, memory=None)
    (start,) = rule_schedules(rule, free, variants=False)
    makespan = makespan_of(free.arrays, start)
    (again,) = rule_schedules(rule, free, variants=False, known=makespan + 1)
    assert (again == start).all()
    arrays, asked = free.arrays, rule.generalised
    assert asked is not None
    flow = asked.flow(placement)
    limits, groups = asked.in_flight(flow), asked.groups(flow)

    def simulated(arrays: InstanceArrays, known: int) -> Simulation | None:
        return simulate(arrays, flow, limits, groups, goes_on=lambda listing: may_pay(arrays, listing, known))

    assert simulated(arrays, 2056) is None  # 256 x 8 steps of work and eight more
    tight = build_instance(placement, micro_batches=256, memory=8).arrays
    assert simulated(tight, makespan + 1) is None
    assert simulate(tight, flow, limits, groups) is not None


def test_limits_in_flight_are_left_out_where_they_can_be_spared() -> None:
    placement = zbv(8, split_backward=True)
    rule = next(each for each in HANDWRITTEN if each.name == "1f1b-limited")
    instance = build_instance(placement, micro_batches=256, memory=12)
    answers = iter([False, False, True])
    assert not list(rule_schedules(rule, instance, variants=False, is_dispensable=lambda: next(answers)))
    assert next(answers, None) is None
    assert list(rule_schedules(rule, instance, variants=False, is_dispensable=lambda: False))
