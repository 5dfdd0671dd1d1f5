"""Repetends cut to size: valid under the same limits, and as short as figures known beforehand."""

from __future__ import annotations

import pytest

from tessel.placement import Placement
from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.incumbent import makespan_of
from tessel.search.makespan.warmup_cooldown import cut_repetend, unroll_repetend
from tessel.search.model.instance import build_instance
from tessel.search.repetend.find_repetend import find_repetend
from tessel.shapes import kshape, mshape, nnshape, vshape, xshape
from tessel.validation import check_schedule
from tests.samples.schedule_samples import as_schedule


@pytest.mark.parametrize(
    ("placement", "memory", "copies"),
    [(vshape(4), 3, 3), (xshape(4), 4, 1), (mshape(4), 6, 1), (nnshape(4), 6, 1), (kshape(4), 6, 1)],
)
@pytest.mark.parametrize("micro_batches", [1, 2, 7])
def test_cut_repetend_is_valid_whatever_the_number_of_micro_batches(
    placement: Placement, memory: int, copies: int, micro_batches: int
) -> None:
    repetend = find_repetend(placement, memory=memory, max_copies=copies)
    instance = build_instance(placement, micro_batches=micro_batches, memory=(memory,) * 4)
    start = cut_repetend(instance, repetend)
    check_schedule(as_schedule(placement, instance.arrays, start, (memory,) * 4))
    assert makespan_of(instance.arrays, start) <= micro_batches * sum(
        block.span for block in placement.blocks
    )


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
        (nnshape(4), 6, (76, 140)),
        (kshape(4), 6, (52, 100)),
    ],
)
def test_whole_schedules_reach_the_known_totals(
    placement: Placement, memory: int, makespans: tuple[int, int]
) -> None:
    for micro_batches, makespan in zip((8, 16), makespans, strict=True):
        found = find_schedule(placement, micro_batches=micro_batches, memory=memory, budget=SearchBudget(1.5))
        assert found.makespan <= makespan
