"""Compile every hot loop of the searches, so that no later search on this machine waits for it.

    python -m tessel.search.compile_all          python -m tessel.search.jit.cache: only if need be

A few small searches call all of them, and numba keeps the machine code.
Checked in tests/tessel/search/jit/test_cache.py.
"""

from __future__ import annotations

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
    for placement in (split, choice):
        budget = SearchBudget(work_limit=WORK, time_limit_s=None)
        find_schedule(placement, micro_batches=5, memory=6, budget=budget)
    leave_stamp()


if __name__ == "__main__":
    compile_all()
