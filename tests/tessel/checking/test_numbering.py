"""A wrong number is told where it is, and not where it is missed."""

from __future__ import annotations

import pytest

from tessel.checking.numbering import check_numbering
from tessel.checking.sources import case_of_csv
from tessel.engine.actions import RankActions, actions_from_csv, actions_to_csv
from tessel.errors import ScheduleError
from tessel.exports.megatron import MegatronLayout, megatron_orders

ORDERS = megatron_orders(MegatronLayout(("Et", "t", "t", "tL"), 4), 8)


def changed(old: str, new: str) -> RankActions:
    text = actions_to_csv(ORDERS)
    assert old in text
    return actions_from_csv(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("3F0,", "3F8,", r"rank 3 runs 3F8 and no 3F0, and most stages run micro-batches 0 to 7"),
        ("1F0,", "", r"rank 1 runs no 1F0, and"),
        ("2F7,", "2F7,2F8,", r"rank 2 runs 2F8, and most"),
        ("0B7", "0B9", r"rank 0 runs 0B9, and the forwards are of micro-batches 0 to 7"),
    ],
)
def test_the_stage_that_differs_is_named(old: str, new: str, problem: str) -> None:
    with pytest.raises(ScheduleError, match=problem):
        check_numbering(changed(old, new))
    with pytest.raises(ScheduleError, match=problem):
        case_of_csv("orders.csv", changed(old, new))


def test_numbers_begin_at_zero() -> None:
    with pytest.raises(ScheduleError, match="numbered 1 to 2, and the 2 of a step are 0 to 1; renumber them"):
        check_numbering(actions_from_csv("0F1,0F2,0B1,0B2\n1F1,1B1,1F2,1B2\n"))
    with pytest.raises(ScheduleError, match="most stages run no forward"):
        check_numbering(actions_from_csv("0B0\n1B0\n"))


def test_right_orders_pass() -> None:
    check_numbering(ORDERS)


@pytest.mark.torch
def test_torchs_own_order_of_1f1b_is_told_from_a_right_one() -> None:
    """torch 2.13 numbers the last rank's first forward as its last but one too many."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    schedule = schedules.Schedule1F1B.__new__(schedules.Schedule1F1B)
    schedule._n_microbatches, schedule._num_stages, schedule.pp_group_size = 8, 4, 4
    order = schedule._get_pipeline_order()
    assert order is not None
    cells = [",".join("" if action is None else str(action) for action in order[rank]) for rank in range(4)]
    actions = actions_from_csv("".join(f"{line}\n" for line in cells))
    wrong = [action for own in actions for action in own if action.micro_batch >= 8]
    assert wrong
    with pytest.raises(ScheduleError, match="rank 3 runs 3F8 and no 3F0"):
        check_numbering(actions)
