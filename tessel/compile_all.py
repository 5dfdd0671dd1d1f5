"""Compile every hot loop of searches and plans, so that none on this machine waits for it later.

    python -m tessel.compile_all          python -m tessel.search.jit.cache: only if need be

A few small searches and a small plan call all of them, and numba keeps the machine code.
Checked in tests/tessel/search/jit/test_cache.py.
"""

from __future__ import annotations

from tessel.placement import Block, Edge, Placement
from tessel.planning.cluster import Cluster, Link
from tessel.planning.find_plan import find_plan
from tessel.planning.options import PlanOptions
from tessel.profiles.profile import CostTable, Layer, LayerCost, Profile
from tessel.search.budget import SearchBudget
from tessel.search.jit.cache import leave_stamp
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.repetend.find_repetend import find_repetend
from tessel.shapes import make_shape, vshape, zbv

WORK = 0.5
"""Units of work of the searches that do not end by themselves, however long compiling takes."""


def compile_all() -> None:
    """Call every compiled function, and leave the stamp."""
    for shape, devices in (("vshape", 4), ("mshape", 24), ("nnshape", 24), ("xshape", 24)):
        find_repetend(make_shape(shape, devices), memory=devices // 2, max_copies=1)
    find_repetend(vshape(4), memory=3, max_copies=3)
    split = zbv(3, split_backward=True, lag=1)
    choice = vshape(3, choose_backward=True, backward_input_span=2, backward_weight_span=2)
    for placement, micro_batches, memory in ((split, 5, 6), (choice, 5, 6), (_freeing(), 2, 3)):
        budget = SearchBudget(work_limit=WORK, time_limit_s=None)
        find_schedule(placement, micro_batches=micro_batches, memory=memory, budget=budget)
    _plan()
    leave_stamp()


def _freeing() -> Placement:
    """Return blocks that free more than they add, whose micro-batches cannot run one after the other."""
    blocks = tuple(
        Block(name=name, devices=(0,), span=1, memory=memory)
        for name, memory in (("x", -2), ("a", 6), ("z", -5))
    )
    return Placement(devices=1, blocks=blocks, edges=(Edge("a", "z"),))


def _plan() -> None:
    """Plan with little memory, so that layers move and stages recompute."""
    cost = LayerCost(forward_us=1, backward_us=2, weight_bytes=1, saved_bytes=1000, boundary_bytes=1)
    profile = Profile(
        name="layers",
        layers=tuple(Layer(f"layer{index}") for index in range(6)),
        tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=(cost,) * 6),),
    )
    link = Link(bytes_per_s=1e9)
    find_plan(
        profile,
        Cluster(devices=2, hop=link, collective=link, memory_bytes=10_000),
        global_batch=4,
        options=PlanOptions(pipeline=2, what_if=False),
        budget=SearchBudget(work_limit=WORK, time_limit_s=None),
    )


if __name__ == "__main__":
    compile_all()
