"""What proposers know from this machine's records. Checked in tests/tuner/language/test_collecting.py."""

from __future__ import annotations

from collections.abc import Collection

from cost_model.draft.draft_model import MIN_TRIALS, DraftModel, DraftTrials, train_draft_model
from cost_model.forests.boosting import num_idle_cores
from cost_model.language.network import Network
from records import open_store
from tuner.backends.cpu.tuned.kernel_trials import draft_trials, load_kernel_trials
from tuner.backends.metaschedule.draft_trials import caches_of_this_machine, load_draft_trials
from tuner.backends.metaschedule.proposers import Knowledge
from tuner.language.machine import Machine


def knowledge_of(
    records_url: str,
    machine: Machine,
    *,
    network: Network | None = None,
    without: Collection[str] = (),
) -> Knowledge:
    """Return the trials that the records hold of this machine.

    Args:
        records_url: where trials are kept.
        machine: whose trials count.
        network: the language model, if it proposes.
        without: kernels, as tasks, that are left out.

    Raises:
        RecordError: the records cannot be read.
    """
    with open_store(records_url) as store:
        trials = load_draft_trials(store, machine.target, machine.environment)
    return Knowledge(
        tuple(each for each in trials if each.task not in without),
        caches_of_this_machine(machine.target.num_threads),
        machine.environment.device_model,
        network,
    )


def packed_trials_of(
    records_url: str, machine: Machine, *, without: Collection[str] = ()
) -> tuple[DraftTrials, ...]:
    """Return the trials of our own kernels that the records hold of this machine; arguments as above."""
    with open_store(records_url) as store:
        kept = load_kernel_trials(store, machine.target, machine.environment)
    return tuple(each for each in draft_trials(kept) if each.task not in without)


def draft_model_of(knowledge: Knowledge, *, seed: int) -> DraftModel | None:
    """Return a draft model of all that is known; None if that is too little."""
    if sum(len(each.rows) for each in knowledge.trials) < MIN_TRIALS:
        return None
    return train_draft_model(
        knowledge.trials,
        caches=knowledge.caches,
        device_model=knowledge.device_model,
        seed=seed,
        num_threads=num_idle_cores(),
    )
