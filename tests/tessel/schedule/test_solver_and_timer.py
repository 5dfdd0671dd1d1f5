"""Tessel's solver against exhaustive search, and its stopwatch."""

from __future__ import annotations

import itertools
import random

import pytest

from tessel.errors import ScheduleError
from tessel.schedule.composer import Composer
from tessel.schedule.schedplan import Block, SchedPlan
from tessel.schedule.solver import StepOptimalSolver
from tessel.timer import CpuTimer


def fewest_steps(blocks: list[Block], devices: list[list[int]], memory: int) -> int | None:
    """The least end over all orders, each block as early as its order allows, and memory kept."""
    best: int | None = None
    for order in itertools.permutations(range(len(blocks))):
        free = [0, 0]
        end: dict[Block, int] = {}
        changes: list[list[tuple[int, int]]] = [[], []]
        for number in order:
            block = blocks[number]
            if any(before not in end for before in block.before):
                break
            start = max([*(free[d] for d in devices[number]), *(end[before] for before in block.before)])
            end[block] = start + block.span
            for device in devices[number]:
                free[device] = end[block]
                changes[device].append((start, block.memory))
        else:
            held = [list(itertools.accumulate(change for _, change in sorted(each))) for each in changes]
            if all(level <= memory for each in held for level in each):
                best = min(best or 10**9, max(end.values()))
    return best


@pytest.mark.parametrize("seed", range(6))
def test_solver_is_exhaustive_searchs_equal(seed: int) -> None:
    chance = random.Random(seed)
    blocks = [Block(0, chance.randint(1, 4), chance.choice([1, 0, -1]), "forward") for _ in range(6)]
    devices = [chance.choice([[0], [1], [0, 1]]) for _ in blocks]
    for early, late in itertools.combinations(blocks, 2):
        if chance.random() < 0.25:
            Block.make_dependency(early, late)
    expected = fewest_steps(blocks, devices, memory=1)
    plan, steps = Composer.construct(blocks, devices, 2, 1)
    assert steps == expected
    assert Composer.satisfy(blocks, devices, 2, 1) is (expected is not None)
    assert (
        plan is None
        if expected is None
        else (plan is not None and plan.validate() and plan.nsteps == expected)
    )
    if steps is not None:
        assert Composer.construct(blocks, devices, 2, 1, upper=steps) == (None, None)


def test_equal_micro_batches_are_searched_as_such() -> None:
    """The time-optimal case of Tessel's simulator: whole micro-batches, made by copying one."""
    micro = SchedPlan(2)
    blocks = [
        Block(0, 1, 1, "forward"),
        Block(0, 1, 1, "forward"),
        Block(0, 3, -1, "backward"),
        Block(0, 3, -1, "backward"),
    ]
    micro.add_block_seq(blocks, [[0], [1], [1], [0]])
    for gid, block in enumerate(micro.chain_blocks()):
        block.gid = gid
    solver = StepOptimalSolver(2)
    for mid in range(6):
        solver.add_micro_plan(micro.copy(mid))
    assert (solver.nblocks, solver.solve([2, 2]), solver.is_optimal) == (24, 28, True)
    (plan,) = solver.solutions()
    assert plan.validate()
    assert max(plan.peak_memory(device) for device in range(2)) <= 2
    first = [plan.step(block) for block in plan.all_blocks() if block.gid == 0]
    assert first == sorted(first)
    with pytest.raises(ScheduleError, match="added already"):
        solver.add_block(plan.all_blocks()[0], [0], 0)
    assert Composer.memory(blocks[:2], [[0], [0, 1]], 2) == [2, 1]


def test_blocks_start_no_earlier_than_they_are_told() -> None:
    solver = StepOptimalSolver(1)
    first, second = (Block(mid, span=2, memory=0, btype="forward", gid=0) for mid in range(2))
    solver.add_block(first, [0], 0)
    solver.add_block(second, [0], 3)
    solver.add_dependency_constraints([first, second])
    assert solver.solve([1]) == 5
    assert StepOptimalSolver(1).solve([0]) == 0


def test_the_timer_is_one_for_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    CpuTimer(enable=True).clear()
    CpuTimer().start("search")
    assert CpuTimer().stop("search") >= 0
    assert CpuTimer().duration(1, "search") >= 0
    CpuTimer().print_all(times=1)
    assert capsys.readouterr().out.startswith("search : 0.0")
    with pytest.raises(RuntimeError, match="start it first"):
        CpuTimer().stop("search")
    CpuTimer().start("other")
    with pytest.raises(RuntimeError, match="still runs"):
        CpuTimer().duration(1, "other")
    CpuTimer(enable=False).start("search")
    assert CpuTimer().stop("search") == 0
    CpuTimer(enable=True).clear()
    assert CpuTimer().duration(1, "search") == 0
