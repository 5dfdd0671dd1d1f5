"""The processes of the suite share a machine, at times with other work: none is slowed, or failed, by that.

In each, libraries run on one thread. pytest-xdist starts as many processes as there are cores, and threads of
OpenMP spin where they wait for one another: with two in each process, a small network of torch is ten times
slower. Whatever measures, and each rank, sets the threads of its own processes. No example of Hypothesis has
a deadline, and each run draws the same ones: what passed once passes again. New ones are drawn by
`pytest --hypothesis-profile explore`.
"""

from __future__ import annotations

import os

from hypothesis import settings

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")
