"""Knowledge of proposers from this machine's records. Checked in tests/tuner/language/test_collecting.py."""

from __future__ import annotations

from collections.abc import Collection

from cost_model.draft.draft_model import MIN_TRIALS, DraftModel, DraftTrials, train_draft_model
from cost_model.forests.boosting import num_idle_cores
from cost_model.language.network import Network
from records import open_store
from tuner.backends.metaschedule.draft_trials import caches_of_this_machine, load_draft_trials
from tuner.backends.metaschedule.proposers import Knowledge
from tuner.language.kernels import FAMILIES
from tuner.language.machine import Machine

_ONCE_TUNED = ("attention", "nhwc", "packed_matmul")
"""Backends whose kernels earlier versions tuned."""


def knowledge_of(
    records_url: str,
    machine: Machine,
    *,
    network: Network | None = None,
    without: Collection[str] = (),
    families: Collection[str] = FAMILIES,
) -> Knowledge:
    """Return the trials that the records hold of this machine.

    Args:
        records_url: where trials are kept.
        machine: whose trials count.
        network: the language model, if it proposes.
        without: kernels, as tasks, that are left out.
        families: of kernels that are not left out; those of no family never are.

    Raises:
        RecordError: the records cannot be read.
    """
    with open_store(records_url) as store:
        trials = load_draft_trials(store, machine.target, machine.environment)
    return Knowledge(
        tuple(each for each in trials if each.task not in without and _is_of(each, families)),
        caches_of_this_machine(machine.target.num_threads),
        network,
    )


def ignored_trials(records_url: str, machine: Machine) -> int:
    """Return how many trials of packed kernels the records hold, which earlier versions tuned.

    Raises:
        RecordError: the records cannot be read.
    """
    with open_store(records_url) as store:
        return sum(
            1
            for backend in _ONCE_TUNED
            for _ in store.iterate(backend=backend, target=machine.target.text, role="task")
        )


def family_of_trials(trials: DraftTrials) -> str:
    """Return which family of `FAMILIES` a kernel is of, by the loops that it is tiled in; empty for none."""
    loops = trials.space.kernel.loops
    spatial = sum(not loop.is_reduction for loop in loops)
    reduced = [loop.extent for loop in loops if loop.is_reduction]
    match spatial, len(reduced):
        case 2, 1:
            return "dense"
        case 3, 1:
            return "product"
        case 4, 3:
            # Loops over channels come first: each of a depthwise one's has a group of its own.
            return "depthwise" if reduced[0] == 1 else "convolution"
    return ""


def _is_of(trials: DraftTrials, families: Collection[str]) -> bool:
    return family_of_trials(trials) in ("", *families)


def draft_model_of(knowledge: Knowledge, *, seed: int) -> DraftModel | None:
    """Return a draft model of all that is known; None if that is too little."""
    if sum(len(each.rows) for each in knowledge.trials) < MIN_TRIALS:
        return None
    return train_draft_model(
        knowledge.trials,
        caches=knowledge.caches,
        seed=seed,
        num_threads=num_idle_cores(),
    )
