"""The least makespan by a general solver: an oracle that shares no code with the search."""

from __future__ import annotations

from ortools.sat.python import cp_model

from tessel.placement import Placement


def least_makespan_by_cpsat(
    placement: Placement, micro_batches: int, memory: tuple[int, ...] | None
) -> int | None:
    """Return the least makespan over all options and orders; None if the limits allow no schedule."""
    model = cp_model.CpModel()
    steps = sum(block.span for block in placement.blocks) + sum(edge.lag for edge in placement.edges)
    horizon = micro_batches * steps
    tasks = [(block, m) for block in placement.blocks for m in range(micro_batches)]
    starts = {(block.name, m): model.new_int_var(0, horizon, f"{block.name}[{m}]") for block, m in tasks}
    runs = _runs(model, placement, micro_batches)
    makespan = model.new_int_var(0, horizon, "makespan")
    for block, m in tasks:
        model.add(starts[block.name, m] + block.span <= makespan).only_enforce_if(runs[block.name, m])
    for edge in placement.edges:
        for m in range(micro_batches):
            delay = placement.block(edge.source).span + edge.lag
            later = starts[edge.target, m] >= starts[edge.source, m] + delay
            model.add(later).only_enforce_if(runs[edge.source, m], runs[edge.target, m])
    for device in range(placement.devices):
        here = [
            (starts[block.name, m], block, runs[block.name, m])
            for block, m in tasks
            if device in block.devices
        ]
        model.add_no_overlap(
            [
                model.new_optional_fixed_size_interval_var(start, block.span, run, "")
                for start, block, run in here
            ]
        )
        changes = [(start, block.memory, run) for start, block, run in here if block.memory]
        if memory is not None and changes:
            times, amounts, actives = zip(*changes, strict=True)
            floor = -sum(abs(amount) for amount in amounts)
            model.add_reservoir_constraint_with_active(times, amounts, actives, floor, memory[device])
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return int(solver.objective_value) if status == cp_model.OPTIMAL else None


def _runs(
    model: cp_model.CpModel, placement: Placement, micro_batches: int
) -> dict[tuple[str, int], cp_model.IntVar]:
    """Return, for each block of each micro-batch, whether it runs: of each choice, one option does."""
    always = model.new_constant(1)
    runs = {(block.name, m): always for block in placement.blocks for m in range(micro_batches)}
    for choice in placement.choices:
        for m in range(micro_batches):
            taken = [model.new_bool_var(f"{choice.name}[{m}]") for _ in choice.options]
            model.add_exactly_one(taken)
            runs |= {
                (name, m): run for option, run in zip(choice.options, taken, strict=True) for name in option
            }
    return runs
