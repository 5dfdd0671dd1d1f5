"""Knowledge of proposers of built-in kernels, kept for all kernels that one process tunes.

A kernel is proposed for after the trials of all families: on 90 kernels with 31 trials each, a draft model of
all ranked those of a kernel that it had not seen as well as one of the kernel's family alone or better, and
one that knew no trial of the family far better than chance. Where a family has trials enough the others are
left out, since they would cost time alone. Kernels without trials share the draft model that they begin with.
Checked in tests/tuner/backends/cpu/tuned/test_trial_knowledge.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cost_model.draft.draft_model import MIN_TRIALS, DraftModel, DraftTrials, train_draft_model
from cost_model.draft.packed_families import PackedFamily
from cost_model.language.network import Network
from tuner.backends.cpu.tuned.families import family_of
from tuner.backends.cpu.tuned.kernel_trials import KeptTrial, draft_trials
from tuner.backends.metaschedule.draft_trials import caches_of_this_machine
from tuner.backends.metaschedule.lasting_knowledge import GROWTH
from tuner.backends.metaschedule.proposers import Knowledge

ENOUGH = 1024
"""Trials of a family's other kernels from which those of other families are left out."""


@dataclass(slots=True)
class _Shared:
    """A draft model, and how many trials it learnt from."""

    model: DraftModel
    num_trials: int


class TrialKnowledge:
    """The knowledge of one processor's kernels; it grows with their trials."""

    def __init__(
        self, kept: Iterable[KeptTrial], *, num_threads: int, seed: int, network: Network | None = None
    ) -> None:
        """Take what is known at first.

        Args:
            kept: trials of this processor.
            num_threads: of the measurements.
            seed: of the draft models.
            network: the language model, if it proposes.
        """
        self.caches = caches_of_this_machine(num_threads)
        self.seed = seed
        self.network = network
        self._kept: dict[str, list[KeptTrial]] = {}
        self._learnt: dict[str, tuple[DraftTrials, ...]] = {}
        self._shared: dict[PackedFamily | None, _Shared] = {}
        self.add(kept)

    def add(self, kept: Iterable[KeptTrial]) -> None:
        """Take trials that were measured since."""
        for each in kept:
            self._kept.setdefault(each.trial.kernel, []).append(each)
            self._learnt.pop(each.trial.kernel, None)

    def of(self, kernel: str, more: Sequence[DraftTrials] = ()) -> Knowledge:
        """Return what a kernel's proposer starts from: trials of its family, and of all where these are few.

        Args:
            kernel: its name.
            more: what else is known of it.
        """
        family = family_of(kernel)
        group = family if self._has_enough(family, kernel) else None
        known = [
            each
            for name in self._kept
            if group is None or family_of(name) == group
            for each in self._trials_of(name)
        ]
        return Knowledge(
            (*known, *more),
            self.caches,
            network=self.network,
            draft=lambda: self._draft(group, known),
        )

    def _trials_of(self, kernel: str) -> tuple[DraftTrials, ...]:
        """Return a kernel's trials as the draft model learns from them, made once until there are more."""
        if kernel not in self._learnt:
            self._learnt[kernel] = draft_trials(self._kept[kernel])
        return self._learnt[kernel]

    def _has_enough(self, family: PackedFamily, kernel: str) -> bool:
        of_others = (name for name in self._kept if name != kernel and family_of(name) == family)
        return sum(len(each.rows) for name in of_others for each in self._trials_of(name)) >= ENOUGH

    def _draft(self, group: PackedFamily | None, known: Sequence[DraftTrials]) -> DraftModel | None:
        """Return a draft model of all trials but the newest; None if they are too few."""
        num_trials = sum(len(each.rows) for each in known)
        if num_trials < MIN_TRIALS:
            return None
        shared = self._shared.get(group)
        if shared is None or num_trials >= (1 + GROWTH) * shared.num_trials:
            model = train_draft_model(known, caches=self.caches, device_model="", seed=self.seed)
            shared = self._shared[group] = _Shared(model, num_trials)
        return shared.model
