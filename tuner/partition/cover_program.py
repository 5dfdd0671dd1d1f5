"""The cheapest exact cover as an integer program, for graphs whose proof takes the search too many states.

Minimise slack·x, such that each node is in exactly one chosen option, x in {0, 1}; slacks are costs less
`tuner.partition.cover_bound`'s prices, so that what the relaxation chooses costs next to nothing and rounding
is of the difference alone. That options can run in some order is no row of it: whoever asks forbids the sets
that cannot, and asks again. HiGHS' branch and bound ends after a number of nodes, never by the clock, so that
an answer does not depend on the machine's load. Checked in tests/tuner/partition/test_cover_program.py.

Source: Huangfu and Hall, "Parallelizing the dual revised simplex method", 2018 (HiGHS).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

MAX_NODES = 1000
"""Of branch and bound; covers of networks take one."""

_TOLERANCE = 1e-6
"""HiGHS calls constraints and reduced costs met within this, in units of the largest slack."""


class ProgramCover(NamedTuple):
    """An exact cover.

    Attributes:
        chosen: positions of the options.
        lower_bound: no cover that is not forbidden has a smaller sum of slacks; what HiGHS found, less its
            tolerance, rounded up.
    """

    chosen: tuple[int, ...]
    lower_bound: int


def solve_cover_program(
    insides: Sequence[Sequence[int]],
    slacks: Sequence[int],
    *,
    num_nodes: int,
    forbidden: Sequence[Sequence[int]] = (),
) -> ProgramCover | None:
    """Return the cover with the least sum of slacks that was found, or None where none was.

    Args:
        insides: for each option the nodes it covers, whole numbers in [0, num_nodes).
        slacks: for each option a whole number >= 0.
        num_nodes: each of them is in at least one option.
        forbidden: sets of options of which not all may be chosen.
    """
    scale = max(max(slacks, default=0), 1)
    rows = [LinearConstraint(_membership(insides, num_nodes).T, 1, 1)]
    if forbidden:
        rows.append(
            LinearConstraint(_membership(forbidden, len(insides)), ub=[len(each) - 1 for each in forbidden])
        )
    found = milp(
        np.asarray(slacks, dtype=np.float64) / scale,
        integrality=np.ones(len(insides)),
        bounds=Bounds(0, 1),
        constraints=rows,
        options={"node_limit": MAX_NODES, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    chosen = tuple(int(position) for position in np.flatnonzero(found.x > 0.5))
    bound = 0 if found.mip_dual_bound is None else found.mip_dual_bound
    tolerance = _TOLERANCE * (1 + len(chosen))
    return ProgramCover(chosen, max(math.ceil((bound - tolerance) * scale), 0))


def _membership(sets: Sequence[Sequence[int]], num_elements: int) -> csr_array:
    """Return which elements are in each set, shape (num_sets, num_elements)."""
    rows = np.repeat(np.arange(len(sets)), [len(each) for each in sets])
    columns = np.concatenate([np.asarray(each, dtype=np.int64) for each in sets])
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(sets), num_elements))
