"""Plans of micro-batches that differ: against CP-SAT over all cuts and assignments, and one class as ever."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import msgspec
import numpy as np
import pytest
from ortools.sat.python import cp_model

import tessel
from tessel.batches.mixture import Mixture
from tessel.errors import DocumentError, ScheduleError, UsageError
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanResult
from tessel.planning.saved_plan import SavedPlan, load_saved_plan
from tessel.profiles import CostTable, Layer, Profile, StageCosts
from tessel.search import SearchBudget

ROUNDING = 2e-3
"""Blocks are rounded up to whole steps, of which a micro-batch keeps the busiest device for four thousand."""

FREE = Link(bytes_per_s=1e15, latency_us=0.0)


def classed(times: dict[int | str, list[tuple[int, int]]], saved: int = 0) -> Profile:
    """Return a profile whose layers take these forwards and backwards by class, in microseconds."""
    tables = tuple(
        CostTable(
            micro_batch=1,
            tensor_parallel=1,
            costs=tuple(
                StageCosts(forward_us=f, backward_us=b, saved_bytes=saved * (place + 1), weight_bytes=8)
                for f, b in own
            ),
            of=name,
        )
        for place, (name, own) in enumerate(times.items())
    )
    layers = tuple(Layer(f"l{index}") for index in range(len(tables[0].costs)))
    return Profile(name="tiny", layers=layers, tables=tables)


def random_times(rng: np.random.Generator, layers: int) -> dict[int | str, list[tuple[int, int]]]:
    return {
        name: [(int(a), int(b)) for a, b in rng.integers(size, 5 * size, (layers, 2))]
        for name, size in (("short", 10), ("long", 40))
    }


def planned(
    profile: Profile,
    mixture: Mixture,
    *,
    devices: int,
    memory: int | None = None,
    work: float = 0.5,
    **options: object,
) -> PlanResult:
    cluster = Cluster(devices=devices, hop=FREE, collective=FREE, memory_bytes=memory)
    job = Job(
        cluster=cluster,
        global_batch=len(mixture.sequence),
        optimizer=OPTIMIZERS["none"],
        mixture=mixture,
    )
    choices = replace(PlanOptions(placements=("vshape",), recompute=False, what_if=False), **options)  # type: ignore[arg-type]  # as given
    return find_plan(profile, job, options=choices, budget=SearchBudget(work_limit=work))


def least_makespan(
    stages: list[list[tuple[int, int]]], saved: list[list[int]], room: list[int] | None
) -> int | None:
    """Return the least makespan of one replica by CP-SAT; None where nothing fits.

    Args:
        stages: forward and backward by micro-batch and stage, one stage a device.
        saved: bytes that a micro-batch keeps from forward to backward, likewise.
        room: bytes of each device for these.
    """
    model = cp_model.CpModel()
    horizon = sum(f + b for own in stages for f, b in own)
    ends = []
    by_device: dict[int, list[cp_model.IntervalVar]] = {}
    held: dict[int, tuple[list[cp_model.IntervalVar], list[int]]] = {}
    for number, own in enumerate(stages):
        starts = [[model.new_int_var(0, horizon, f"{number}.{s}.{d}") for d in "fb"] for s in range(len(own))]
        for stage, (times, (forward, backward)) in enumerate(zip(own, starts, strict=True)):
            for start, time in ((forward, times[0]), (backward, times[1])):
                interval = model.new_fixed_size_interval_var(start, time, "")
                by_device.setdefault(stage, []).append(interval)
            model.add(backward >= forward + times[0])
            if stage + 1 < len(own):
                model.add(starts[stage + 1][0] >= forward + times[0])
                model.add(backward >= starts[stage + 1][1] + own[stage + 1][1])
            size = model.new_int_var(0, horizon, "")
            kept = model.new_interval_var(forward, size, backward, "")
            held.setdefault(stage, ([], []))[0].append(kept)
            held[stage][1].append(saved[number][stage])
        ends.append(starts[0][1] + own[0][1])
    for intervals in by_device.values():
        model.add_no_overlap(intervals)
    for stage, (intervals, sizes) in held.items():
        if room is not None:
            model.add_cumulative(intervals, sizes, room[stage])
    last = model.new_int_var(0, horizon, "last")
    for end in ends:
        model.add(last >= end)
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    return int(solver.objective_value) if status == cp_model.OPTIMAL else None


def least_step(profile: Profile, mixture: Mixture, *, devices: int, room: int | None) -> int:
    """Return the least step over replicas × pipeline, cuts, assignments and orders."""
    costs = {table.of: table.costs for table in profile.tables}
    layers, number = len(profile.layers), len(mixture.sequence)
    kinds = [mixture.classes[each] for each in mixture.sequence]
    best = []
    for replicas in (each for each in (1, devices) if number % each == 0):
        pipeline = devices // replicas
        for inner in combinations(range(1, layers), pipeline - 1):
            bounds = (0, *inner, layers)
            runs = [range(bounds[s], bounds[s + 1]) for s in range(pipeline)]
            # Weights and their gradients.
            left = None if room is None else [room - 16 * len(run) for run in runs]

            def makespan(
                group: tuple[int, ...], runs: list[range] = runs, left: list[int] | None = left
            ) -> int:
                own = [[costs[kinds[each]][layer] for layer in range(layers)] for each in group]
                found = least_makespan(
                    [
                        [
                            (
                                sum(int(c[layer].forward_us) for layer in run),
                                sum(int(c[layer].backward_us or 0) for layer in run),
                            )
                            for run in runs
                        ]
                        for c in own
                    ],
                    [[sum(c[layer].saved_bytes for layer in run) for run in runs] for c in own],
                    left,
                )
                return 10**9 if found is None else found

            size = number // replicas
            ways = (
                {
                    tuple(sorted(tuple(sorted(order[r * size : (r + 1) * size])) for r in range(replicas)))
                    for order in permutations(range(number))
                }
                if replicas > 1
                else {(tuple(range(number)),)}
            )
            best.append(min(max(map(makespan, way)) for way in ways))
    return min(best)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_no_cut_assignment_and_order_beats_the_bound_and_what_is_proven_is_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    profile = classed(random_times(rng, 3), saved=int(seed % 2) * 10)
    mixture = Mixture(classes=("short", "long"), sequence=(0, 1, 0, *((1,) if seed % 3 else (0,))))
    room = None if seed % 2 == 0 else 16 * 3 + 20 * 3 + 10 * (seed % 4)
    result = planned(profile, mixture, devices=2, memory=room)
    least = least_step(profile, mixture, devices=2, room=room)
    step_us = result.best.estimate.step_us

    assert result.lower_bound_us <= least * (1 + ROUNDING)
    assert least * (1 - 1e-9) <= step_us
    if result.optimal:
        assert step_us <= least * (1 + ROUNDING)
    assert step_us <= least * 1.1
    assert result.best.estimate.fits


def test_no_hand_written_row_is_faster_and_each_replica_runs_its_share() -> None:
    rng = np.random.default_rng(5)
    profile = classed(random_times(rng, 6))
    mixture = Mixture(classes=("long", "short"), sequence=(0, 1, 1, 1, 0, 1, 1, 1))
    result = planned(profile, mixture, devices=4, data_parallel=2, work=0.1)
    assert all(
        row.planned.estimate.step_us >= result.best.estimate.step_us * (1 - 1e-9)
        for row in result.baselines
        if row.planned is not None
    )
    shared = result.best.shared
    assert shared is not None
    assert sorted(each for group in shared.replicas for each in group) == list(range(8))
    ends = [schedule.makespan * result.best.step.step_us for schedule in shared.schedules]
    assert max(ends) == pytest.approx(result.best.estimate.step_us)


ROWS = [
    {
        "layer": f"h{index}",
        "forward_ms": 1 + index % 3,
        "backward_ms": 2 + index % 2,
        "weights_mib": 9,
        "saved_mib": 3,
        "boundary_mib": 1,
    }
    for index in range(5)
]


@pytest.mark.parametrize("options", [{"memory": "1GiB"}, {"placement": "xshape", "sharding": "gradients"}])
def test_one_class_is_the_plan_of_equal_micro_batches_byte_for_byte(options: dict[str, str]) -> None:
    plain = tessel.plan(ROWS, devices=2, micro_batches=4, work=0.05, progress=False, **options)
    both = [
        {**row, "length": length, "forward_ms": row["forward_ms"] * length / 512}  # type: ignore[operator]  # a number
        for length in (512, 1024)
        for row in ROWS
    ]
    for source, batch in ((both, "512x4"), (both[:5], [512] * 4)):
        found = tessel.plan(source, devices=2, batch=batch, work=0.05, progress=False, **options)
        search_seconds = plain.schedule.search_seconds
        schedule = msgspec.structs.replace(found.planned.schedule, search_seconds=search_seconds)  # type: ignore[union-attr]  # of a table
        document = msgspec.structs.replace(found.planned, schedule=schedule)  # type: ignore[type-var]  # of a table
        assert document.to_json() == plain.to_json()  # type: ignore[union-attr]  # of a table


def saved() -> SavedPlan:
    profile = classed(random_times(np.random.default_rng(1), 4))
    mixture = Mixture(classes=("short", "long"), sequence=(0, 0, 1, 1))
    result = planned(profile, mixture, devices=4, data_parallel=2, baselines=False, work=0.05)
    return SavedPlan.of(result, profile, result.job)


def test_a_saved_plan_loads_and_one_that_lies_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]  # pytest's
    plan = saved()
    path = tmp_path / "plan.json"
    path.write_bytes(plan.to_json())
    assert load_saved_plan(path) == plan
    batch = plan.batch
    assert not isinstance(batch, msgspec.UnsetType)
    swapped = msgspec.structs.replace(batch.mixture, sequence=(1, 1, 1, 0))
    slow = [
        msgspec.structs.replace(each, forward_us=9 * each.forward_us) for each in plan.profile.tables[1].costs
    ]
    tables = (plan.profile.tables[0], msgspec.structs.replace(plan.profile.tables[1], costs=tuple(slow)))
    for changed in (
        msgspec.structs.replace(plan, batch=msgspec.structs.replace(batch, mixture=swapped)),
        msgspec.structs.replace(plan, batch=msgspec.structs.replace(batch, replicas=((0, 1), (1, 2)))),
        msgspec.structs.replace(plan, batch=msgspec.structs.replace(batch, schedules=batch.schedules[:1])),
        msgspec.structs.replace(plan, batch=msgspec.UNSET),
        msgspec.structs.replace(plan, profile=msgspec.structs.replace(plan.profile, tables=tables)),
    ):
        path.write_bytes(changed.to_json())
        with pytest.raises(DocumentError, match="no plan of layers"):
            load_saved_plan(path)


def test_what_cannot_be_combined_is_refused_in_one_line() -> None:
    rows = [{**row, "length": length} for length in (512, 1024) for row in ROWS]
    for batch, options, said in (
        ("512x4,1024x4", {"placement": "xshape"}, "runs equal micro-batches alone"),
        ("512x4,1024x4", {"sharding": "parameters"}, "exchange weights or gradients in every micro-batch"),
        ("512x4,1024x4", {"micro_batches": 8}, "leave --global-batch and --micro-batches out"),
        ("512x4,2048x4", {}, "beyond the measured ones"),
        ("512x4,textx4", {}, "names 'text'"),
        (1, {}, "say how many a step has of each"),
    ):
        with pytest.raises((ScheduleError, UsageError), match=said) as refused:
            tessel.plan(rows, devices=2, batch=batch, work=0.1, progress=False, **options)
        assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="no column length or class"):
        tessel.plan(ROWS, devices=2, batch="512x4", work=0.1, progress=False)


def test_a_change_says_what_even_micro_batches_would_bring() -> None:
    profile = classed({"short": [(10, 20)] * 4, "long": [(30, 60)] * 4})
    mixture = Mixture(classes=("short", "long"), sequence=(0, 0, 0, 1))
    found = planned(profile, mixture, devices=2, what_if=True, data_parallel=1)
    (table,) = classed({"mean": [(15, 30)] * 4}).tables
    even = msgspec.structs.replace(profile, tables=(msgspec.structs.replace(table, of=msgspec.UNSET),))
    alone = find_plan(
        even,
        replace(found.job, mixture=None),
        options=PlanOptions(placements=("vshape",), recompute=False, what_if=False, data_parallel=1),
        budget=SearchBudget(work_limit=0.5),
    )
    (change,) = (each for each in found.changes if "equally long" in each.change)
    assert alone.optimal
    assert change.step_us == pytest.approx(alone.best.estimate.step_us, rel=ROUNDING)
    assert change.saves_us == found.best.estimate.step_us - change.step_us > 0
