"""Replays on arrays against longest paths on tasks, and memory against the schedule's own peaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessel.batches import Batch
from tessel.handwritten import HANDWRITTEN
from tessel.orders import Task, earliest_starts
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.search.batches.replay import keeps_limits, makespans, replay_of, starts_of_sequence
from tessel.search.batches.sequences import (
    RuleReplays,
    candidate_sequences,
    improved_sequences,
    limits_array,
    rule_sequences,
)
from tessel.search.budget import SearchBudget
from tessel.shapes import vshape
from tests.samples.batches.batch_samples import batch_cases, batch_of

ONE_F_ONE_B = HANDWRITTEN[0]


@given(case=batch_cases(), data=st.data())
def test_a_replay_starts_every_task_where_longest_paths_do(
    case: tuple[Placement, Batch], data: st.DataObject
) -> None:
    placement, batch = case
    sequence = data.draw(st.permutations(range(batch.micro_batches)))
    orders = ONE_F_ONE_B.orders(placement, micro_batches=batch.micro_batches)
    replay = replay_of(placement, orders)
    taken = [[Task(task.block_index, sequence[task.micro_batch]) for task in order] for order in orders]
    expected = earliest_starts(placement, taken, batch)
    starts = starts_of_sequence(replay, batch, sequence)
    assert starts == expected
    schedule = Schedule.of(placement, starts, micro_batches=batch.micro_batches, batch=batch)
    order = np.array(sequence)
    spans, lags = batch.spans[order][None].astype(float), batch.lags[order][None].astype(float)
    assert makespans(replay, spans, lags).tolist() == [schedule.makespan]
    exact = np.array(schedule.peak_memory)
    assert keeps_limits(replay, batch.memory, exact, order)
    for device in range(placement.devices):
        less = exact.copy()
        less[device] -= 1
        assert not keeps_limits(replay, batch.memory, less, order)


def test_sequences_are_permutations_and_the_given_one_is_first() -> None:
    batch = batch_of(vshape(2), 7, 3)
    made = candidate_sequences(batch)
    assert next(iter(made.values())) == tuple(range(7))
    assert all(sorted(sequence) == list(range(7)) for sequence in made.values())
    work = batch.spans.sum(axis=1)
    assert [int(work[each]) for each in made["longest first"]] == sorted(work.tolist(), reverse=True)


@pytest.mark.parametrize("seed", range(3))
def test_exchanges_never_lengthen_and_keep_limits(seed: int) -> None:
    placement = vshape(3)
    batch = batch_of(placement, 8, seed)
    limits = (9, 7, 5)
    found = rule_sequences(RuleReplays(placement), batch, limits)
    assert found
    best = improved_sequences(found, placement, batch, limits, budget=SearchBudget(1), seed=seed)
    assert best.makespan <= found[0].makespan
    assert sorted(best.sequence) == list(range(8))
    assert keeps_limits(best.replay, batch.memory, limits_array(placement, limits), np.array(best.sequence))
