"""Carry the best decisions of similar kernels over to a kernel, without a model.

Kernels are similar whose loops' extents have a small distance in logarithms, among those with the same
decisions to take. A tile is carried over as the legal tile with the nearest factors, the innermost counting
most, since they decide what stays in registers. Checked in tests/cost_model/draft/test_neighbours.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import DecisionSpace, LocationDecision, Rows, TileDecision
from cost_model.draft.draft_model import DraftTrials

_PART_WEIGHTS = {
    5: (0.1, 0.3, 1.0, 0.7, 0.7),
    3: (0.3, 1.0, 0.7),
    4: (0.1, 0.5, 0.7, 1.0),
    2: (0.5, 1.0),
}
"""By number of parts, what an octave of each is worth."""

_SLOWDOWN_WEIGHT = 2.0
"""Octaves of distance that a trial twice as slow as its kernel's best is worth."""


def distance(first: DecisionSpace, second: DecisionSpace) -> float:
    """Return how far apart two kernels are, in octaves of extents; infinite if decisions differ in kind."""
    if first.signature != second.signature:
        return float("inf")
    octaves = [
        np.log2(one.extent) - np.log2(other.extent)
        for one, other in zip(first.kernel.loops, second.kernel.loops, strict=True)
    ]
    step = float(first.kernel.num_blocks != second.kernel.num_blocks)
    return float(np.sqrt(np.sum(np.square(octaves)) + step**2))


def neighbour_rows(space: DecisionSpace, known: Sequence[DraftTrials], count: int) -> Rows:
    """Return candidates after the best trials of the nearest kernels, the most promising first.

    Args:
        space: of the kernel at hand.
        known: trials of other kernels.
        count: how many at most; none where no kernel is similar.
    """
    return ranked_neighbours(space, known, count)[0]


def ranked_neighbours(
    space: DecisionSpace, known: Sequence[DraftTrials], count: int
) -> tuple[Rows, tuple[float, ...]]:
    """Return the same candidates, and how far each comes from, in octaves and slowdown.

    Args:
        space: of the kernel at hand.
        known: trials of other kernels.
        count: how many at most; none where no kernel is similar.
    """
    ranked: list[tuple[float, DraftTrials, int]] = []
    for trials in known:
        away = distance(space, trials.space)
        if not np.isfinite(away) or not np.isfinite(trials.best_us):
            continue
        slowdowns = np.log2(np.asarray(trials.latencies_us) / trials.best_us)
        ranked += [
            (away + _SLOWDOWN_WEIGHT * float(slowdowns[index]), trials, int(index))
            for index in np.argsort(slowdowns, kind="stable")[:count]
            if np.isfinite(slowdowns[index])
        ]
    found: dict[bytes, tuple[npt.NDArray[np.int64], float]] = {}
    for away, trials, index in sorted(ranked, key=lambda each: each[0]):
        row = adapt(trials.space, trials.rows[index], space)
        found.setdefault(row.tobytes(), (row, away))
        if len(found) == count:
            break
    rows = np.asarray([row for row, _ in found.values()], dtype=np.int64)
    return rows.reshape(-1, len(space.sizes)), tuple(away for _, away in found.values())


def adapt(source: DecisionSpace, row: npt.NDArray[np.int64], target: DecisionSpace) -> npt.NDArray[np.int64]:
    """Return the candidate of one space that is most like one of another.

    Args:
        row: the candidate.
        target: a space with the same kinds of decisions.

    Raises:
        ValueError: the kinds differ.
    """
    if source.signature != target.signature:
        raise ValueError("the two kernels take different decisions, so that none can be carried over")
    level = source.sketch_levels[int(row[0])]
    found = [int(np.argmin([abs(each - level) for each in target.sketch_levels]))]
    for position, kind in enumerate(target.kinds):
        value = source.tables[position][int(row[position + 1])]
        table = target.tables[position]
        if isinstance(kind, TileDecision):
            weights = np.asarray(_PART_WEIGHTS[kind.parts])
            misfit = (np.abs(np.log2(table) - np.log2(value)) * weights).sum(axis=1)
            found.append(int(np.argmin(misfit)))
        elif isinstance(kind, LocationDecision):
            found.append(int(np.argmin(np.abs(table[:, 0] - value[0]))))
        else:
            found.append(min(int(value[0]), len(table) - 1))
    return np.asarray(found, dtype=np.int64)
