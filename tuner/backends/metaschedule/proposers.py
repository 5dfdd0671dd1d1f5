"""Proposers of a kernel's schedules: chance, similar kernels, the draft model, or the language model.

All start from what the records hold of other kernels, and learn from each batch of the kernel at hand. A
kernel without decisions that the draft model knows is proposed for at random. Checked in
tests/tuner/backends/metaschedule/test_proposers.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_features import Caches, decision_features
from cost_model.draft.decision_space import DecisionSpace
from cost_model.draft.draft_model import MIN_TRIALS, DraftModel, DraftTrials, train_draft_model
from cost_model.draft.evolution import CANDIDATES, Scored, evolve, mutate, pick_diverse
from cost_model.draft.neighbours import neighbour_rows
from cost_model.language.network import Network
from cost_model.language.text import MAX_OWN
from cost_model.language.training_examples import context_of
from tuner.backends.metaschedule.candidates import Candidate, KernelCandidates

RANDOM, NEIGHBOUR, DRAFT, LANGUAGE = "random", "neighbour", "draft", "language"
EVOLUTIONARY = "evolutionary"
PROPOSERS = (LANGUAGE, DRAFT, NEIGHBOUR, EVOLUTIONARY, RANDOM)
"""All who propose; `evolutionary` is TVM's own search."""

DEFAULT_PROPOSER = DRAFT
"""Who proposes where nobody is named, on a processor with records to learn from: the first in the reports of
`python -m benchmarks.proposers`. `LANGUAGE` gives way to `DRAFT` where there is no model for the target."""

BATCH = 4
"""Trials that are measured before the draft model learns from them."""

_SHORT_LIST = 256
"""Candidates among which a diverse batch is picked."""

_WRITTEN = 48
"""Schedules that the language model writes at each temperature for one batch; the draft model ranks them."""

_TEMPERATURES = (1.0, 1.5)
"""The higher one writes what is unlike the neighbours, where these are not good enough."""

_DRAWS = 16
"""Draws for each candidate that is wanted, after which a kernel has no more that are new."""


class Proposer(Protocol):
    """Proposes candidates of one kernel, and is told what they take."""

    def propose(self, count: int) -> list[Candidate]:
        """Return new candidates, the most promising first; fewer where there are no more."""

    def learn(self, candidates: Sequence[Candidate], latencies_us: Sequence[float]) -> None:
        """Take the latencies of measured candidates; infinite where one failed."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a proposer starts from.

    Attributes:
        trials: of any kernels, the one at hand included.
        caches: of this machine.
        network: the language model, if it proposes.
        draft: returns a draft model of these trials that several kernels share, None if they are too few;
            each proposer trains one of its own where there is no such function.
    """

    trials: tuple[DraftTrials, ...] = ()
    caches: Caches = field(default_factory=Caches)
    network: Network | None = None
    draft: Callable[[], DraftModel | None] | None = None

    def shared_draft(self, task: str) -> DraftModel | None:
        """Return the shared draft model where it knows a kernel no less than one trained for it.

        That is where there are no trials of the kernel yet: they would weigh more.
        """
        if self.draft is None or any(each.task == task for each in self.trials):
            return None
        return self.draft()


def new_proposer(
    name: str, task: str, candidates: KernelCandidates, knowledge: Knowledge, *, seed: int
) -> Proposer:
    """Return the proposer of a name.

    Args:
        name: one of `PROPOSERS` but `evolutionary`.
        task: names the kernel, as trials do.
        knowledge: what the proposer starts from.

    Raises:
        ValueError: there is no such proposer, or the language model has no network.
    """
    if name == RANDOM or (name in (NEIGHBOUR, DRAFT, LANGUAGE) and not candidates.spaces):
        return RandomProposer(candidates, seed=seed)
    if name == NEIGHBOUR:
        return NeighbourProposer(task, candidates, knowledge, seed=seed)
    if name == DRAFT:
        return DraftProposer(task, candidates, knowledge, seed=seed)
    if name == LANGUAGE:
        return LanguageProposer(task, candidates, knowledge, seed=seed)
    raise ValueError(
        f"proposer {name!r} is not known here; give one of {RANDOM}, {NEIGHBOUR}, {DRAFT}, {LANGUAGE}"
    )


class RandomProposer:
    """Draws schedules as TVM does."""

    def __init__(self, candidates: KernelCandidates, *, seed: int) -> None:
        self.candidates = candidates
        self.rng = np.random.default_rng([seed, 1])
        self.known: set[object] = set()

    def propose(self, count: int) -> list[Candidate]:
        """Return new candidates, all as likely."""
        return sampled(self.candidates, count, self.known, self.rng)

    def learn(self, candidates: Sequence[Candidate], latencies_us: Sequence[float]) -> None:
        """Learn nothing."""


class _Informed:
    """What the proposers share that know other kernels: their trials, and those of the kernel at hand."""

    def __init__(self, task: str, candidates: KernelCandidates, knowledge: Knowledge, *, seed: int) -> None:
        self.task = task
        self.candidates = candidates
        self.knowledge = knowledge
        self.seed = seed
        self.rng = np.random.default_rng([seed, 2])
        self.others = [each for each in knowledge.trials if each.task != task]
        self.known: set[object] = set()
        self.own: list[list[tuple[npt.NDArray[np.int64], float]]] = [[] for _ in candidates.spaces]
        for trials in knowledge.trials:
            if trials.task == task:
                self._recall(trials)

    def learn(self, candidates: Sequence[Candidate], latencies_us: Sequence[float]) -> None:
        """Keep the latencies."""
        for candidate, latency_us in zip(candidates, latencies_us, strict=True):
            if candidate.space is not None and candidate.row is not None:
                self.own[candidate.space].append((candidate.row, latency_us))

    def best_rows(self, space: int, count: int) -> npt.NDArray[np.int64]:
        """Return the fastest candidates of this kernel so far."""
        ranked = sorted(
            (each for each in self.own[space] if math.isfinite(each[1])), key=lambda each: each[1]
        )
        width = len(self.candidates.spaces[space].sizes)
        return np.asarray([row for row, _ in ranked[:count]], dtype=np.int64).reshape(-1, width)

    def make(self, wanted: Iterable[tuple[int, npt.NDArray[np.int64]]], count: int) -> list[Candidate]:
        """Return the first so many candidates that are new and that TVM accepts."""
        found: list[Candidate] = []
        for space, row in wanted:
            if len(found) == count:
                break
            if (space, row.tobytes()) in self.known:
                continue
            self.known.add((space, row.tobytes()))
            made = self.candidates.make(space, row)
            if made is None or (made.key in self.known and made.key != (space, row.tobytes())):
                continue
            self.known.add(made.key)
            found.append(made)
        return found

    def has_similar(self, space: DecisionSpace) -> bool:
        """Say whether trials of another kernel are known that takes the same decisions."""
        return any(each.space.signature == space.signature for each in self.others)

    def neighbours(self, count: int) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Return rows after the best trials of similar kernels."""
        return [
            (index, row)
            for index, space in enumerate(self.candidates.spaces)
            for row in neighbour_rows(space, self.others, count)
        ]

    def changes(self, count: int) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Return changes of the fastest candidates so far; none where nothing was measured."""
        changed = []
        for index, space in enumerate(self.candidates.spaces):
            best = self.best_rows(index, BATCH)
            if len(best):
                parents = best[self.rng.integers(len(best), size=count)]
                changed += [(index, row) for row in mutate(space, parents, self.rng)]
        return changed

    def _recall(self, trials: DraftTrials) -> None:
        """Take earlier trials of this kernel; they may be measured again, so they are not known."""
        for index, space in enumerate(self.candidates.spaces):
            if (space.kernel, space.kinds) != (trials.space.kernel, trials.space.kinds):
                continue
            for row, latency_us in zip(trials.rows, trials.latencies_us, strict=True):
                sketch, decisions = trials.space.decisions_of(row)
                level = trials.space.sketch_levels[sketch]
                if level in space.sketch_levels:
                    found = space.row_of(space.sketch_levels.index(level), decisions)
                    if found is not None:
                        self.own[index].append((found, latency_us))


class NeighbourProposer(_Informed):
    """Proposes the best decisions of similar kernels, then changes of the best that was measured."""

    def propose(self, count: int) -> list[Candidate]:
        """Return candidates after the nearest kernels first."""
        found = self.make(self.neighbours(len(self.known) + _DRAWS * count), count)
        if len(found) < count:
            found += self.make(self.changes(_DRAWS * count), count - len(found))
        if len(found) < count:
            found += sampled(self.candidates, count - len(found), self.known, self.rng)
        return found


class DraftProposer(_Informed):
    """Proposes what the draft model ranks first among evolved candidates, and trains it with every batch."""

    def __init__(
        self,
        task: str,
        candidates: KernelCandidates,
        knowledge: Knowledge,
        *,
        seed: int,
        exploration: float = 0.0,
        model: DraftModel | None = None,
        is_new_only: bool = False,
    ) -> None:
        """Train on what is known, unless a model is given or shared.

        Args:
            knowledge: what is known at first.
            seed: of random numbers and trees.
            exploration: how many standard deviations between forests are added to a prediction.
            model: of all that is known; it is not trained again before the first batch is learnt.
            is_new_only: whether earlier trials of this kernel are never proposed again. A tuner whose
                database lacks them measures the best of them once more.
        """
        super().__init__(task, candidates, knowledge, seed=seed)
        self.exploration = exploration
        self._model = model or knowledge.shared_draft(task) or self.train()
        self._is_stale = False
        if is_new_only:
            self.known.update((index, row.tobytes()) for index, own in enumerate(self.own) for row, _ in own)

    @property
    def model(self) -> DraftModel | None:
        """A model of all trials so far, trained when it is asked for; None while they are too few."""
        if self._is_stale:
            self._model = self.train()
            self._is_stale = False
        return self._model

    def learn(self, candidates: Sequence[Candidate], latencies_us: Sequence[float]) -> None:
        """Keep the latencies."""
        super().learn(candidates, latencies_us)
        self._is_stale = True

    def train(self) -> DraftModel | None:
        """Return a model of all trials so far; None while there are too few."""
        own = [
            DraftTrials(self.task, space, np.stack([row for row, _ in rows]), tuple(each for _, each in rows))
            for space, rows in zip(self.candidates.spaces, self.own, strict=True)
            if rows
        ]
        if sum(len(each.rows) for each in (*self.others, *own)) < MIN_TRIALS:
            return None
        return train_draft_model(
            [*self.others, *own],
            caches=self.knowledge.caches,
            current=self.task,
            seed=self.seed,
        )

    def propose(self, count: int) -> list[Candidate]:
        """Return a diverse batch of what is predicted to be fast; neighbours' or random ones at first.

        Of the first batch the second is a neighbour's: candidates that a model favours are alike, and where
        it errs about a kernel that it has not seen, all of them are slow. On 20 kernels that were left out of
        the training, four trials came within 1.15 of the best instead of 1.19, the worst within 2.1, not 2.8.
        """
        found: list[Candidate] = []
        model = self.model
        if model is not None:
            drafted = self._drafted(model, count)
            if not any(self.own) and count > 1:
                found = self.make(drafted, 1)
                found += self.make(self.neighbours(count), 1)
            found += self.make(drafted, count - len(found))
        else:
            found = self.make(self.neighbours(count), count)
            found += self.make(self.changes(_DRAWS * count), (count - len(found)) // 2)
        if len(found) < count:
            found += sampled(self.candidates, count - len(found), self.known, self.rng)
        return found

    def _drafted(self, model: DraftModel, count: int) -> list[tuple[int, npt.NDArray[np.int64]]]:
        spaces = self.candidates.spaces
        ranked: list[tuple[float, int, npt.NDArray[np.int64]]] = []
        for index, space in enumerate(spaces):
            listed, features = self._short_list(model, index, space)
            picked = pick_diverse(listed, features, 2 * count)
            rest = np.setdiff1d(np.arange(len(listed)), picked)
            # What is refused or known is replaced by the next best.
            for place, number in enumerate([*picked, *rest]):
                ranked.append((place - float(listed.scores[number]) / 10, index, listed.rows[number]))
        ranked.sort(key=lambda each: each[0])
        return [(index, row) for _, index, row in ranked]

    def _short_list(
        self, model: DraftModel, index: int, space: DecisionSpace
    ) -> tuple[Scored, npt.NDArray[np.float32]]:
        def score(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
            predicted = model.predict(space, rows)
            return predicted.mean + self.exploration * predicted.spread

        start = np.concatenate(
            [self.best_rows(index, _SHORT_LIST // 4), neighbour_rows(space, self.others, _SHORT_LIST // 4)]
        )
        share = max(512, CANDIDATES // len(self.candidates.spaces))
        found = evolve(space, score, self.rng, candidates=share, start=start if len(start) else None)
        is_new = np.asarray([(index, row.tobytes()) not in self.known for row in found.rows], dtype=bool)
        listed = Scored(found.rows[is_new][:_SHORT_LIST], found.scores[is_new][:_SHORT_LIST])
        return listed, decision_features(space, listed.rows, model.caches)


class LanguageProposer(DraftProposer):
    """Proposes what the language model writes, ranked by the draft model where it knows enough.

    Its prompt holds the best of similar kernels and of this one, so that it writes others after every batch;
    changes of the best so far are ranked beside them. Where no similar kernel is known, the prompt says
    nothing of what is fast, and what the draft model alone would propose is ranked beside them, too.
    """

    @property
    def network(self) -> Network:
        """The language model.

        Raises:
            ValueError: what is known has none.
        """
        if self.knowledge.network is None:
            raise ValueError("the language model has no network; train one with `tessel language train`")
        return self.knowledge.network

    def propose(self, count: int) -> list[Candidate]:
        """Return a diverse batch of what was written; random ones where too few are new."""
        if self.model is not None:
            return super().propose(count)
        written = [
            (float(likelihood), index, row)
            for index, space in enumerate(self.candidates.spaces)
            for row, likelihood in zip(*self._written(index, space), strict=True)
        ]
        written.sort(key=lambda each: -each[0])
        found = self.make(((index, row) for _, index, row in written), count)
        if len(found) < count:
            found += sampled(self.candidates, count - len(found), self.known, self.rng)
        return found

    def _written(
        self, index: int, space: DecisionSpace
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        context = context_of(space, self.others, self.best_rows(index, MAX_OWN))
        found = [
            self.network.write(space, context, _WRITTEN, rng=self.rng, temperature=temperature)
            for temperature in _TEMPERATURES
        ]
        rows = np.concatenate([each.rows for each in found])
        _, first = np.unique(rows, axis=0, return_index=True)
        places = np.sort(first)
        return rows[places], np.concatenate([each.log_probabilities for each in found])[places]

    def _short_list(
        self, model: DraftModel, index: int, space: DecisionSpace
    ) -> tuple[Scored, npt.NDArray[np.float32]]:
        rows, _ = self._written(index, space)
        if not self.has_similar(space):
            evolved, _ = super()._short_list(model, index, space)
            rows = np.unique(np.concatenate([rows, evolved.rows]), axis=0)
        best = self.best_rows(index, BATCH)
        if len(best):
            parents = best[self.rng.integers(len(best), size=_WRITTEN)]
            rows = np.unique(np.concatenate([rows, mutate(space, parents, self.rng)]), axis=0)
        is_new = np.asarray([(index, row.tobytes()) not in self.known for row in rows], dtype=bool)
        new = rows[is_new]
        predicted = model.predict(space, new)
        scores = predicted.mean + self.exploration * predicted.spread
        order = np.argsort(-scores, kind="stable")
        return Scored(new[order], scores[order]), decision_features(space, new[order], model.caches)


def sampled(
    candidates: KernelCandidates, count: int, known: set[object], rng: np.random.Generator
) -> list[Candidate]:
    """Return schedules as TVM draws them that are not known yet, and add them to what is known."""
    found: list[Candidate] = []
    for _ in range(_DRAWS * count):
        if len(found) == count:
            break
        drawn = candidates.sample(rng)
        if drawn is None:
            continue
        key: object = drawn.key or str(drawn.schedule.trace)
        if key not in known:
            known.add(key)
            found.append(drawn)
    return found
