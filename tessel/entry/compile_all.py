"""Compile every hot loop of searches and plans, so that none on this machine waits for it later.

    python -m tessel.entry.compile_all          python -m tessel.search.jit.cache: only if need be

A few small searches and a small plan call all of them, and numba keeps the machine code. Where there are
several cores two processes make them, one from the first on and one from the last: each finds kept what the
other has compiled, so that they meet where all is compiled. They end with the one that started them, and that
one, in the background, after `LONGEST_COMPILING_S`. Checked in tests/tessel/search/jit/test_cache.py.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence, Set

from records.cores import num_usable_cores
from tessel.batches import Batch, scaled_class
from tessel.placement import Block, Edge, Placement
from tessel.planning.cluster import Cluster, Link
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts
from tessel.search.batches.assignment import assign_micro_batches
from tessel.search.budget import SearchBudget
from tessel.search.jit.cache import BACKGROUND, LONGEST_COMPILING_S, end_claim, leave_stamp
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.params import MakespanParams, Phase
from tessel.search.overlap.find_overlapped import find_overlapped
from tessel.search.repetend.find_repetend import find_repetend
from tessel.shapes import make_shape, vshape, zbv

WORK = 0.5
"""Units of work of the searches that do not end by themselves, however long compiling takes."""

_LOCAL = frozenset({Phase.TABU_SEARCH, Phase.OPTIONS, Phase.WINDOWS})
"""Phases that share little of what they compile with all others, and take about as long to compile."""


def main(arguments: Sequence[str]) -> None:
    """Compile everything, or, in a process that this one starts, in one of two orders.

    Args:
        arguments: `BACKGROUND`, an order, or nothing.
    """
    if arguments and arguments[0] in _ORDERS:
        threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
        _call(_calls()[:: 1 if arguments[0] == _ORDERS[0] else -1])
        return
    if BACKGROUND in arguments:
        signal.alarm(LONGEST_COMPILING_S)  # nobody handles it, so that it ends even a busy compiler
    try:
        compile_all()
    finally:
        end_claim()


def compile_all() -> None:
    """Have every compiled function called, and leave the stamp.

    Raises:
        subprocess.CalledProcessError: a process that compiles has failed.
    """
    if num_usable_cores() == 1:
        _call(_calls())
    else:
        # Their inputs end with this process, however it ends.
        processes = [
            subprocess.Popen((sys.executable, "-m", "tessel.entry.compile_all", order), stdin=subprocess.PIPE)
            for order in _ORDERS
        ]
        try:
            for process in processes:
                if process.wait():
                    raise subprocess.CalledProcessError(process.returncode, process.args)
        finally:
            for process in processes:
                process.kill()
    leave_stamp()


def _exit_at_end_of_input() -> None:
    # unbuffered: a thread that waits in a buffer holds its lock when Python ends
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def _call(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _calls() -> list[Callable[[], object]]:
    """Return what calls every compiled function; what takes longest to compile is first and last."""
    split = zbv(3, split_backward=True, lag=1)
    choice = vshape(3, choose_backward=True, backward_input_span=2, backward_weight_span=2)
    shapes = (("vshape", 4), ("mshape", 24), ("nnshape", 24), ("xshape", 24))
    return [
        functools.partial(_search, choice, 5, 6, left_out=set(Phase) - _LOCAL),
        *(
            functools.partial(find_repetend, make_shape(shape, devices), memory=devices // 2, max_copies=1)
            for shape, devices in shapes
        ),
        functools.partial(find_repetend, vshape(4), memory=3, max_copies=3),
        functools.partial(_search, _freeing(), 2, 3),
        functools.partial(_search, split, 5, 6),
        functools.partial(_search, choice, 5, 6),
        _plan,
        functools.partial(find_overlapped, vshape(2), micro_batches=3, factor=0.6),
        _share_out,
        functools.partial(_search, choice, 5, 6, left_out=_LOCAL | {Phase.REPETENDS}),
    ]


_ORDERS = ("forwards", "backwards")


def _search(
    placement: Placement, micro_batches: int, memory: int, left_out: Set[Phase] = frozenset()
) -> None:
    find_schedule(
        placement,
        micro_batches=micro_batches,
        memory=memory,
        budget=SearchBudget(work_limit=WORK, time_limit_s=None),
        params=MakespanParams(left_out=frozenset(left_out)),
    )


def _share_out() -> None:
    """Share out micro-batches of two classes to two replicas."""
    placement = vshape(2)
    classes = tuple(scaled_class(placement, str(factor), factor) for factor in (1, 3))
    assign_micro_batches(
        placement,
        Batch(classes=classes, sequence=(0, 1, 0, 1, 0, 0)),
        replicas=2,
        searches_blocks=False,
        budget=SearchBudget(work_limit=WORK, time_limit_s=None),
    )


def _freeing() -> Placement:
    """Return blocks that free more than they add, whose micro-batches cannot run one after the other."""
    blocks = tuple(
        Block(name=name, devices=(0,), span=1, memory=memory)
        for name, memory in (("x", -2), ("a", 6), ("z", -5))
    )
    return Placement(devices=1, blocks=blocks, edges=(Edge("a", "z"),))


def _plan() -> None:
    """Plan with little memory, so that layers move and stages recompute."""
    cost = StageCosts(forward_us=1, backward_us=2, weight_bytes=1, saved_bytes=1000, boundary_bytes=1)
    profile = Profile(
        name="layers",
        layers=tuple(Layer(f"layer{index}") for index in range(6)),
        tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=(cost,) * 6),),
    )
    link = Link(bytes_per_s=1e9)
    find_plan(
        profile,
        Job(cluster=Cluster(devices=2, hop=link, collective=link, memory_bytes=10_000), global_batch=4),
        options=PlanOptions(pipeline=2, what_if=False),
        budget=SearchBudget(work_limit=WORK, time_limit_s=None),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
