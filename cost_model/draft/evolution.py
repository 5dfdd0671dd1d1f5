"""Evolve candidates towards what a score favours, and pick good ones that differ.

Everything happens on rows of numbers: a mutation exchanges one decision, or moves a prime factor between two
parts of a tile; a crossover takes each decision from one of two parents. All of these are legal tiles by
construction, and a generation is scored in one call. Checked in tests/cost_model/draft/test_evolution.py,
against exhaustive search where a space is small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import DecisionSpace, Rows, TileDecision

Array = npt.NDArray[np.float64]
Score = Callable[[Rows], Array]

CANDIDATES = 8000
"""Scored in one search, half of them at random, the others bred."""

_GENERATIONS = 8
_SURVIVORS = 256
_MUTATION_SHARE = 0.7
_MOVE_SHARE = 0.6
"""Of mutations of a tile, those that move one prime factor; the others draw the tile anew."""

PENALTY = 0.3
"""Share of its speed that a candidate loses to an equal one before it: of 0, 0.03, 0.1 and 0.3 the best in
replays."""

_REACH = 0.3
"""Root mean square difference at which candidates are alike, in standard deviations of the features."""

_FARTHEST = 5.0
"""Standard deviations that a feature may differ by: some are rare and large."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Distinct candidates with their scores, the best first."""

    rows: Rows
    scores: Array

    def __len__(self) -> int:
        return len(self.rows)


def evolve(
    space: DecisionSpace,
    score: Score,
    rng: np.random.Generator,
    *,
    candidates: int = CANDIDATES,
    start: Rows | None = None,
) -> Scored:
    """Return every candidate that was scored; equal arguments give equal candidates.

    Args:
        score: of candidates, larger is better.
        candidates: how many are scored at most; a smaller space is scored whole.
        start: candidates to begin with beside random ones, such as the best that is known.
    """
    if space.num_candidates <= candidates:
        rows = _all_rows(space)
        return _sorted(rows, score(rows))
    drawn = space.sample(candidates // 2, rng)
    rows = _distinct(drawn if start is None else np.concatenate([start, drawn]))
    found = _sorted(rows, score(rows))
    for _ in range(_GENERATIONS):
        bred = _breed(space, found.rows[:_SURVIVORS], candidates // 2 // _GENERATIONS, rng)
        new = _unknown(_distinct(bred), found.rows)
        if not len(new):
            continue
        found = _sorted(np.concatenate([found.rows, new]), np.concatenate([found.scores, score(new)]))
    return found


def pick_diverse(
    found: Scored, features: npt.NDArray[np.float32], count: int, *, penalty: float = PENALTY
) -> npt.NDArray[np.int64]:
    """Return the indices of candidates to measure: the best first, then good ones that are unlike it.

    Those with the highest scores are often alike and take the same time. So the best of a group keeps its
    speed, and the others lose a share of theirs, the more of them there are.

    Args:
        found: candidates whose scores are logarithms of relative speed.
        features: of each candidate.
        count: how many; fewer where there are not as many.
        penalty: share of its speed that a candidate loses to each equal one before it, 0 to 1.

    Source: local penalties within a batch follow González et al., "Batch Bayesian Optimization via Local
    Penalization", AISTATS 2016; here they multiply scores, and reach as far for every candidate.
    """
    if not len(found):
        return np.zeros(0, dtype=np.int64)
    deviation = features.std(axis=0, dtype=np.float64)
    spread = np.where(deviation > 0, deviation, np.inf)
    places = np.clip((features - features.mean(axis=0, dtype=np.float64)) / spread, -_FARTHEST, _FARTHEST)
    speeds = np.exp(found.scores - found.scores.max())
    is_open = np.ones(len(found), dtype=bool)
    for _ in range(min(count, len(found))):
        best = int(np.argmax(np.where(is_open, speeds, -np.inf)))
        is_open[best] = False
        distance = np.sqrt(np.mean((places[is_open] - places[best]) ** 2, axis=1))
        speeds[is_open] *= 1 - penalty * np.exp(-((distance / _REACH) ** 2))
    return np.argsort(-speeds, kind="stable")[:count]


def mutate(space: DecisionSpace, rows: Rows, rng: np.random.Generator) -> Rows:
    """Return the rows with one decision of each changed; a decision with one value stays."""
    changed = rows.copy()
    open_columns = np.asarray([index for index, size in enumerate(space.sizes) if size > 1])
    if not len(open_columns):
        return changed
    for row in changed:
        column = int(rng.choice(open_columns))
        is_tile = column > 0 and isinstance(space.kinds[column - 1], TileDecision)
        if is_tile and rng.random() < _MOVE_SHARE:
            row[column] = _moved(space, column - 1, int(row[column]), rng)
        else:
            row[column] = rng.integers(space.sizes[column])
    return changed


def _moved(space: DecisionSpace, position: int, row: int, rng: np.random.Generator) -> int:
    """Return the tile with a prime factor moved from one part to another; the same if that is not legal."""
    factors = space.tables[position][row]
    givers = np.flatnonzero(factors > 1)
    if not len(givers):
        return row
    source = int(rng.choice(givers))
    target = (source + int(rng.integers(1, len(factors)))) % len(factors)
    prime = int(rng.choice(_primes_of(int(factors[source]))))
    moved = factors.copy()
    moved[source] //= prime
    moved[target] *= prime
    found = space.find_tile(position, tuple(map(int, moved)))
    return row if found is None else found


def _primes_of(number: int) -> list[int]:
    primes, candidate = [], 2
    while number > 1:
        if candidate * candidate > number:
            candidate = number
        if number % candidate == 0:
            primes.append(candidate)
            while number % candidate == 0:
                number //= candidate
        candidate += 1
    return primes


def _breed(space: DecisionSpace, parents: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Return children of the parents, of which the first are the likeliest."""
    weights = 1.0 / np.arange(1, len(parents) + 1) ** 0.5
    weights /= weights.sum()
    first, second = (parents[rng.choice(len(parents), size=count, p=weights)] for _ in range(2))
    is_mutant = rng.random(count) < _MUTATION_SHARE
    children = np.where(rng.random(first.shape) < 0.5, first, second)
    children[is_mutant] = mutate(space, first[is_mutant], rng)
    return children


def _all_rows(space: DecisionSpace) -> Rows:
    grids = np.meshgrid(*(np.arange(size) for size in space.sizes), indexing="ij")
    return np.stack([grid.ravel() for grid in grids], axis=1).astype(np.int64)


def _distinct(rows: Rows) -> Rows:
    _, first = np.unique(rows, axis=0, return_index=True)
    return rows[np.sort(first)]


def _unknown(rows: Rows, known: Rows) -> Rows:
    seen = set(map(bytes, np.ascontiguousarray(known)))
    return rows[[bytes(row) not in seen for row in np.ascontiguousarray(rows)]]


def _sorted(rows: Rows, scores: Array) -> Scored:
    order = np.argsort(-scores, kind="stable")
    return Scored(rows[order], scores[order])
