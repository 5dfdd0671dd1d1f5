"""Training examples of the language model: good schedules of many kernels, each with its prompt.

Of kernels that nobody measured, the draft model's diverse best are distilled. Of measured ones, whatever is
within 10 % of the best. A prompt holds some of the nearest other kernels' best, and in most cases a worse
schedule or two of the kernel itself, so that both are learnt: to write at once what is fast, and to go on
from what was measured. Checked in tests/cost_model/language/test_training_examples.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_features import decision_features
from cost_model.draft.decision_space import DecisionSpace, Rows
from cost_model.draft.draft_model import DraftModel, DraftTrials
from cost_model.draft.evolution import CANDIDATES, Scored, evolve, pick_diverse
from cost_model.draft.neighbours import ranked_neighbours
from cost_model.language.examples import TrainingExample
from cost_model.language.text import MAX_NEIGHBOURS, MAX_OWN, Context

ANSWERS = 16
"""Schedules that are learnt after one prompt."""

NEAR_BEST = 1.1
"""Measured schedules that take at most so much longer than the best one are learnt."""

_SHORT_LIST = 192
_TEMPERATURE = 0.1
"""Difference in predicted logarithm of speed that makes a schedule e times as likely to be learnt."""


@dataclass(frozen=True, slots=True)
class Taught:
    """A kernel's good candidates, and worse ones that may be its own trials in a prompt.

    Attributes:
        good: candidates to be written.
        weights: of each; they sum to 1.
        worse: others, the best first; may be empty.
    """

    task: str
    space: DecisionSpace
    good: Rows
    weights: npt.NDArray[np.float64]
    worse: Rows


def context_of(space: DecisionSpace, others: Sequence[DraftTrials], own: Rows) -> Context:
    """Return what a prompt holds of similar kernels, and of the kernel's own trials.

    Args:
        own: the kernel's trials, the fastest first.
    """
    rows, distances = ranked_neighbours(space, others, MAX_NEIGHBOURS)
    return Context(rows, distances, own[:MAX_OWN])


def distil(task: str, space: DecisionSpace, model: DraftModel, rng: np.random.Generator) -> Taught:
    """Return what the draft model favours of a kernel, none of it measured.

    Args:
        space: of its candidates.
        model: scores them.
    """
    found = evolve(space, lambda rows: model.predict(space, rows).mean, rng, candidates=CANDIDATES // 2)
    listed = Scored(found.rows[:_SHORT_LIST], found.scores[:_SHORT_LIST])
    picked = pick_diverse(listed, decision_features(space, listed.rows, model.caches), ANSWERS)
    chances = np.exp((listed.scores[picked] - listed.scores.max()) / _TEMPERATURE)
    worse = found.rows[_SHORT_LIST : 12 * _SHORT_LIST]
    return Taught(task, space, listed.rows[picked], chances / chances.sum(), worse)


def near_best(trials: DraftTrials, best_us: float) -> Taught | None:
    """Return the measured schedules of a kernel that are near its best; None where none is.

    Args:
        trials: of the kernel in one space.
        best_us: of the kernel in any space.
    """
    slowdowns = np.asarray(trials.latencies_us) / best_us
    order = np.argsort(slowdowns, kind="stable")
    good = [index for index in order if slowdowns[index] <= NEAR_BEST][:ANSWERS]
    if not good:
        return None
    worse = [index for index in order if NEAR_BEST < slowdowns[index] < math.inf]
    chances = slowdowns[good] ** -8.0
    return Taught(trials.task, trials.space, trials.rows[good], chances / chances.sum(), trials.rows[worse])


def measured_examples(trials: Sequence[DraftTrials]) -> list[Taught]:
    """Return what is near the best of every kernel that was measured."""
    best: dict[str, float] = {}
    for each in trials:
        best[each.task] = min(best.get(each.task, math.inf), each.best_us)
    found = [near_best(each, best[each.task]) for each in trials if math.isfinite(best[each.task])]
    return [each for each in found if each is not None]


def training_example_of(
    taught: Taught, known: Sequence[DraftTrials], rng: np.random.Generator
) -> TrainingExample:
    """Return an example with a prompt of its own: some neighbours, and some of the kernel's worse schedules.

    Args:
        known: trials of any kernels; those of the kernel itself are left out.
        rng: decides what the prompt holds.
    """
    others = [each for each in known if each.task != taught.task]
    rows, distances = ranked_neighbours(taught.space, others, 2 * MAX_NEIGHBOURS)
    count = int(rng.integers(0, MAX_NEIGHBOURS + 1)) if rng.random() < 0.5 else MAX_NEIGHBOURS
    kept = np.sort(rng.permutation(len(rows))[:count]) if rng.random() < 0.5 else np.arange(len(rows))[:count]
    num_own = int(rng.integers(0, MAX_OWN + 1))
    places = np.sort(rng.integers(0, max(1, len(taught.worse)), size=num_own if len(taught.worse) else 0))
    context = Context(rows[kept], tuple(distances[index] for index in kept), taught.worse[places])
    return TrainingExample(taught.space, context, taught.good, taught.weights)
