"""Recomputation: the stages that run their forward again in their backward, to hold less between the two.

A stage that recomputes keeps what it received from the stage before instead of what its backward reads, and
its backward takes the time of its forward on top. That pays where the memory limit bounds the micro-batches
in flight, so the sets of recomputing stages are tried there, each with an order searched for it, and the
fastest is taken. With at most `MAX_EXHAUSTIVE` stages that hold less so, every set is tried.

    kept                        forward ── saved 20 MiB ──────────────── backward
    recomputed                  forward ── received 1 MiB ── forward again, backward

While the backward runs it holds all that is saved; that much is set aside on the device throughout. Checked
in tests/tessel/tuned_model/test_recomputation.py.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost (2016); by stage and with the schedule, Sun
et al., AdaPipe (ASPLOS 2024), section 4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

import msgspec

from tessel.errors import InfeasibleError
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.search import SearchBudget, find_schedule
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.model.instance import build_instance
from tuner.plan import ModelPlan

MAX_EXHAUSTIVE = 4
"""Stages worth recomputing up to which every set of them is tried."""

MAX_SETS = 16
"""Most sets that are tried beyond that."""

TRIAL_SHARE = 0.5
"""Share of the budget spent on trying sets; the rest improves the schedule of the best."""


def recomputing(tuned: ModelPlan, stages: Collection[int]) -> ModelPlan:
    """Return the plan whose stages of these numbers recompute, and no others."""
    changed = tuple(
        msgspec.structs.replace(stage, recomputes=number in stages)
        for number, stage in enumerate(tuned.stages)
    )
    return msgspec.structs.replace(tuned, stages=changed)


def recomputation_sets(tuned: ModelPlan) -> tuple[frozenset[int], ...]:
    """Return the sets of stages to try, smallest first; the first is empty.

    Beyond `MAX_EXHAUSTIVE` stages that would hold less, they are the first ones of the chain, which have most
    micro-batches in flight, in growing number, and each one alone.
    """
    worthwhile = [
        number
        for number, stage in enumerate(tuned.stages)
        if tuned.training and stage.saved_bytes > stage.received_bytes
    ]
    if len(worthwhile) <= MAX_EXHAUSTIVE:
        sizes = range(len(worthwhile) + 1)
        return tuple(frozenset(each) for size in sizes for each in itertools.combinations(worthwhile, size))
    alone = MAX_SETS // 4
    step = -(-len(worthwhile) // (MAX_SETS - alone - 1))
    first_ones = [worthwhile[:count] for count in range(0, len(worthwhile), step)]
    by_size = sorted(worthwhile, key=lambda number: -tuned.stages[number].saved_bytes)
    found = [*first_ones, worthwhile, *([number] for number in by_size[:alone])]
    return tuple(sorted(dict.fromkeys(map(frozenset, found)), key=len))


def search_with_recomputation(
    tuned: ModelPlan,
    *,
    place: Callable[[ModelPlan], Placement],
    limits: Callable[[ModelPlan], tuple[int, ...] | None],
    micro_batches: int,
    budget: SearchBudget,
    seed: int = 0,
) -> tuple[ModelPlan, Schedule]:
    """Return the stages with the best recomputation found, and their schedule.

    A set whose lower bound is not below the best makespan so far is left out. Never slower than the schedule
    found without recomputation, where there is one.

    Args:
        tuned: stages that do not recompute.
        place: puts stages on devices.
        limits: bytes of activations that each device has left; raises `InfeasibleError` if a stage does not
            fit.
        budget: what all searches together may spend.
        seed: of each search.

    Raises:
        InfeasibleError: no set fits; the error is that of recomputing nothing.
    """
    sets = recomputation_sets(tuned)
    trials = budget.part(TRIAL_SHARE)
    best: tuple[ModelPlan, Schedule] | None = None
    refused: InfeasibleError | None = None
    for number, stages in enumerate(sets):
        if best is not None and budget.is_interrupted:
            break
        stages_of_set = recomputing(tuned, stages)
        try:
            placement, memory = place(stages_of_set), limits(stages_of_set)
            if best is not None and best[1].makespan <= makespan_lower_bound(
                build_instance(placement, micro_batches=micro_batches, memory=memory)
            ):
                continue
            found = find_schedule(
                placement,
                micro_batches=micro_batches,
                memory=memory,
                budget=trials.part(1 / (len(sets) - number)),
                seed=seed,
            )
        except InfeasibleError as error:
            refused = refused or error
            continue
        if best is None or found.makespan < best[1].makespan:
            best = stages_of_set, found
            budget.report(found.makespan, found.lower_bound, found.found_by)
    if best is None:
        assert refused is not None, "every set was refused"
        raise refused
    chosen, found = best
    if not found.optimal:
        found = find_schedule(
            found.placement,
            micro_batches=micro_batches,
            memory=found.memory,
            budget=budget.part(1.0),
            seed=seed,
            start_from=found,
        )
    budget.is_proven = found.optimal
    return chosen, found
