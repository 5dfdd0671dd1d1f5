"""Measure schedules of many kernels to learn from: random ones first, then what the draft model favours.

Random schedules say what is slow, but few of them are fast. In each guided round one draft model of all
trials so far proposes a diverse batch for every kernel, so that the next model knows more of the fast ones.
What is done is read off the records, so a collection that was stopped goes on where it was. Checked in
tests/tuner/language/test_collecting.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cost_model.draft.draft_model import DraftTrials
from cost_model.language.network import Network
from records import open_store
from records.files.metaschedule import BACKEND, trial_of
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.proposers import (
    DraftProposer,
    LanguageProposer,
    Proposer,
    RandomProposer,
)
from tuner.backends.metaschedule.trials import KeepTrials, task_name
from tuner.graph.relax_types import IRModule
from tuner.language.kernels import kernel_module, random_kernel
from tuner.language.knowledge import draft_model_of, knowledge_of
from tuner.language.machine import Machine
from tuner.language.trials import measure_schedules

FAMILIES = ("dense", "product", "convolution", "depthwise")

_EXPLORATION = 1.0
"""Standard deviations between forests that a guided round adds to predictions: it wants to learn, too."""

Report = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionPlan:
    """How many trials of each kernel are measured, and how.

    Attributes:
        random: trials at random of each kernel.
        rounds: guided ones after that.
        batch: trials of each kernel in a guided round.
    """

    random: int = 16
    rounds: int = 3
    batch: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or min(self.random, self.rounds) < 0:
            raise ValueError(f"{self} is no plan: batches are at least 1, trials and rounds at least 0")

    @property
    def trials(self) -> int:
        """Trials of each kernel in all."""
        return self.random + self.rounds * self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection did.

    Attributes:
        num_kernels: kernels of the collection.
        num_trials: of them in the records now.
        num_new: measured now.
        mean_quality: by round, the mean over its trials of the best latency of the kernel over theirs;
            round 0 is the random one. Only trials measured now count.
    """

    num_kernels: int
    num_trials: int
    num_new: int
    mean_quality: tuple[float | None, ...]


def collection_kernels(count: int, seed: int) -> list[tuple[str, IRModule]]:
    """Return distinct random kernels of all families in turn, as networks have them."""
    rng = np.random.default_rng([seed, count])
    found: dict[str, IRModule] = {}
    while len(found) < count:
        kernel = random_kernel(FAMILIES[len(found) % len(FAMILIES)], rng)
        if kernel.name not in found:
            found[kernel.name] = kernel_module(kernel)
    return list(found.items())


def collect_schedules(
    kernels: Sequence[tuple[str, IRModule]],
    plan: CollectionPlan,
    *,
    machine: Machine,
    records_url: str,
    builder: object,
    runner: object,
    on_progress: Report,
    network: Network | None = None,
) -> Collected:
    """Measure what the plan wants and the records lack; every finished batch is kept.

    Args:
        kernels: names and modules.
        machine: what is measured, and where.
        records_url: where trials are kept.
        on_progress: told after each batch.
        network: the language model that writes the guided rounds' schedules; the draft model alone if None.

    Raises:
        RecordError: the records cannot be read or written.
    """
    counts = _recorded_counts(records_url, machine)
    tasks = [(name, module, task_name(module)) for name, module in kernels]
    done = {task: min(counts.get(task, 0), plan.trials) for _, _, task in tasks}
    total = plan.trials * len(tasks)
    measured: list[list[tuple[str, float]]] = [[] for _ in range(plan.rounds + 1)]
    for number in range(plan.rounds + 1):
        goal = plan.random + number * plan.batch
        if all(done[task] >= goal for _, _, task in tasks):
            continue
        knowledge = knowledge_of(records_url, machine, network=network)
        model = None if number == 0 else draft_model_of(knowledge, seed=plan.seed + number)
        label = "random schedules" if number == 0 else f"guided round {number} of {plan.rounds}"
        for name, module, task in tasks:
            on_progress(f"{label}: {name}", sum(done.values()), total)
            wanted = goal - done[task]
            if wanted <= 0:
                continue
            candidates = candidates_of(module, machine.tuned_for)
            seed = plan.seed + 1000 * number + done[task]
            proposer: Proposer
            if model is None or not candidates.spaces:
                proposer = RandomProposer(candidates, seed=seed)
            else:
                guided = DraftProposer if network is None else LanguageProposer
                proposer = guided(
                    task,
                    candidates,
                    knowledge,
                    seed=seed,
                    exploration=_EXPLORATION,
                    model=model,
                    is_new_only=True,
                )
            proposed = proposer.propose(wanted)
            keep = KeepTrials(records_url, module, machine.tuned_for, machine.target, machine.environment)
            latencies = measure_schedules(
                module,
                machine.tuned_for,
                [each.schedule for each in proposed],
                builder=builder,
                runner=runner,
                keep=keep,
            )
            measured[number] += [(task, math.inf if each is None else each) for each in latencies]
            done[task] = goal  # a small kernel may have no more that are new
    on_progress("done", total, total)
    counts = _recorded_counts(records_url, machine)
    return Collected(
        num_kernels=len(tasks),
        num_trials=sum(counts.get(task, 0) for _, _, task in tasks),
        num_new=sum(map(len, measured)),
        mean_quality=_mean_quality(measured, knowledge_of(records_url, machine).trials),
    )


def _recorded_counts(records_url: str, machine: Machine) -> dict[str, int]:
    """Return how many trials the records hold of each kernel, failures included."""
    counts: dict[str, int] = {}
    with open_store(records_url) as store:
        for record in store.iterate(backend=BACKEND, target=machine.target.text, role="task"):
            where, here = record.measurement.environment, machine.environment
            if (where.device_model, where.num_threads) != (here.device_model, here.num_threads):
                continue
            trial = trial_of(record)
            if trial is not None:
                counts[trial.task] = counts.get(trial.task, 0) + 1
    return counts


def _mean_quality(
    measured: Sequence[Sequence[tuple[str, float]]], trials: Sequence[DraftTrials]
) -> tuple[float | None, ...]:
    best: dict[str, float] = {}
    for task, latency in [each for batch in measured for each in batch]:
        best[task] = min(best.get(task, math.inf), latency)
    for known in trials:
        if known.task in best:
            best[known.task] = min(best[known.task], known.best_us)
    means: list[float | None] = []
    for batch in measured:
        ratios = [best[task] / latency for task, latency in batch if math.isfinite(best[task])]
        means.append(float(np.mean(ratios)) if ratios else None)
    return tuple(means)
