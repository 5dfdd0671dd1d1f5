"""The least makespan by a general solver: an oracle that shares no code with the search."""

from __future__ import annotations

from ortools.sat.python import cp_model

from tessel.placement import Placement


def least_makespan_by_cpsat(
    placement: Placement, micro_batches: int, memory: tuple[int, ...] | None
) -> int | None:
    """Return the least makespan of a placement without choices; None if the limits allow no schedule."""
    model = cp_model.CpModel()
    steps = sum(block.span for block in placement.blocks) + sum(edge.lag for edge in placement.edges)
    horizon = micro_batches * steps
    starts = {
        (block.name, m): model.new_int_var(0, horizon, f"{block.name}[{m}]")
        for block in placement.blocks
        for m in range(micro_batches)
    }
    makespan = model.new_int_var(0, horizon, "makespan")
    for (name, _), start in starts.items():
        model.add(start + placement.block(name).span <= makespan)
    for edge in placement.edges:
        for m in range(micro_batches):
            delay = placement.block(edge.source).span + edge.lag
            model.add(starts[edge.target, m] >= starts[edge.source, m] + delay)
    for device in range(placement.devices):
        here = [
            (start, placement.block(name))
            for (name, _), start in starts.items()
            if device in placement.block(name).devices
        ]
        model.add_no_overlap(
            [model.new_fixed_size_interval_var(start, block.span, "") for start, block in here]
        )
        changes = [(start, block.memory) for start, block in here if block.memory]
        if memory is not None and changes:
            times, amounts = zip(*changes, strict=True)
            floor = -sum(abs(amount) for amount in amounts)
            model.add_reservoir_constraint(times, amounts, floor, memory[device])
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return int(solver.objective_value) if status == cp_model.OPTIMAL else None
