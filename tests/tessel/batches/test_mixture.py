"""Micro-batches by class: what is written, and ways to share them out."""

from __future__ import annotations

import pytest

from tessel.batches.mixture import Mixture, groupings
from tessel.errors import ScheduleError


def test_it_is_written_as_it_is_read() -> None:
    assert str(Mixture(classes=(4096, 8192), sequence=(0, 0, 1, 0))) == "4096x2,8192x1,4096x1"
    assert Mixture(classes=("a", "b"), sequence=(1, 0, 1)).counts == (1, 2)


@pytest.mark.parametrize(
    ("classes", "sequence"), [((1,), (0, 0)), ((1, 2), (0, 0)), ((1, 1), (0, 1)), ((1, 2), (0, 2, 1))]
)
def test_a_class_alone_is_refused(classes: tuple[int, ...], sequence: tuple[int, ...]) -> None:
    with pytest.raises(ScheduleError, match="a batch"):
        Mixture(classes=classes, sequence=sequence)


def test_groups_begin_with_those_given_and_hold_every_micro_batch_once() -> None:
    found = groupings((0, 0, 1, 1, 0, 1, 0, 1), (10, 37), 4)
    assert found[0] == ((0, 1), (2, 3), (4, 5), (6, 7))
    for way in found:
        assert sorted(each for group in way for each in group) == list(range(8))
        assert {len(group) for group in way} == {2}
    work = [(10, 37)[each] for each in (0, 0, 1, 1, 0, 1, 0, 1)]
    works = [[sum(work[each] for each in group) for group in way] for way in found]
    assert min(max(own) for own in works) == 47
