"""Repetends cut to size: valid under the same limits, and as short as figures known beforehand."""

from __future__ import annotations

import pytest

from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.warmup_cooldown import unroll_repetend
from tessel.search.repetend.find_repetend import find_repetend
from tessel.shapes import kshape, mshape, nnshape, vshape, xshape
from tessel.validation import check_schedule
from tests.oracles.random_instances import random_instance


@pytest.mark.parametrize(
    ("placement", "memory", "copies"),
    [(vshape(4), 3, 3), (xshape(4), 4, 1), (mshape(4), 6, 1), (nnshape(4), 6, 1), (kshape(4), 6, 1)],
)
@pytest.mark.parametrize("micro_batches", [1, 2, 7])
def test_cut_repetend_is_valid_whatever_the_number_of_micro_batches(
    placement: Placement, memory: int, copies: int, micro_batches: int
) -> None:
    repetend = find_repetend(placement, memory=memory, max_copies=copies)
    whole = unroll_repetend(repetend, micro_batches=micro_batches)
    check_schedule(whole)
    assert whole.makespan <= micro_batches * sum(block.span for block in placement.blocks)


def test_limits_that_a_repetend_keeps_only_in_the_long_run_are_not_broken_before() -> None:
    # Here a micro-batch may free what it has not added yet: the first one has nobody to borrow from.
    placement, micro_batches, memory = random_instance(1801)
    found = find_schedule(placement, micro_batches=micro_batches, memory=memory, budget=SearchBudget(0.05))
    check_schedule(found)
    repetend = find_repetend(placement, memory=memory, max_copies=1)
    with pytest.raises(ScheduleError, match="the first of 2 micro-batches would hold more than the limits"):
        unroll_repetend(repetend, micro_batches=micro_batches)


@pytest.mark.parametrize(
    ("placement", "memory", "makespan"),
    [(vshape(4), 4, 76), (mshape(4), 6, 108), (kshape(4), 6, 100), (vshape(4, choose_backward=True), 4, 76)],
)
def test_a_repetend_unrolls_to_a_whole_schedule(placement: Placement, memory: int, makespan: int) -> None:
    repetend = find_repetend(placement, memory=memory, max_copies=1)
    whole = unroll_repetend(repetend, micro_batches=16)
    check_schedule(whole)
    assert whole.lower_bound <= whole.makespan <= makespan
    assert whole.memory == (memory,) * 4
    assert whole.repetend is not None
    assert whole.repetend.period == repetend.period


@pytest.mark.parametrize(
    ("placement", "memory", "makespans"),
    [
        (vshape(4), 4, (44, 76)),
        (xshape(4), 4, (70, 134)),
        (mshape(4), 6, (60, 108)),
        pytest.param(nnshape(4), 6, (76, 140), marks=pytest.mark.slow),
        (kshape(4), 6, (52, 100)),
    ],
)
def test_whole_schedules_reach_the_known_totals(
    placement: Placement, memory: int, makespans: tuple[int, int]
) -> None:
    for micro_batches, makespan in zip((8, 16), makespans, strict=True):
        found = find_schedule(placement, micro_batches=micro_batches, memory=memory, budget=SearchBudget(1.5))
        assert found.makespan <= makespan
