"""Knowledge that proposers have of other kernels, kept for all kernels that one process tunes.

Reading some thousand trials takes seconds, and so do training a draft model of them and loading the language
model. A process that tunes many kernels does each once: before every kernel only the trials that came since
are read, and the draft model with which a kernel begins is trained again when they have become more by a
given share. Nothing is lost by that, since after the first batch of a kernel its proposer trains a model of
all trials. Checked in tests/tuner/backends/metaschedule/test_lasting_knowledge.py.
"""

from __future__ import annotations

from collections.abc import Callable

from cost_model.draft.draft_model import MIN_TRIALS, DraftModel, DraftTrials, train_draft_model
from cost_model.language.network import Network
from records import Environment, open_store
from tuner.backends.metaschedule.draft_trials import TrialReader, caches_of_this_machine
from tuner.backends.metaschedule.proposers import Knowledge
from tuner.targets.target import Target

GROWTH = 1 / 16
"""New trials over those that a draft model learnt from, at which another is trained. Training takes 3 s of
1 560 trials, six kernels of 16 trials each."""


class LastingKnowledge:
    """The knowledge of one target's kernels; it grows with the records."""

    def __init__(
        self,
        records_url: str,
        target: Target,
        environment: Environment,
        *,
        seed: int,
        load_network: Callable[[], Network] | None = None,
    ) -> None:
        """Take where trials are; nothing is read yet.

        Args:
            records_url: where trials are kept; none are known if empty.
            target: whose trials count.
            environment: whose device and threads count.
            seed: of the draft model.
            load_network: returns the language model; None where it does not propose.
        """
        self.records_url = records_url
        self.seed = seed
        self.caches = caches_of_this_machine(target.num_threads)
        self._reader = TrialReader(target, environment)
        self._load_network = load_network
        self._network: Network | None = None
        self._trials: tuple[DraftTrials, ...] = ()
        self._draft: DraftModel | None = None
        self._num_learnt = 0

    def now(self) -> Knowledge:
        """Return what is known now.

        Raises:
            RecordError: the records cannot be read.
            CostModelFileError: there is no language model for the target.
        """
        if self._network is None and self._load_network is not None:
            self._network = self._load_network()
        if self.records_url:
            with open_store(self.records_url) as store:
                self._trials = self._reader.read(store)
        return Knowledge(self._trials, self.caches, self._network, self._shared_draft)

    def _shared_draft(self) -> DraftModel | None:
        """Return a draft model of all trials but the newest; None if they are too few."""
        num_trials = sum(len(each.rows) for each in self._trials)
        if num_trials < MIN_TRIALS:
            return None
        if self._draft is None or num_trials >= (1 + GROWTH) * self._num_learnt:
            self._draft = train_draft_model(self._trials, caches=self.caches, seed=self.seed)
            self._num_learnt = num_trials
        return self._draft
