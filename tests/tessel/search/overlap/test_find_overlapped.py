"""Schedules whose forwards and backwards run together, against CP-SAT on small random pipelines."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from ortools.sat.python import cp_model

from tessel.errors import InfeasibleError, ScheduleError
from tessel.handwritten import OVERLAPPING
from tessel.handwritten.paired import orders_of, paired_rule, timed
from tessel.placement import BlockKind, Placement
from tessel.schedule.overlap import Overlap
from tessel.schedule.schedule import decode_schedule
from tessel.search import SearchBudget, find_overlapped, find_schedule
from tessel.shapes import make_shape
from tessel.validation import check_schedule, find_violations

FACTORS = (0.54, 0.6, 0.75, 0.9, 1.0)


def least_makespan(placement: Placement, micro_batches: int, factor: float, memory: int | None) -> int:
    """Return the shortest schedule by CP-SAT: a start a task, and a choice for each two that may be a pair.

    Memory is what the tasks that started before hold, with what ends later, of a pair, still held.
    """
    model = cp_model.CpModel()
    parts = round(factor * 10**6)
    blocks, horizon = placement.blocks, micro_batches * sum(block.span for block in placement.blocks) + 99
    tasks = [(number, m) for number in range(len(blocks)) for m in range(micro_batches)]
    start = {task: model.new_int_var(0, horizon, "") for task in tasks}
    length = {task: model.new_int_var(0, horizon, "") for task in tasks}
    end = {task: model.new_int_var(0, horizon, "") for task in tasks}
    beside: dict[tuple[int, int], list] = {task: [] for task in tasks}
    before = {}
    for place, one in enumerate(tasks):
        model.add(end[one] == start[one] + length[one])
        for other in tasks[place + 1 :]:
            first, second = blocks[one[0]], blocks[other[0]]
            if first.devices != second.devices:
                continue
            ahead, behind = model.new_bool_var(""), model.new_bool_var("")
            ways = [ahead, behind]
            model.add(start[other] >= end[one]).only_enforce_if(ahead)
            model.add(start[one] >= end[other]).only_enforce_if(behind)
            if {first.kind, second.kind} == {BlockKind.FORWARD, BlockKind.BACKWARD}:
                together = model.new_bool_var("")
                model.add(start[one] == start[other]).only_enforce_if(together)
                total = first.span + second.span
                span = max(first.span, second.span, -(-parts * total // 10**6))
                for task in (one, other):
                    model.add(length[task] == span).only_enforce_if(together)
                    beside[task].append(together)
                ways.append(together)
            before[one, other], before[other, one] = ahead, behind
            model.add_exactly_one(ways)
    for task in tasks:
        model.add_at_most_one(beside[task])
        model.add(length[task] == blocks[task[0]].span).only_enforce_if(
            [each.negated() for each in beside[task]]
        )
    for edge in placement.edges:
        names = placement.index_by_name
        for m in range(micro_batches):
            model.add(start[names[edge.target], m] >= end[names[edge.source], m] + edge.lag)
    if memory is not None:
        for task in tasks:
            if blocks[task[0]].memory > 0:  # at the start of a forward all that is not over by then is held
                held = [
                    blocks[other[0]].memory * (1 - before[task, other] if blocks[other[0]].memory > 0 else 0)
                    + (blocks[other[0]].memory * before[other, task] if blocks[other[0]].memory < 0 else 0)
                    for other in tasks
                    if other != task and blocks[other[0]].devices == blocks[task[0]].devices
                ]
                model.add(sum(held) + blocks[task[0]].memory <= memory)
    last = model.new_int_var(0, horizon, "")
    model.add_max_equality(last, list(end.values()))
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = 20
    assert solver.solve(model) == cp_model.OPTIMAL
    return int(solver.objective_value)


def placement_of(seed: int) -> tuple[Placement, int]:
    rng = np.random.default_rng(seed)
    shape, devices, micro_batches = (("vshape", 2, 3), ("zbv", 1, 3), ("vshape", 3, 2), ("vshape", 1, 4))[
        seed % 4
    ]
    placement = make_shape(shape, devices, lag=int(rng.integers(2)))
    blocks = tuple(msgspec.structs.replace(block, span=int(rng.integers(1, 7))) for block in placement.blocks)
    return msgspec.structs.replace(placement, blocks=blocks), micro_batches


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed == 1 else ()) for seed in range(8)]
)
def test_nothing_is_shorter_than_the_bound_nor_than_what_cp_sat_finds(seed: int) -> None:
    placement, micro_batches = placement_of(seed)
    factor = FACTORS[seed % 5]
    stages = sum(block.kind is BlockKind.FORWARD for block in placement.blocks) // placement.devices
    memory = None if seed % 3 == 0 else stages + seed % 3
    least = least_makespan(placement, micro_batches, factor, memory)
    found = find_overlapped(
        placement,
        micro_batches=micro_batches,
        factor=factor,
        memory=memory,
        budget=SearchBudget(work_limit=0.1),
    )
    check_schedule(found)
    assert found.lower_bound <= least <= found.makespan
    assert found.makespan == least  # of so few tasks every move is tried
    assert found.optimal == (found.makespan == found.lower_bound)
    apart = find_schedule(
        placement, micro_batches=micro_batches, memory=memory, budget=SearchBudget(work_limit=0.1)
    )
    assert found.makespan <= apart.makespan
    if factor == 1:
        assert found.makespan == apart.makespan
    assert decode_schedule(found.to_json()) == found
    again = timed(placement, orders_of(found), found.pairs, factor, micro_batches, found.memory)
    assert again.starts == found.starts


def test_deeper_orders_are_found_and_no_rule_is_shorter() -> None:
    """1F1B's neighbours wait for each other; with twice its warm-up all run together."""
    placement = make_shape("vshape", 3, forward_span=10, backward_span=20)
    rules = {
        rule.name: paired_rule(rule, placement, micro_batches=9, factor=0.67)
        for rule in OVERLAPPING
        if rule.why_not(placement, 9) is None
    }
    assert rules["1f1b"].makespan == 330
    assert len(rules["1f1b"].pairs) == 0
    assert rules["eager-1f1b"].makespan == 30 + 8 * 21 + 3 * 20  # the way there, pairs, the way back
    found = find_overlapped(placement, micro_batches=9, factor=0.67, budget=SearchBudget(work_limit=0.2))
    assert found.makespan <= min(schedule.makespan for schedule in rules.values())
    chunks = make_shape("interleaved", 2, chunks=2, forward_span=10, backward_span=20)
    names = ("interleaved", "combined-1f1b")
    own = {
        rule.name: paired_rule(rule, chunks, micro_batches=8, factor=0.67)
        for rule in OVERLAPPING
        if rule.name in names
    }
    assert own["combined-1f1b"].makespan <= own["interleaved"].makespan
    for schedule in (*rules.values(), *own.values(), found):
        check_schedule(schedule)


def test_what_is_wrong_with_pairs_is_named() -> None:
    placement = make_shape("vshape", 1, forward_span=5, backward_span=5)
    found = find_overlapped(placement, micro_batches=3, factor=0.6, budget=SearchBudget(work_limit=0.01))
    assert isinstance(found.overlap, Overlap)
    assert (found.makespan, found.peak_memory) == (22, (2,))  # 5 + 6 + 6 + 5, and a pair holds both
    assert found.optimal

    def wrong(**changes: object) -> str:
        return " ".join(find_violations(msgspec.structs.replace(found, **changes)))

    assert "its starts give [2]" in wrong(peak_memory=(1,))
    assert "its last block ends at 22" in wrong(makespan=23)
    with pytest.raises(ScheduleError, match="a pair takes a share"):
        Overlap(factor=0.0)
    with pytest.raises(ScheduleError, match="runs one block at a time, and this schedule has 2 pairs"):
        found.require_equal("tessel check")
    with pytest.raises(InfeasibleError):
        find_overlapped(
            placement, micro_batches=3, factor=0.6, memory=0, budget=SearchBudget(work_limit=0.01)
        )
    tight = find_overlapped(
        placement, micro_batches=3, factor=0.6, memory=1, budget=SearchBudget(work_limit=0.01)
    )
    assert (tight.makespan, tight.pairs) == (30, ())
