"""Write schedules of one kernel, rank them by the draft model, and say which of them TVM takes as they are.

Checked in tests/tuner/language/test_generation.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_model.draft.decision_space import Decision
from cost_model.language.training_examples import context_of
from tuner.backends.metaschedule.candidates import Candidate, KernelCandidates, candidates_of
from tuner.backends.metaschedule.proposers import Knowledge
from tuner.backends.metaschedule.trials import task_name
from tuner.graph.relax_types import IRModule
from tuner.language.knowledge import draft_model_of
from tuner.language.machine import Machine


@dataclass(frozen=True, slots=True)
class WrittenSchedule:
    """A schedule that TVM can build.

    Attributes:
        candidate: the schedule.
        sketch: its number within its space.
        decisions: in the order of instructions.
        is_repaired: whether TVM changed a location.
        log_probability: of its being written.
        log_speed: predicted logarithm of its speed relative to the kernel's best; None without a draft model.
    """

    candidate: Candidate
    sketch: int
    decisions: tuple[Decision, ...]
    is_repaired: bool
    log_probability: float
    log_speed: float | None


@dataclass(frozen=True, slots=True)
class Generated:
    """What was written for a kernel.

    Attributes:
        schedules: the best so many, the most promising first.
        num_written: all, duplicates included.
        num_distinct: of those.
        num_legal: of the distinct ones that were tried, those that TVM took without a change.
        num_tried: of the distinct ones, in order, until there were enough.
    """

    schedules: tuple[WrittenSchedule, ...]
    num_written: int
    num_distinct: int
    num_legal: int
    num_tried: int

    @property
    def legal_ratio(self) -> float:
        """Share of schedules that TVM took as they were written."""
        return self.num_legal / max(1, self.num_tried)


def generate_for(
    module: IRModule, machine: Machine, knowledge: Knowledge, count: int, *, temperature: float, seed: int
) -> Generated:
    """Return schedules of a module's `main`; see `generate`."""
    candidates = candidates_of(module, machine.tuned_for)
    return generate(task_name(module), candidates, knowledge, count, temperature=temperature, seed=seed)


def generate(
    task: str,
    candidates: KernelCandidates,
    knowledge: Knowledge,
    count: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
) -> Generated:
    """Return schedules of a kernel, fewer where TVM refuses others; equal arguments give equal ones.

    Args:
        task: names the kernel; its own trials are in the prompt.
        knowledge: the network, and trials of any kernels.
        count: how many, at least 1.
        temperature: above 0; lower values favour likelier decisions.

    Raises:
        ValueError: there is no network, or the count or temperature is out of range.
    """
    if knowledge.network is None:
        raise ValueError("there is no network to write; load one")
    model = draft_model_of(knowledge, seed=seed)
    others = [each for each in knowledge.trials if each.task != task]
    rng = np.random.default_rng(seed)
    ranked: list[tuple[float, float | None, float, int, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]] = []
    num_written = 0
    for index, space in enumerate(candidates.spaces):
        own = [each for each in knowledge.trials if each.task == task and each.space == space]
        best = (
            own[0].rows[np.argsort(own[0].latencies_us, kind="stable")]
            if own
            else np.zeros((0, len(space.sizes)), dtype=np.int64)
        )
        context = context_of(space, others, best)
        found = knowledge.network.write(space, context, max(64, 2 * count), rng=rng, temperature=temperature)
        num_written += found.num_written
        speeds = None if model is None else model.predict(space, found.rows).mean
        for place, row in enumerate(found.rows):
            likelihood = float(found.log_probabilities[place])
            speed = None if speeds is None else float(speeds[place])
            ranked.append((likelihood if speed is None else speed, speed, likelihood, index, row))
    ranked.sort(key=lambda each: -each[0])
    schedules: list[WrittenSchedule] = []
    tried = legal = 0
    for _, speed, likelihood, index, row in ranked:
        if len(schedules) == count:
            break
        tried += 1
        made = candidates.make(index, row)
        if made is None:
            continue
        is_same = made.row is not None and bool(np.array_equal(made.row, row))
        legal += is_same
        sketch, decisions = candidates.spaces[index].decisions_of(row if made.row is None else made.row)
        schedules.append(WrittenSchedule(made, sketch, decisions, not is_same, likelihood, speed))
    return Generated(tuple(schedules), num_written, len(ranked), legal, tried)
