"""The repeating part of a finished schedule, by hand and by the independent validation."""

from __future__ import annotations

import numpy as np
import pytest

from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.repeating_part import find_repeating_part
from tessel.search.model.instance import build_instance
from tessel.shapes import SHAPES, make_shape, vshape
from tessel.validation import find_violations


def test_one_forward_one_backward_repeats_every_four_steps() -> None:
    placement = vshape(1)
    instance = build_instance(placement, micro_batches=5, memory=None)
    # f0 f1 b0 f2 b1 f3 b2 f4 b3 b4, a forward 1 and a backward 3 steps long
    start = np.array([0, 2, 1, 6, 5, 10, 9, 14, 13, 17])
    found = find_repeating_part(instance, start)
    assert found is not None
    assert (found.period, found.micro_batches, found.optimal) == (4, 1, True)
    assert (found.start, found.end) == (1, 17)


def test_all_forwards_then_all_backwards_does_not_repeat() -> None:
    placement = vshape(1)
    instance = build_instance(placement, micro_batches=3, memory=None)
    assert find_repeating_part(instance, np.array([0, 3, 1, 6, 2, 9])) is None


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_repetends_of_found_schedules_are_what_they_say(shape: str) -> None:
    found = find_schedule(make_shape(shape, 4), micro_batches=16, memory=8, budget=SearchBudget(0.1))
    assert not find_violations(found)
