"""Small pipelines with micro-batches that differ, and their best schedules, found without the search."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from tessel.batches import Batch, MicroBatchClass
from tessel.placement import Placement
from tessel.shapes import vshape


def batch_of(
    placement: Placement, micro_batches: int, seed: int, *, classes: int = 3, memory: bool = True
) -> Batch:
    """Return a random batch: each class's blocks take 1 to 6 steps, lags 0 to 2, and hold 1 to 3 units."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(classes):
        units = int(rng.integers(1, 4)) if memory else 0
        made.append(
            MicroBatchClass(
                name=f"c{number}",
                spans=tuple(rng.integers(1, 7, len(placement.blocks)).tolist()),
                memory=tuple(units * int(np.sign(block.memory)) for block in placement.blocks),
                lags=tuple(rng.integers(0, 3, len(placement.edges)).tolist()),
            )
        )
    sequence = tuple(rng.integers(0, classes, micro_batches).tolist())
    return Batch(classes=tuple(made), sequence=sequence)


@st.composite
def batch_cases(draw: st.DrawFn, *, devices: int = 3, micro_batches: int = 4) -> tuple[Placement, Batch]:
    """Draw a chain of up to so many devices and a batch of 2 up to so many micro-batches."""
    placement = vshape(draw(st.integers(1, devices)))
    count = draw(st.integers(2, micro_batches))
    return placement, batch_of(placement, count, draw(st.integers(0, 2**16)))


def least_makespan(placement: Placement, batch: Batch, limits: tuple[int, ...] | None) -> int | None:
    """Return the least makespan by CP-SAT on intervals of all blocks; None where nothing fits."""
    model = cp_model.CpModel()
    horizon = int(batch.spans.sum() + batch.lags.sum())
    last = model.new_int_var(0, horizon, "last")
    index = {block.name: number for number, block in enumerate(placement.blocks)}
    start = {}
    on_device: dict[int, list[cp_model.IntervalVar]] = {d: [] for d in range(placement.devices)}
    for micro_batch, (number, block) in product(range(batch.micro_batches), enumerate(placement.blocks)):
        span = int(batch.spans[micro_batch, number])
        at = start[number, micro_batch] = model.new_int_var(0, horizon, "")
        interval = model.new_fixed_size_interval_var(at, span, "")
        model.add(at + span <= last)
        for device in block.devices:
            on_device[device].append(interval)
    for micro_batch, (number, edge) in product(range(batch.micro_batches), enumerate(placement.edges)):
        source, target = index[edge.source], index[edge.target]
        wait = int(batch.spans[micro_batch, source] + batch.lags[micro_batch, number])
        model.add(start[target, micro_batch] >= start[source, micro_batch] + wait)
    for device, intervals in on_device.items():
        model.add_no_overlap(intervals)
        if limits is not None:
            here = [key for key in start if device in placement.blocks[key[0]].devices]
            model.add_reservoir_constraint(
                [start[key] for key in here],
                [int(batch.memory[key[1], key[0]]) for key in here],
                -(10**6),
                limits[device],
            )
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None
    assert status == cp_model.OPTIMAL
    return round(solver.objective_value)


def least_makespan_by_trying(placement: Placement, batch: Batch) -> int:
    """Return the least makespan by trying every order in which tasks may be begun."""
    index = {block.name: number for number, block in enumerate(placement.blocks)}
    before: dict[int, list[tuple[int, int]]] = {number: [] for number in index.values()}
    for number, edge in enumerate(placement.edges):
        before[index[edge.target]].append((index[edge.source], number))
    tasks = list(product(range(len(placement.blocks)), range(batch.micro_batches)))
    best = 10**9

    def begin(ends: dict[tuple[int, int], int], free: tuple[int, ...], latest: int) -> None:
        nonlocal best
        if latest >= best:
            return
        if len(ends) == len(tasks):
            best = latest
            return
        for block, micro_batch in tasks:
            if (block, micro_batch) in ends:
                continue
            if any((source, micro_batch) not in ends for source, _ in before[block]):
                continue
            devices = placement.blocks[block].devices
            arrivals = [ends[s, micro_batch] + int(batch.lags[micro_batch, e]) for s, e in before[block]]
            at = max([free[device] for device in devices] + arrivals)
            end = at + int(batch.spans[micro_batch, block])
            now = tuple(end if device in devices else each for device, each in enumerate(free))
            begin({**ends, (block, micro_batch): end}, now, max(latest, end))

    begin({}, (0,) * placement.devices, 0)
    return best


def with_spans(placement: Placement, factor: int) -> Placement:
    """Return a placement whose spans and memory are a factor larger, so that fractions of them are whole."""
    return msgspec.structs.replace(
        placement,
        blocks=tuple(
            msgspec.structs.replace(block, span=block.span * factor, memory=block.memory * factor)
            for block in placement.blocks
        ),
    )
