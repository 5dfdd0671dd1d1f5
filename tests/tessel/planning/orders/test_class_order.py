"""Rules' orders of micro-batches that differ, against schedules made one by one."""

from __future__ import annotations

from itertools import permutations

import pytest

from tessel.batches.mixture import Mixture
from tessel.handwritten import HANDWRITTEN
from tessel.orders import earliest_starts
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.training_step import TrainingStep, build_step, estimate_step
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.orders.class_order import assignment_in_order
from tessel.planning.orders.timed_order import time_rule
from tessel.profiles import CostTable, Layer, Profile, StageCosts
from tessel.schedule import Schedule
from tessel.validation import check_schedule

LINK = Link(bytes_per_s=1e9, latency_us=3.0)


def step_of(replicas: int, sequence: tuple[int, ...], memory: int | None = None) -> TrainingStep:
    tables = tuple(
        CostTable(
            micro_batch=1,
            tensor_parallel=1,
            costs=tuple(
                StageCosts(
                    forward_us=us * (layer + 2),
                    backward_us=3 * us,
                    saved_bytes=int(us),
                    boundary_bytes=int(us),
                    weight_bytes=1000,
                )
                for layer in range(4)
            ),
            of=name,
        )
        for name, us in (("a", 100.0), ("b", 270.0))
    )
    profile = Profile(name="p", layers=tuple(Layer(f"l{each}") for each in range(4)), tables=tables)
    layout = Layout(
        data_parallel=replicas,
        pipeline=2,
        micro_batch=1,
        micro_batches=len(sequence) // replicas,
        cuts=((0, 1), (2, 3)),
    )
    cluster = Cluster(devices=2 * replicas, hop=LINK, collective=LINK, memory_bytes=memory)
    mixture = Mixture(classes=("a", "b"), sequence=sequence)
    return build_step(profile, layout, Job(cluster=cluster, optimizer=OPTIMIZERS["sgd"], mixture=mixture))


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_estimate_is_that_of_its_schedules_and_no_worse_than_each_sequence(replicas: int) -> None:
    sequence = (0, 1, 0, 0, 1, 0)
    step = step_of(replicas, sequence)
    assert step.batch is not None
    timed = time_rule("1f1b", step.layout, step.figures, step.step_us)
    shared = assignment_in_order("1f1b", step)
    for schedule in shared.schedules:
        check_schedule(schedule)
    assert estimate_step(step, *shared.schedules) == timed.estimate
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    size = len(sequence) // replicas
    orders = rule.orders(step.placement, micro_batches=size)
    given = []
    for first in range(0, len(sequence), size):
        own = range(first, first + size)
        best = 10**9
        for sequenced in {tuple(own), tuple(sorted(own, key=lambda each: -sequence[each]))}:
            batch = step.batch.taken(sequenced)
            starts = earliest_starts(step.placement, orders, batch)
            schedule = Schedule.of(step.placement, starts, micro_batches=size, batch=batch)
            best = min(best, schedule.makespan)
        given.append(best)
    assert shared.makespan <= max(given)
    if replicas == 1:
        every = []
        for order in set(permutations(sequence)):
            batch = step.batch.taken([sequence.index(each) for each in order])
            starts = earliest_starts(step.placement, orders, batch)
            every.append(Schedule.of(step.placement, starts, micro_batches=size, batch=batch).makespan)
        assert min(every) <= shared.makespan


def test_what_fits_comes_before_what_is_shorter() -> None:
    free = step_of(1, (0, 1, 1, 0, 0, 0))
    held = time_rule("1f1b", free.layout, free.figures, free.step_us).estimate.memory_bytes
    tight = step_of(1, (0, 1, 1, 0, 0, 0), memory=max(held) - 1)
    found = time_rule("1f1b", tight.layout, tight.figures, tight.step_us).estimate
    assert max(found.memory_bytes) < max(held) or not found.fits
