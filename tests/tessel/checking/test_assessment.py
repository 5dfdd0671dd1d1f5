"""The assessment on small pipelines that are worked out by hand, and that every promise of advice is kept."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from layer_plans import LINK, cluster, profile, saved_plan

from tessel.checking.advice import Advice, find_advice
from tessel.checking.assessment import Assessment, assess
from tessel.checking.case import (
    Case,
    PricedLayout,
    case_of_layout,
    case_of_schedule,
    orders_of_schedule,
    simulate,
)
from tessel.checking.sources import Pricing, case_of_csv, case_of_megatron
from tessel.engine.actions import actions_of
from tessel.exports.megatron import read_layout
from tessel.handwritten.gpipe import GPIPE
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.placement import Placement
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.training_step import build_step, estimate_step
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts
from tessel.schedule import Schedule
from tessel.search import find_schedule
from tessel.search.budget import SearchBudget
from tessel.shapes import vshape

GIB = 1 << 30


def plain(num_layers: int = 8) -> Profile:
    """Equal layers of 1 ms forward and 2 ms backward; nothing to send, nothing to update."""
    cost = StageCosts(forward_us=1000, backward_us=2000, update_us=0.0, saved_bytes=GIB)
    layers = tuple(Layer(f"l{index}") for index in range(num_layers))
    table = CostTable(micro_batch=1, tensor_parallel=1, costs=(cost,) * num_layers)
    return Profile(name="plain", layers=layers, tables=(table,))


def case_of(
    model: Profile, *cuts: tuple[int, int], micro_batches: int = 4, memory: int | None = None
) -> Case:
    devices = Cluster(devices=2, hop=Link(bytes_per_s=1e12), collective=LINK, memory_bytes=memory)
    layout = Layout(data_parallel=1, pipeline=2, micro_batch=1, micro_batches=micro_batches, cuts=cuts)
    priced = PricedLayout(
        profile=model, layout=layout, job=Job(cluster=devices, optimizer=OPTIMIZERS["none"])
    )
    orders = orders_of_schedule(ONE_F_ONE_B.build(vshape(2), micro_batches=micro_batches))
    return case_of_layout("x", priced, orders, micro_batches=micro_batches)


def search(
    placement: Placement, micro_batches: int, limits: tuple[int, ...] | None, best: Schedule | None
) -> Schedule | None:
    return find_schedule(
        placement, micro_batches=micro_batches, memory=limits, budget=SearchBudget(0.05), start_from=best
    )


def test_one_layer_moved_saves_what_is_worked_out_by_hand() -> None:
    """1F1B of four micro-batches on two devices, whose first one waits for its first backward.

    Cut 5 and 3, F 5 and B 10 on the first, 3 and 6 on the second: 4 x 15 + (3 + 6 - 5) = 64 ms.
    Cut 4 and 4, F 4 and B 8 on both: 4 x 12, a wait of 4 + 8 - 4 before the first backward, and of 4 + 8 - 8
    before the last: 60 ms.
    """
    case = case_of(plain(), (0, 4), (5, 7))
    assessment = assess(case)
    assert assessment.found is not None
    assert assessment.found.length == pytest.approx(64_000, rel=1e-3)
    best = assessment.advice[0]
    assert best.change == "move layer l4 from stage 0 to 1"
    assert best.saves == pytest.approx(4_000, rel=2e-3)
    assert best.saves_ratio == pytest.approx(1 / 16, rel=2e-3)
    assert assessment.is_good
    assert assessment.shares[0].device == 0


def test_what_is_best_already_gets_no_advice() -> None:
    assessment = assess(case_of(plain(), (0, 3), (4, 7)), search=search)
    assert assessment.advice == ()
    assert assessment.best is not None
    assert assessment.found is not None
    assert assessment.best.schedule.makespan == assessment.found.schedule.makespan >= assessment.lower_bound


def test_what_does_not_fit_is_told_how_it_would() -> None:
    """Two micro-batches in flight keep 2 x 4 GiB on the first device; recomputed, a layer keeps its input."""
    assessment = assess(case_of(plain(), (0, 3), (4, 7), memory=6 * GIB), search=search)
    assert not assessment.fits
    assert not assessment.is_good
    assert assessment.found is not None
    assert max(assessment.found.memory) == 8 * GIB
    kinds = {advice.kind: advice for advice in assessment.advice}
    assert all(advice.fits for advice in assessment.advice)
    assert kinds["recompute"].change == "recompute stage 0"
    assert kinds["recompute"].saves < 0
    assert "order" in kinds


def test_weights_alone_that_exceed_the_memory_are_a_case_too() -> None:
    pricing = Pricing(profile=profile(), job=Job(cluster=cluster(2, 1 << 20), optimizer=OPTIMIZERS["adam"]))
    assessment = assess(case_of_megatron("x", read_layout("Et*3|t*3L", 2), pricing, micro_batches=4))
    assert not assessment.fits
    assert assessment.best is None
    assert assessment.found is not None
    assert min(assessment.found.memory) > 1 << 20


def promises(assessment: Assessment) -> tuple[Advice, ...]:
    assert assessment.found is not None
    assert len(assessment.advice) <= 3
    assert [each.saves for each in assessment.advice] == sorted(
        (each.saves for each in assessment.advice), reverse=True
    )
    return assessment.advice


@pytest.mark.parametrize("halves", [True, False])
def test_every_promise_is_kept_by_a_new_estimate(halves: bool) -> None:
    """What a change saves is what the planner's estimate says of the changed layout and its schedule."""
    gpipe = actions_of(GPIPE.build(vshape(4), micro_batches=8))
    pricing = Pricing(
        profile=profile(14, halves=halves),
        job=Job(cluster=cluster(4), optimizer=OPTIMIZERS["adam"]),
        micro_batch=1,
    )
    case = case_of_csv("x", gpipe, pricing, cuts=((0, 3), (4, 7), (8, 11), (12, 15)))
    before = simulate(case)
    found = promises(assess(case, search=search))
    assert {"move"} <= {each.kind for each in found}
    assert ("split" in {each.kind for each in found}) == halves
    for advice in found:
        priced = advice.case.priced
        assert priced is not None
        step = build_step(priced.profile, priced.layout, priced.job)
        schedule = Schedule.of(
            step.placement,
            {
                (step.placement.index_by_name[start.block], start.micro_batch): start.start
                for start in advice.after.schedule.starts
            },
            micro_batches=advice.case.micro_batches,
        )
        estimate = estimate_step(step, schedule)
        assert before.length - estimate.step_us == pytest.approx(advice.saves)
        assert advice.saves > 0


def test_micro_batch_sizes_of_the_profile_are_tried() -> None:
    model = profile(6, sizes=(1, 2, 4))
    layout = Layout(data_parallel=1, pipeline=2, micro_batch=4, micro_batches=2, cuts=((0, 4), (5, 7)))
    plan = saved_plan(layout=layout, model=model)
    priced = PricedLayout(
        profile=model, layout=layout, job=Job(cluster=plan.cluster, optimizer=OPTIMIZERS["adam"])
    )
    case = case_of_layout("x", priced, orders_of_schedule(plan.schedule), micro_batches=2)
    found = {each.kind: each for each in find_advice(case, simulate(case), ())}
    assert found["micro-batch"].change.startswith("use 8 micro-batches of 1 in place of 2 of 4, in the")
    changed = found["micro-batch"].case.priced
    assert changed is not None
    assert changed.layout.global_batch == 8


def test_recomputation_without_need_is_left_out() -> None:
    layout = Layout(
        data_parallel=1,
        pipeline=2,
        micro_batch=1,
        micro_batches=4,
        cuts=((0, 4), (5, 7)),
        recompute=(True, True),
    )
    plan = saved_plan(layout=layout)
    priced = PricedLayout(
        profile=plan.profile,
        layout=layout,
        job=Job(cluster=cluster(2), optimizer=OPTIMIZERS["adam"]),
    )
    case = case_of_layout("x", priced, orders_of_schedule(plan.schedule), micro_batches=4)
    found = {each.kind: each.change for each in find_advice(case, simulate(case), ())}
    assert found["keep"] == "keep all activations in place of recomputing them"


def test_megatron_s_groups_are_tried_and_its_order_is_not() -> None:
    layout = read_layout("Et*2|t*3|t*3|t*3|t*3|t*3|t*3|t*2L", 4)
    pricing = Pricing(profile=profile(22), job=Job(cluster=cluster(4), optimizer=OPTIMIZERS["adam"]))
    assessment = assess(case_of_megatron("x", layout, pricing, micro_batches=16))
    kinds = [each.kind for each in assessment.advice]
    assert kinds[0] == "move"
    assert "order" not in kinds
    assert "split" not in kinds
    assert assessment.best is not None
    case = assessment.case
    tried = {words for words, _ in case.other_orders}
    assert "set microbatch_group_size_per_vp_stage to 8" in tried
    for _, orders in case.other_orders:
        simulate(replace(case, orders=orders))


def test_a_schedule_alone_is_compared_in_steps() -> None:
    gpipe = GPIPE.build(vshape(4), micro_batches=8)
    limited = msgspec.structs.replace(gpipe, memory=(4, 4, 4, 4))
    assessment = assess(case_of_schedule("x", limited))
    assert not assessment.fits
    assert [each.kind for each in assessment.advice] == ["order"]
    assert assessment.advice[0].change == "run the order of 1f1b"
    assert assessment.best is not None
    assert assessment.lower_bound <= assessment.best.schedule.makespan


def test_a_deadlock_still_gets_the_best_order() -> None:
    orders = ((("f0", 0), ("b0", 0), ("f0", 1), ("b0", 1)), (("f1", 1), ("f1", 0), ("b1", 1), ("b1", 0)))
    assessment = assess(Case(name="x", placement=vshape(2), orders=orders, micro_batches=2))
    assert len(assessment.deadlock) == 4
    assert not assessment.is_good
    assert assessment.best is not None
