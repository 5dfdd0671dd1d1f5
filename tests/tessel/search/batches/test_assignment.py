"""Assignments to replicas: against every assignment of small batches, balancers, and the given order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import combinations, permutations

import numpy as np
import pytest

from tessel.batches import Batch, scaled_class
from tessel.batches.balancers import in_turns, largest_differencing, longest_first
from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.search.batches.assignment import Assignment, assign_micro_batches
from tessel.search.batches.assignment_bound import assignment_bound
from tessel.search.batches.find_batch_schedule import schedule_of_sequence
from tessel.search.batches.replay import sequence_makespan
from tessel.search.batches.sequences import RuleReplays, rule_sequences
from tessel.search.budget import LONGEST_S, SearchBudget
from tessel.shapes import vshape
from tessel.validation import check_schedule
from tests.samples.batches.batch_samples import batch_of, least_makespan

BALANCERS = (in_turns, longest_first, largest_differencing)


def partitions(members: tuple[int, ...], size: int) -> Iterator[list[tuple[int, ...]]]:
    """Yield every way to split members into groups of a size."""
    if not members:
        yield []
        return
    first, *rest = members
    for others in combinations(rest, size - 1):
        left = tuple(each for each in rest if each not in others)
        for more in partitions(left, size):
            yield [(first, *others), *more]


def under_1f1b(placement: Placement, batch: Batch, group: tuple[int, ...]) -> int:
    """Return the least makespan of 1F1B over all sequences of a group."""
    ((_, replay),) = RuleReplays(placement, ("1f1b",)).of(len(group))
    own = batch.taken(group)
    starts = np.zeros(len(replay.block), dtype=np.int64)
    return min(
        sequence_makespan(replay, own.spans, own.lags, np.array(sequence), starts)
        for sequence in permutations(range(len(group)))
    )


@pytest.mark.parametrize("seed", range(3))
def test_small_batches_are_shared_out_as_well_as_by_trying_all(seed: int) -> None:
    placement = vshape(2)
    batch = batch_of(placement, 6, seed, classes=6)
    truth = min(
        max(least_makespan(placement, batch.taken(group), None) or 0 for group in groups)
        for groups in partitions(tuple(range(6)), 3)
    )
    found = assign_micro_batches(placement, batch, replicas=2, budget=SearchBudget(0.5))
    assert found.lower_bound <= truth <= found.makespan
    by_rule = min(
        max(under_1f1b(placement, batch, group) for group in groups)
        for groups in partitions(tuple(range(6)), 3)
    )
    assert found.makespan <= by_rule


@pytest.mark.parametrize("seed", range(3))
def test_it_is_never_slower_than_balancers_or_the_given_order(seed: int) -> None:
    placement = vshape(4)
    batch = batch_of(placement, 32, seed, classes=9)
    found = assign_micro_batches(placement, batch, replicas=4, budget=SearchBudget(0.3))
    assert sorted(each for group in found.replicas for each in group) == list(range(32))
    assert {len(group) for group in found.replicas} == {8}
    for group, schedule in zip(found.replicas, found.schedules, strict=True):
        check_schedule(schedule)
        assert schedule.classes == batch.taken(group)
    assert found.given is not None
    assert found.lower_bound <= found.makespan <= found.given
    work = batch.spans.sum(axis=1).tolist()
    for balance in BALANCERS:
        worst = 0
        for group in balance(work, 4):
            own = batch.taken(group)
            rules = RuleReplays(placement, ("1f1b",))
            as_given = next(each for each in rule_sequences(rules, own, None))
            worst = max(worst, schedule_of_sequence(placement, own, as_given).makespan)
        assert found.makespan <= worst


@pytest.mark.parametrize(
    ("factors", "replicas", "is_exact"),
    [
        ((5, 5, 5, 1, 1, 1), 2, True),  # two long ones somewhere
        ((10, 10, 10, 8, 7, 1, 1, 1, 1), 3, True),  # two of the four longest share a replica
        ((13, 9, 6, 5, 2, 1), 2, True),  # no three have 18
        ((9, 8, 7, 5, 3, 2, 2, 1), 4, False),
        ((6, 5, 5, 2, 1, 1, 1, 1), 2, False),
    ],
)
def test_bounds_of_one_device_are_no_more_than_the_best_of_all_partitions(
    factors: tuple[int, ...], replicas: int, is_exact: bool
) -> None:
    placement = vshape(1)
    names = sorted(set(factors))
    classes = tuple(scaled_class(placement, str(each), each) for each in names)
    batch = Batch(classes=classes, sequence=tuple(map(names.index, factors)))
    work = batch.spans.sum(axis=1)
    groups = partitions(tuple(range(len(factors))), len(factors) // replicas)
    truth = min(max(int(work[list(group)].sum()) for group in each) for each in groups)
    found = assignment_bound(placement, batch, replicas=replicas, equal=True)
    assert found == truth if is_exact else found <= truth


@pytest.mark.parametrize("balance", BALANCERS)
def test_balancers_make_groups_of_equal_size(balance: object) -> None:
    work = np.random.default_rng(1).integers(1, 100, 24).tolist()
    groups = balance(work, 6)  # type: ignore[operator]  # one of BALANCERS
    assert sorted(each for group in groups for each in group) == list(range(24))
    sums = [sum(work[each] for each in group) for group in groups]
    assert max(sums) <= 1.3 * sum(work) / 6
    assert {len(group) for group in groups} == {4}


def test_differencing_finds_the_even_partition_of_an_example() -> None:
    groups = largest_differencing([8, 7, 6, 5, 4, 2], 2)
    assert sorted(sum([8, 7, 6, 5, 4, 2][each] for each in group) for group in groups) == [16, 16]


@pytest.mark.parametrize("seed", range(3))
def test_consecutive_runs_are_the_best_of_all(seed: int) -> None:
    placement = vshape(2)
    batch = batch_of(placement, 7, seed, classes=7)
    found = assign_micro_batches(placement, batch, replicas=3, keep_order=True, budget=SearchBudget(0))
    assert [each for group in found.replicas for each in group] == list(range(7))
    rules = RuleReplays(placement, ("1f1b", "eager-1f1b"))

    def in_order(first: int, last: int) -> int:
        own = batch.taken(range(first, last))
        given = [
            each for each in rule_sequences(rules, own, None) if each.sequence == tuple(range(last - first))
        ]
        return given[0].makespan

    best = min(max(in_order(0, a), in_order(a, b), in_order(b, 7)) for a, b in combinations(range(1, 7), 2))
    worst = max(in_order(group[0], group[-1] + 1) for group in found.replicas)
    assert worst == best
    assert found.makespan <= best


def test_limits_hold_in_every_replica() -> None:
    placement = vshape(3)
    batch = batch_of(placement, 8, 2)
    limits = (4, 4, 4)
    found = assign_micro_batches(placement, batch, replicas=2, memory=limits, budget=SearchBudget(0.2))
    for schedule in found.schedules:
        check_schedule(schedule)
        assert max(schedule.peak_memory) <= 4


def test_a_bound_is_no_more_than_a_single_pipeline_takes() -> None:
    for seed in range(6):
        placement = vshape(1 + seed % 3)
        batch = batch_of(placement, 4, seed)
        truth = least_makespan(placement, batch, None)
        assert truth is not None
        assert assignment_bound(placement, batch, replicas=1, equal=True) <= truth


def test_what_cannot_be_shared_out_is_refused() -> None:
    batch = batch_of(vshape(2), 5, 0)
    with pytest.raises(ScheduleError, match="5 micro-batches cannot be shared out to 2 replicas equally"):
        assign_micro_batches(vshape(2), batch, replicas=2)
    with pytest.raises(ScheduleError, match="5 micro-batches cannot be shared out to 6 replicas;"):
        assign_micro_batches(vshape(2), batch, replicas=6, keep_order=True)


def test_an_interrupt_gives_the_best_so_far_at_any_time() -> None:
    placement = vshape(3, forward_span=20, backward_span=40)
    classes = tuple(scaled_class(placement, str(factor), factor) for factor in (1.0, 2.0, 3.5))
    batch = Batch(classes=classes, sequence=(0, 1, 2, 1, 0, 2, 1, 1))
    endless = SearchBudget(work_limit=1e9, time_limit_s=LONGEST_S)
    found: list[Assignment] = []
    search = threading.Thread(
        target=lambda: found.append(assign_micro_batches(placement, batch, replicas=2, budget=endless))
    )
    search.start()
    while not endless.has_answer:
        search.join(0.01)
    endless.interrupt()
    search.join()
    assert endless.stopped_by in ("interrupt", "proven")
    assert sorted(each for group in found[0].replicas for each in group) == list(range(8))
    assert found[0].given is not None
    assert found[0].lower_bound <= found[0].makespan <= found[0].given
