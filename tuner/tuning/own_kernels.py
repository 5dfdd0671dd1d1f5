"""Tune a model's kernels of our own: trials of each, and what they are built with then.

    deal      a budget of trials, the kernel's own rule among the first batch of each     tune_own_kernels
    confirm   the best of each kernel and its rule, measured again in turn                _confirm
    choose    from the records alone                                                      chosen_tiles

Every batch is in the records when it is measured, so that the same command goes on where it was stopped, and
another network starts from what is known. A kernel's rule is one of the candidates, so that tuning makes no
kernel slower, except by what measurements in turn scatter; they are made among the weights of the network.
Checked in tests/tuner/tuning/test_own_kernels.py.

Source: the order of kernels is the gradient of Zheng et al., "Ansor" (OSDI 2020), section 6, as in
`tuner.backends.metaschedule.trial_budget`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cost_model.draft.draft_model import DraftTrials
from cost_model.language.network import Network
from records import Environment, RecordStore
from tuner.backends.cpu.tuned.chosen_tiles import ChosenTiles
from tuner.backends.cpu.tuned.families import BACKEND_BY_FAMILY, Decisions, OwnKernel, family_of, space_of
from tuner.backends.cpu.tuned.kernel_trials import (
    KeptTrial,
    KernelTrial,
    choose_tiles,
    current_trials,
    keep_trials,
    load_kernel_trials,
)
from tuner.backends.cpu.tuned.trial_knowledge import TrialKnowledge
from tuner.backends.cpu.tuned.tuned_backend import with_chosen_tiles
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.candidates import Candidate
from tuner.backends.metaschedule.proposers import BATCH, DRAFT, LANGUAGE, Proposer, new_proposer
from tuner.backends.protocol import Backend
from tuner.backends.registry import make_backend
from tuner.frontend.model import Model
from tuner.graph import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.measuring.kernel_process import KernelProcess
from tuner.targets.target import Target
from tuner.targets.vector_registers import vector_registers
from tuner.tuning.find_own_kernels import WeightedOwnKernel, find_own_kernels
from tuner.tuning.partition_model import prepared_module

_SEED = 1

_ROUNDS = 3
"""Samples of a trial, in turn with those of its batch."""

_CONFIRMED = 2
"""Fastest candidates that are measured again in turn with the rule."""

_CONFIRMING_ROUNDS = 7

_LATEST = 3
"""Batches whose improvement says what another one promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedOwnKernel:
    """What a kernel got.

    Attributes:
        name: of the kernel.
        count: how often the model runs it.
        trials: measured now.
        rule_us: latency by the kernel's own rule, as it was measured last.
        best_us: latency as it is built now.
    """

    name: str
    count: int
    trials: int
    rule_us: float
    best_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedOwnKernels:
    """What a model's kernels of our own are built with.

    Attributes:
        backends: those that were given, with the decisions that were chosen.
        chosen: the decisions.
        kernels: what each kernel got; empty where nothing was to be measured.
        covered: nodes of the model's graph that these kernels compute.
        spent: their trials in the records.
    """

    backends: tuple[Backend, ...]
    chosen: ChosenTiles
    kernels: tuple[TunedOwnKernel, ...]
    covered: NodeSet
    spent: int


def tune_model(
    model: Model,
    backends: Sequence[Backend],
    trials: OwnTrials | None,
    store: RecordStore,
    target: Target,
    *,
    on_batch: Callable[[int], None] = lambda num_trials: None,
) -> TunedOwnKernels:
    """Tune the kernels of our own that run a model, and return backends that build what is fastest.

    Nothing is priced before.

    Args:
        model: whose function is partitioned.
        backends: that take part.
        trials: how many, and who proposes; if None, only what the records hold counts.
        store: the records.
        target: this machine's processor.
        on_batch: told after each batch how many trials were measured.
    """
    nothing = TunedOwnKernels(
        backends=tuple(backends), chosen=ChosenTiles(), kernels=(), covered=NodeSet(), spent=0
    )
    environment = environment_of(target)
    if trials is None and not load_kernel_trials(store, target, environment):
        return nothing
    graph = DataflowGraph.from_function(prepared_module(model))
    found = find_own_kernels(graph, backends, target)
    if not found.kernels:
        return nothing
    tuned: tuple[TunedOwnKernel, ...] = ()
    if trials is not None:
        tuned = tune_own_kernels(found.kernels, trials, store, target, on_batch=on_batch)
    names = {each.kernel.name for each in found.kernels}
    known = load_kernel_trials(store, target, environment, kernels=names)
    kept = current_trials(_comparable(known, found.kernels), _versions())
    chosen = chosen_tiles(store, found.kernels, target)
    return TunedOwnKernels(
        backends=with_chosen_tiles(backends, chosen),
        chosen=chosen,
        kernels=tuned,
        covered=found.covered,
        spent=len({(each.trial.kernel, tuple(sorted(each.trial.decisions.items()))) for each in kept}),
    )


def chosen_tiles(store: RecordStore, kernels: Sequence[WeightedOwnKernel], target: Target) -> ChosenTiles:
    """Return the decisions that the records have for some kernels on this processor."""
    names = {each.kernel.name for each in kernels}
    kept = load_kernel_trials(store, target, environment_of(target), kernels=names)
    return choose_tiles(_comparable(kept, kernels), _versions())


def _comparable(kept: Iterable[KeptTrial], kernels: Sequence[WeightedOwnKernel]) -> list[KeptTrial]:
    """Return trials without those of a network's kernels among other weights than the network's."""
    wanted = {each.kernel.name: each.weight_bytes for each in kernels}
    return [
        each
        for each in kept
        if wanted.get(each.trial.kernel, each.trial.weight_bytes) == each.trial.weight_bytes
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTrials:
    """How trials of our own kernels are spent.

    Attributes:
        budget: of all kernels together, those included that the records hold of them; no limit if None.
        each: of one kernel, likewise; no limit if None.
        proposer: who proposes candidates.
        time_limit_s: seconds after which no batch starts; the best so far is confirmed then.
        network: the language model, if it proposes; without one the draft model does in its place.
    """

    budget: int | None = None
    each: int | None = None
    proposer: str = DRAFT
    time_limit_s: float = math.inf
    network: Network | None = None

    @property
    def proposing(self) -> str:
        """Who proposes, if the language model was to and there is none."""
        return DRAFT if self.proposer == LANGUAGE and self.network is None else self.proposer


def tune_own_kernels(
    kernels: Sequence[WeightedOwnKernel],
    trials: OwnTrials,
    store: RecordStore,
    target: Target,
    *,
    on_batch: Callable[[int], None] = lambda num_trials: None,
) -> tuple[TunedOwnKernel, ...]:
    """Spend trials on kernels; the records hold them afterwards.

    Args:
        kernels: each once.
        trials: how many, and who proposes.
        store: the records.
        target: this machine's processor.
        on_batch: told after each batch how many trials were measured.
    """
    deadline = time.monotonic() + trials.time_limit_s
    environment = environment_of(target)
    kept = _comparable(load_kernel_trials(store, target, environment), kernels)
    current = current_trials(kept, _versions())
    states = [
        _Tuning(each, [one.trial for one in current if one.trial.kernel == each.kernel.name])
        for each in kernels
    ]
    # What other versions' trials say of tiles holds.
    knowledge = TrialKnowledge(kept, num_threads=target.num_threads, seed=_SEED, network=trials.network)
    spent = 0
    with KernelProcess(target) as process:
        while True:
            known = sum(each.num_trials for each in states)
            left = math.inf if trials.budget is None else trials.budget - known
            state = _next(states, trials.each)
            if state is None or left < 1 or time.monotonic() > deadline:
                break
            size = int(min(BATCH, left, math.inf if trials.each is None else trials.each - state.num_trials))
            batch = state.propose(size, knowledge, trials.proposing, target)
            if not batch:
                state.is_exhausted = True
                continue
            measured = _measure(process, state.weighted, batch, rounds=_ROUNDS)
            keep_trials(
                store, state.weighted.kernel, measured, target=target, environment=_where(state, target)
            )
            knowledge.add(KeptTrial(each, 0, time.time(), ()) for each in measured)
            state.learn(measured)
            spent += len(measured)
            on_batch(spent)
        for state in states:
            _confirm(process, state, store, target)
    chosen = chosen_tiles(store, kernels, target)
    return tuple(state.summary(chosen) for state in states)


class OwnCandidates:
    """The candidates of one of our own kernels, as proposers ask for them."""

    is_gpu = False

    def __init__(self, kernel: OwnKernel, registers: int) -> None:
        """Take a kernel.

        Args:
            kernel: any of ours.
            registers: vectors of 16 that all registers of the target hold.
        """
        self.kernel = kernel
        self.spaces = [space_of(kernel.name, registers)]

    def make(self, space: int, row: npt.NDArray[np.int64]) -> Candidate | None:
        """Return the kernel with a row's decisions; None if there is no such kernel."""
        if not self.spaces[space].is_legal(row[None])[0]:
            return None
        return Candidate(self.kernel.with_decisions(self.spaces[space].decisions_of(row)), space, row)

    def sample(self, rng: np.random.Generator) -> Candidate | None:
        """Return a candidate at random."""
        return self.make(0, self.spaces[0].sample(1, rng)[0])

    def rule(self) -> Candidate | None:
        """Return the candidate that the kernel's own rule chooses; None where the space lacks it."""
        row = self.spaces[0].row_of(self.kernel.rule)
        return None if row is None else self.make(0, row)


@dataclass(eq=False)
class _Tuning:
    """One kernel while it is tuned.

    Attributes:
        weighted: the kernel.
        trials: of it, those from the records included.
        best_us: by the number of batches so far.
        num_new: trials measured now.
        is_exhausted: whether nothing new is proposed.
        proposer: once it was asked.
        pending: the batch that is measured; None for a rule that is no candidate.
    """

    weighted: WeightedOwnKernel
    trials: list[KernelTrial]
    best_us: list[float] = field(default_factory=list)
    num_new: int = 0
    is_exhausted: bool = False
    proposer: Proposer | None = None
    pending: list[Candidate | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.num_trials:
            self.best_us = [self._best()] * -(-self.num_trials // BATCH)

    @property
    def num_trials(self) -> int:
        """Distinct candidates that were measured, the rule included."""
        return len({tuple(sorted(each.decisions.items())) for each in self.trials})

    @property
    def gain(self) -> float:
        """What another batch promises, in microseconds of the model's run."""
        if not self.best_us:
            return math.inf
        best = self.best_us[-1]
        if not math.isfinite(best):
            return 0.0
        before = self.best_us[max(0, len(self.best_us) - 1 - _LATEST)]
        fallen = (before - best) / _LATEST if math.isfinite(before) else best
        return self.weighted.count * max(fallen, best / len(self.best_us)) / 2

    def propose(
        self, size: int, knowledge: TrialKnowledge, proposing: str, target: Target
    ) -> list[tuple[Decisions, OwnKernel]]:
        """Return candidates to measure, the rule first where it was not measured yet."""
        kernel = self.weighted.kernel
        candidates = OwnCandidates(kernel, vector_registers(target))
        rule = candidates.rule()
        if self.proposer is None:
            known = knowledge.of(kernel.name, self._trials_of_rule(candidates))
            self.proposer = new_proposer(proposing, kernel.name, candidates, known, seed=_SEED)
            measured = [candidates.spaces[0].row_of(each.decisions or kernel.rule) for each in self.trials]
            not_again: set[object] = getattr(self.proposer, "known", set())
            not_again.update((0, row.tobytes()) for row in measured if row is not None)
            if rule is not None:
                not_again.add(rule.key)
        found: list[tuple[Decisions, OwnKernel]] = []
        self.pending = []
        if all(each.decisions for each in self.trials):
            found.append(({}, kernel.with_decisions({})))
            self.pending.append(rule)
        for each in self.proposer.propose(size - len(found)) if size > len(found) else []:
            assert each.row is not None, "all candidates of our own are of a space"
            found.append((candidates.spaces[0].decisions_of(each.row), each.schedule))
            self.pending.append(each)
        return found

    def learn(self, measured: Sequence[KernelTrial]) -> None:
        """Take the results of a batch, in the order in which it was proposed."""
        self.trials += measured
        self.num_new += len(measured)
        self.best_us.append(self._best())
        known = [
            (candidate, trial.latency_us)
            for candidate, trial in zip(self.pending, measured, strict=True)
            if candidate is not None
        ]
        if self.proposer is not None and known:
            self.proposer.learn([candidate for candidate, _ in known], [took for _, took in known])
        self.pending = []

    def finalists(self) -> list[Decisions]:
        """Return the rule and the fastest candidates; none where the rule is fastest or nothing is new."""
        rule = [each.latency_us for each in self.trials if not each.decisions]
        if not rule or not self.num_new:
            return []
        latest: dict[tuple[tuple[str, int], ...], float] = {
            tuple(sorted(each.decisions.items())): each.latency_us for each in self.trials if each.decisions
        }
        ranked = sorted((us, key) for key, us in latest.items() if us < rule[-1])
        return [{}, *(dict(key) for _, key in ranked[:_CONFIRMED])] if ranked else []

    def summary(self, chosen: ChosenTiles) -> TunedOwnKernel:
        """Return what came of it."""
        decisions = chosen.decisions.get(self.weighted.kernel.name, {})
        rule = [each.latency_us for each in self.trials if not each.decisions]
        best = [each.latency_us for each in self.trials if dict(each.decisions) == dict(decisions)]
        return TunedOwnKernel(
            name=self.weighted.kernel.name,
            count=self.weighted.count,
            trials=self.num_new,
            rule_us=rule[-1] if rule else math.inf,
            best_us=best[-1] if best else math.inf,
        )

    def _trials_of_rule(self, candidates: OwnCandidates) -> list[DraftTrials]:
        """Return what is known of the rule, as a trial of its candidate."""
        took = [each.latency_us for each in self.trials if not each.decisions]
        rule = candidates.rule()
        if rule is None or rule.row is None or not took:
            return []
        return [DraftTrials(self.weighted.kernel.name, candidates.spaces[0], rule.row[None], (took[-1],))]

    def _best(self) -> float:
        return min((each.latency_us for each in self.trials), default=math.inf)


def _next(states: Sequence[_Tuning], each: int | None) -> _Tuning | None:
    """Return the kernel that gets the next batch; of equals the first; None where all have enough."""
    open_states = [
        state for state in states if not state.is_exhausted and (each is None or state.num_trials < each)
    ]
    return max(open_states, key=lambda state: state.gain, default=None)


def _measure(
    process: KernelProcess,
    weighted: WeightedOwnKernel,
    batch: Sequence[tuple[Decisions, OwnKernel]],
    *,
    rounds: int,
) -> list[KernelTrial]:
    samples = process.time(
        [made.function() for _, made in batch], rounds=rounds, weight_bytes=weighted.weight_bytes
    )
    return [
        KernelTrial(
            weighted.kernel.name,
            decisions,
            () if isinstance(found, str) else found,
            message=found if isinstance(found, str) else "",
            weight_bytes=weighted.weight_bytes,
        )
        for (decisions, _), found in zip(batch, samples, strict=True)
    ]


def _confirm(process: KernelProcess, state: _Tuning, store: RecordStore, target: Target) -> None:
    """Measure the fastest candidates of a kernel again, in turn with its rule."""
    kernel = state.weighted.kernel
    finalists = state.finalists()
    if not finalists:
        return
    batch = [(decisions, kernel.with_decisions(decisions)) for decisions in finalists]
    measured = _measure(process, state.weighted, batch, rounds=_CONFIRMING_ROUNDS)
    keep_trials(store, kernel, measured, target=target, environment=_where(state, target))
    state.trials += measured


def _versions() -> dict[str, str]:
    """Return the versions of our own kernels, by the names that records have for them."""
    found = (make_backend(backend).versions() for backend in set(BACKEND_BY_FAMILY.values()))
    return {name: text for each in found for name, text in each}


def _where(state: _Tuning, target: Target) -> Environment:
    return environment_of(target, make_backend(BACKEND_BY_FAMILY[family_of(state.weighted.kernel.name)]))
