"""A general CP-SAT model of a whole schedule: the rival that the makespan search is measured against.

Interval variables on the devices, precedences, reservoirs for memory, and one order of micro-batches per
block (they are alike); optional intervals where there are choices, and there one order for one block, since
micro-batches may then differ. Nothing here knows what a pipeline is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ortools.sat.python import cp_model

from tessel.placement import Placement


@dataclass(frozen=True, slots=True)
class CpsatResult:
    """What the model found.

    Attributes:
        makespan: best makespan, or None where none was found.
        lower_bound: proven bound.
        is_optimal: the makespan is proven optimal.
        is_infeasible: no schedule exists, proven.
        seconds: wall-clock time, or processor seconds where those were limited.
    """

    makespan: int | None
    lower_bound: int
    is_optimal: bool
    is_infeasible: bool
    seconds: float


def solve_makespan(
    placement: Placement,
    *,
    micro_batches: int,
    memory: Sequence[int] | None,
    time_limit_s: float,
    hint: Mapping[tuple[int, int], int] | None = None,
    num_workers: int = 1,
    seed: int = 0,
    is_processor_time: bool = False,
) -> CpsatResult:
    """Solve the model.

    Args:
        placement: blocks of one micro-batch.
        micro_batches: how many are run.
        memory: limit in units, one a device.
        time_limit_s: seconds for the solver.
        hint: starts by (block index, micro-batch) to begin from.
        num_workers: threads.
        seed: the solver's seed.
        is_processor_time: count the processor seconds of this process, which other work on the machine does
            not use up, instead of wall-clock seconds.
    """
    model = cp_model.CpModel()
    steps = sum(block.span for block in placement.blocks) + sum(edge.lag for edge in placement.edges)
    horizon = micro_batches * steps
    present = _presence(model, placement, micro_batches)
    starts: dict[tuple[int, int], cp_model.IntVar] = {}
    makespan = model.new_int_var(0, horizon, "makespan")
    by_device: list[list[cp_model.IntervalVar]] = [[] for _ in range(placement.devices)]
    changes: list[list[tuple[cp_model.IntVar, int, cp_model.IntVar | int]]] = [
        [] for _ in range(placement.devices)
    ]
    in_choice = {name for choice in placement.choices for option in choice.options for name in option}
    fixed = (index for index, block in enumerate(placement.blocks) if block.name not in in_choice)
    first_fixed = next(fixed, -1)
    for index, block in enumerate(placement.blocks):
        for m in range(micro_batches):
            start = model.new_int_var(0, horizon, f"{block.name}[{m}]")
            starts[index, m] = start
            is_run = present.get((block.name, m))
            interval = (
                model.new_fixed_size_interval_var(start, block.span, "")
                if is_run is None
                else model.new_optional_fixed_size_interval_var(start, block.span, is_run, "")
            )
            ends = model.add(start + block.span <= makespan)
            if is_run is not None:
                ends.only_enforce_if(is_run)
            for device in block.devices:
                by_device[device].append(interval)
                if block.memory:
                    changes[device].append((start, block.memory, 1 if is_run is None else is_run))
            if m and is_run is None and (not placement.choices or index == first_fixed):
                model.add(starts[index, m - 1] <= start)
    index_of = placement.index_by_name
    for edge in placement.edges:
        source, target = index_of[edge.source], index_of[edge.target]
        for m in range(micro_batches):
            rule = model.add(
                starts[target, m] >= starts[source, m] + placement.blocks[source].span + edge.lag
            )
            needed = [present[name, m] for name in (edge.source, edge.target) if (name, m) in present]
            if needed:
                rule.only_enforce_if(needed)
    for device in range(placement.devices):
        model.add_no_overlap(by_device[device])
        if memory is not None and changes[device]:
            times, amounts, actives = zip(*changes[device], strict=True)
            floor = -sum(abs(amount) for amount in amounts)
            model.add_reservoir_constraint_with_active(times, amounts, actives, floor, memory[device])
    for key, when in (hint or {}).items():
        model.add_hint(starts[key], when)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False  # else Ctrl-C kills this process ever after
    solver.parameters.num_workers = num_workers
    solver.parameters.random_seed = seed
    if is_processor_time:
        began = time.process_time()
        with _stopped_after(solver, time_limit_s):
            status = solver.solve(model)
        seconds = time.process_time() - began
    else:
        solver.parameters.max_time_in_seconds = time_limit_s
        status = solver.solve(model)
        seconds = solver.wall_time
    is_found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return CpsatResult(
        makespan=int(solver.objective_value) if is_found else None,
        lower_bound=int(solver.best_objective_bound) if is_found else 0,
        is_optimal=status == cp_model.OPTIMAL,
        is_infeasible=status == cp_model.INFEASIBLE,
        seconds=seconds,
    )


@contextmanager
def _stopped_after(solver: cp_model.CpSolver, seconds: float) -> Iterator[None]:
    """Stop a running solver when this process has used so many processor seconds."""
    until = time.process_time() + seconds
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(0.1):
            if time.process_time() >= until:
                solver.stop_search()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_done.set()
        watcher.join()


def _presence(
    model: cp_model.CpModel, placement: Placement, micro_batches: int
) -> dict[tuple[str, int], cp_model.IntVar]:
    present = {}
    for choice in placement.choices:
        for m in range(micro_batches):
            chosen = [
                model.new_bool_var(f"{choice.name}[{m}]={option}") for option in range(len(choice.options))
            ]
            model.add_exactly_one(chosen)
            for option, names in enumerate(choice.options):
                for name in names:
                    present[name, m] = chosen[option]
    return present
