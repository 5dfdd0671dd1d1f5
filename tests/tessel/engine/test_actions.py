"""Actions are what the schedule orders, in torch's cells and back, and bad orders are refused by name."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import draw_schedule

from tessel.engine import (
    Action,
    ActionKind,
    EngineError,
    RankActions,
    actions_from_csv,
    actions_of,
    actions_to_csv,
    renumbered,
    schedule_of_actions,
)
from tessel.engine.actions import check_chain, rank_by_stage, require_valid, torch_actions
from tessel.handwritten import HANDWRITTEN
from tessel.orders import device_orders
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.schedule import Schedule
from tessel.shapes import make_shape
from tessel.validation import check_schedule

ORDERS = """0F0,0F1,0B0,0B1
1F0,1B0,1F1,1B1
"""


@st.composite
def placements(draw: st.DrawFn, *, least_span: int = 1) -> Placement:
    """Chains of one stage or two a device, with a joint or a split backward, or the choice."""
    shape = draw(st.sampled_from(["vshape", "interleaved", "zbv", "mshape"]))
    backward = draw(st.sampled_from(["infer", "joint", "split_backward", "choose_backward"]))
    options = {} if backward == "joint" else {backward: True}
    spans = {
        "forward_span": draw(st.integers(least_span, 2)),
        "backward_span": draw(st.integers(2 * least_span, 3)),
    }
    return make_shape(shape, draw(st.integers(1, 3)), **options, **spans, lag=draw(st.integers(0, 1)))


@st.composite
def schedules(draw: st.DrawFn, *, least_span: int = 1) -> Schedule:
    """Any valid order at all."""
    placement = draw(placements(least_span=least_span))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return draw_schedule(placement, draw(st.integers(1, 3)), rng)


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_a_schedule_comes_back_from_its_actions_with_the_same_orders(schedule: Schedule) -> None:
    back = schedule_of_actions(schedule.placement, actions_of(schedule))
    assert device_orders(back.placement, back.start_by_block()) == device_orders(
        schedule.placement, schedule.start_by_block()
    )
    assert back.makespan <= schedule.makespan
    check_schedule(back)


@settings(max_examples=40, deadline=None)
@given(schedules(least_span=0))
def test_blocks_that_take_no_time_are_ordered_too(schedule: Schedule) -> None:
    require_valid(schedule)


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_the_csv_loses_nothing(schedule: Schedule) -> None:
    actions = actions_of(schedule)
    if any(len(ranks) > 1 for ranks in rank_by_stage(schedule)):
        with pytest.raises(EngineError, match="holds a stage on one rank only"):
            actions_to_csv(actions)
    else:
        assert actions_from_csv(actions_to_csv(actions)) == actions


@settings(max_examples=40, deadline=None)
@given(schedules())
def test_renumbered_micro_batches_ascend_in_the_last_stage_and_take_as_long(schedule: Schedule) -> None:
    actions = renumbered(actions_of(schedule))
    last = max(action.stage for own in actions for action in own)
    for own in actions:
        forwards = [a.micro_batch for a in own if (a.stage, a.kind) == (last, ActionKind.FORWARD)]
        assert forwards == sorted(forwards)
    back = schedule_of_actions(schedule.placement, actions)
    assert back.makespan == schedule_of_actions(schedule.placement, actions_of(schedule)).makespan
    assert back.micro_batches == schedule.micro_batches


@settings(max_examples=60, deadline=None)
@given(schedules(), st.randoms(use_true_random=False))
def test_an_order_with_one_action_missing_twice_or_misplaced_is_refused(
    schedule: Schedule, rng: random.Random
) -> None:
    ranks = [list(own) for own in actions_of(schedule)]
    rank = rng.choice([number for number, own in enumerate(ranks) if own])
    position = rng.randrange(len(ranks[rank]))
    match rng.randrange(3):
        case 0:
            lost = ranks[rank].pop(position)
            if not any(action.micro_batch == lost.micro_batch for own in ranks for action in own):
                ranks[rank].insert(position, lost._replace(stage=99))
        case 1:
            ranks[rank].append(ranks[rank][position])
        case _:
            ranks[rank][position] = ranks[rank][position]._replace(stage=99)
    with pytest.raises(EngineError):
        schedule_of_actions(schedule.placement, tuple(map(tuple, ranks)))


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from("0123456789FBIW,\n\r \"'\0é٣"), max_size=40))
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    refusal = ""
    actions: RankActions = ()
    try:
        actions = actions_from_csv(text)
    except EngineError as error:
        refusal = str(error)
    assert not refusal or "line " in refusal
    own = torch_actions(_on_one_rank_each(actions))
    assert tuple(filter(None, actions_from_csv(actions_to_csv(own)))) == tuple(filter(None, own))


def _on_one_rank_each(actions: RankActions) -> RankActions:
    """Give each rank stages of its own, so that the text may be written again."""
    return tuple(
        tuple(action._replace(stage=rank * 10**3 + action.stage % 10**3) for action in own)
        for rank, own in enumerate(actions)
    )


def test_cells_are_stage_letter_and_micro_batch() -> None:
    actions = actions_from_csv("0F0,,0B0\n\n1I12\n")
    assert actions == (
        (Action(0, ActionKind.FORWARD, 0), Action(0, ActionKind.BACKWARD, 0)),
        (),
        (Action(1, ActionKind.BACKWARD_INPUT, 12),),
    )


def test_the_drawn_orders_have_the_drawn_schedule() -> None:
    placement = make_shape("vshape", 2, backward_span=2)
    schedule = schedule_of_actions(placement, actions_from_csv(ORDERS))
    assert {(s.block, s.micro_batch): s.start for s in schedule.starts} == {
        ("f0", 0): 0, ("f0", 1): 1, ("b0", 0): 4, ("b0", 1): 7,
        ("f1", 0): 1, ("b1", 0): 2, ("f1", 1): 4, ("b1", 1): 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,1B0\n1F0,0B0\n", "rank 0 is given 1B0"),
        ("0F0,0B0\n", "actions of 1 ranks"),
        ("0F0,0B0,0F0\n1F0,1B0\n", "rank 0 runs 0F0 0F0 0B0"),
        ("0F0,0B0\n1F0\n", "rank 1 runs 1F0 of stage 1"),
        ("0F0,0I0,0W0\n1F0,1B0\n", "no such block"),
        ("0B0,0F0\n1F0,1B0\n", "wait for each other.*b0"),
        ("0F0,0F1,0B1,0B0\n1F1,1B1,1B0,1F0\n", "wait for each other"),
        ("\n\n", "no rank has an action"),
    ],
)
def test_orders_that_cannot_run_are_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        schedule_of_actions(make_shape("vshape", 2), actions_from_csv(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X1", "line 1 has the cell '0X1'"),
        ("0F0\n1F0,F", "line 2 has the cell 'F'"),
        ("0F99999999", "line 1 has the cell"),
        ("0F9999999", "line 1 has the cell"),
        ("0F٣", "line 1 has the cell"),
    ],
)
def test_a_bad_cell_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        actions_from_csv(text)


def test_a_stage_without_an_input_half_gets_one_in_the_csv_only() -> None:
    placement = Placement(
        devices=1,
        blocks=(
            Block(name="f0", kind=BlockKind.FORWARD, devices=(0,)),
            Block(name="w0", kind=BlockKind.BACKWARD_WEIGHT, devices=(0,)),
        ),
        edges=(Edge("f0", "w0"),),
    )
    schedule = Schedule.of(placement, {(0, 0): 0, (1, 0): 1}, micro_batches=1)
    text = actions_to_csv(actions_of(schedule))
    assert text == "0F0,0I0,0W0\n"
    assert actions_of(schedule_of_actions(placement, actions_from_csv(text))) == actions_of(schedule)


def test_every_hand_written_schedule_of_a_chain_can_be_written() -> None:
    for name in ("vshape", "zbv", "interleaved"):
        placement = make_shape(name, 2, split_backward=True)
        for rule in HANDWRITTEN:
            if rule.why_not(placement, 4, None) is None:
                schedule = rule.build(placement, micro_batches=4)
                require_valid(schedule)
                assert actions_to_csv(actions_of(schedule)).count("\n") == 2


def test_what_no_action_stands_for_is_refused() -> None:
    recompute = make_shape("vshape", 2, recompute=True)
    schedule = Schedule.of(recompute, {(0, 0): 0}, micro_batches=1)
    with pytest.raises(EngineError, match="recomputation"):
        actions_of(schedule)
    other = Placement(devices=1, blocks=(Block(name="sync", kind=BlockKind.OTHER, devices=(0,)),))
    with pytest.raises(EngineError, match="cannot be run"):
        actions_of(Schedule.of(other, {(0, 0): 0}, micro_batches=1))


def test_stages_that_are_no_chain_are_named() -> None:
    assert check_chain(make_shape("zbv", 3)) == 6
    with pytest.raises(EngineError, match=r"stage \d+ \(f\d+\) takes results of stages"):
        check_chain(make_shape("kshape", 2))
    skip = Placement(
        devices=1,
        blocks=tuple(Block(name=f"f{i}", kind=BlockKind.FORWARD, devices=(0,)) for i in range(3)),
        edges=(Edge("f0", "f1"), Edge("f1", "f2"), Edge("f0", "f2")),
    )
    with pytest.raises(EngineError, match="relay"):
        check_chain(skip)


def test_actions_need_no_torch() -> None:
    code = "import sys, tessel.engine, tessel.engine.actions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_a_stage_without_backward_behind_a_trained_one_is_refused() -> None:
    placement = make_shape("vshape", 3)
    blocks = tuple(block for block in placement.blocks if block.name != "b1")
    edges = [edge for edge in placement.edges if "b1" not in (edge.source, edge.target)]
    frozen = Placement(devices=3, blocks=blocks, edges=(*edges, Edge("b2", "b0")))
    with pytest.raises(EngineError, match=r"stage 1 \(f1\) has no backward, but stage 0 has one"):
        check_chain(frozen)
    assert check_chain(make_shape("finetune", 3)) == 4
