"""Choose a batch of schedules to measure: good ones that are diverse.

A tuner measures the candidates with the highest scores. These are often similar: they take the same time, so
that measuring one makes the others redundant. Here the best of a group of similar schedules keeps its score,
and the others are penalised, the more of them there are. Schedules are similar if their features differ
little, relative to the spread among the first candidates. Checked in tests/cost_model/test_schedule_batch.py.

Source: local penalties within a batch follow González et al., "Batch Bayesian Optimization via Local
Penalization", AISTATS 2016; here they multiply scores, and reach as far for every schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

PENALTY = 0.3
"""Share of its score that a schedule loses to an equal one before it: of 0, 0.03, 0.1 and 0.3 the best in
replays."""

_REACH = 0.3
"""Root mean square difference at which schedules are alike, in standard deviations of the features."""

_FARTHEST = 5.0
"""Standard deviations that a feature may differ by: some are rare and large."""


@dataclass(frozen=True, slots=True)
class _Leader:
    name: str
    place: Array
    score: float


class ScheduleBatch:
    """The schedules with the highest scores so far, and what the others' are worth beside them."""

    def __init__(self, *, size: int = 16, penalty: float = PENALTY) -> None:
        """Begin without schedules.

        Args:
            size: how many are going to be measured.
            penalty: share of its score that a schedule loses to each equal one before it, 0 to 1.
        """
        self.size = size
        self.penalty = penalty
        self.leaders: list[_Leader] = []
        self.centre: Array | None = None
        self.spread: Array | None = None

    def lower(self, names: Sequence[str], rows: npt.NDArray[np.float32], scores: Array) -> Array:
        """Return the scores, lower for what is like a schedule with a higher one, of this call or earlier.

        A schedule that leads keeps the score that it was given first.

        Args:
            names: equal for equal schedules.
            rows: features, shape (num_schedules, num_features).
            scores: of each schedule, not negative.
        """
        if not len(scores):
            return scores
        places = self._places(rows)
        lowered = np.asarray(scores, dtype=np.float64).copy()
        is_open = np.ones(len(lowered), dtype=bool)
        for leader in self.leaders:
            self._settle(leader, names, places, lowered, is_open)
        for _ in range(self.size):
            if not is_open.any():
                break
            best = int(np.argmax(np.where(is_open, lowered, -np.inf)))
            if len(self.leaders) == self.size and lowered[best] <= self.leaders[-1].score:
                break
            leader = _Leader(names[best], places[best], float(lowered[best]))
            self.leaders = sorted([*self.leaders, leader], key=lambda each: -each.score)[: self.size]
            self._settle(leader, names, places, lowered, is_open)
        return lowered

    def _places(self, rows: npt.NDArray[np.float32]) -> Array:
        """Return features on one scale, clipped."""
        if self.centre is None or self.spread is None:
            self.centre = rows.mean(axis=0, dtype=np.float64)
            deviation = rows.std(axis=0, dtype=np.float64)
            self.spread = np.where(deviation > 0, deviation, np.inf)
        return np.asarray(np.clip((rows - self.centre) / self.spread, -_FARTHEST, _FARTHEST))

    def _settle(
        self,
        leader: _Leader,
        names: Sequence[str],
        places: Array,
        lowered: Array,
        is_open: npt.NDArray[np.bool_],
    ) -> None:
        """Give the leader its score wherever it occurs, and lower what is like it and is not settled."""
        is_same = np.asarray([name == leader.name for name in names])
        lowered[is_same] = leader.score
        is_open &= ~is_same
        distance = np.sqrt(np.mean((places - leader.place) ** 2, axis=1))
        lowered[is_open] *= 1 - self.penalty * np.exp(-((distance[is_open] / _REACH) ** 2))
