"""Of schedules that are alike, the best keeps its score, and the others make room for different ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_model.schedule_batch import ScheduleBatch


def family(rng: np.random.Generator, centre: float, number: int) -> np.ndarray:
    """Return features of schedules that differ by little."""
    return (centre + 0.001 * rng.random((number, 5))).astype(np.float32)


def names_of(rows: np.ndarray) -> list[str]:
    return [each.tobytes().hex() for each in rows]


def test_a_batch_holds_schedules_of_several_kinds() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([family(rng, 0.0, 20), family(rng, 1.0, 20), family(rng, 2.0, 20)])
    scores = np.concatenate([np.full(20, 0.9), np.full(20, 0.8), np.full(20, 0.3)]) + 0.01 * rng.random(60)
    chosen = np.argsort(-ScheduleBatch(size=8).lower(names_of(rows), rows, scores))[:8]
    assert set(np.argsort(-scores)[:8] // 20) == {0}, "by their scores alone they are of one kind"
    assert list(chosen // 20).count(0) < 8
    assert {0, 1, 2} == set(chosen // 20)
    assert chosen[0] == np.argmax(scores)


def test_without_a_penalty_scores_stay() -> None:
    rng = np.random.default_rng(1)
    rows, scores = family(rng, 0.0, 30), rng.random(30)
    assert np.array_equal(ScheduleBatch(penalty=0.0).lower(names_of(rows), rows, scores), scores)


def test_later_ones_are_lowered_by_those_before_which_keep_their_scores() -> None:
    rng = np.random.default_rng(2)
    rows = np.concatenate([family(rng, 0.0, 2), family(rng, 1.0, 2)])
    names = names_of(rows)
    batch = ScheduleBatch(size=4, penalty=0.5)
    first = batch.lower(names[::2], rows[::2], np.asarray([0.9, 0.2]))
    assert list(first) == [0.9, 0.2]
    again = batch.lower(names, rows, np.asarray([0.9, 0.8, 0.2, 0.2]))
    assert list(again[::2]) == [0.9, 0.2]
    assert again[1] == pytest.approx(0.4, rel=1e-3)
    assert again[3] == pytest.approx(0.1, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 6))
def test_scores_stay_between_nothing_and_what_they_were(seed: int, number: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 3, (number, 2)).astype(np.float32)
    names, scores = [str(each) for each in range(number)], rng.random(number)
    batch = ScheduleBatch(size=size)
    lowered = batch.lower(names, rows, scores)
    assert np.all(lowered >= 0)
    assert np.all(lowered <= scores)
    assert lowered[np.argmax(scores)] == scores.max()
    assert len(batch.leaders) <= size
    assert np.array_equal(ScheduleBatch(size=size).lower(names, rows, scores), lowered)


def test_no_schedules_have_no_scores() -> None:
    assert ScheduleBatch().lower([], np.zeros((0, 3), np.float32), np.zeros(0)).shape == (0,)
