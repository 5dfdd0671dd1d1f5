"""Shorter latencies are valid, no longer, and the known ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.schedule.schedule import Schedule
from tessel.search.budget import SearchBudget
from tessel.search.model.problem import make_problem
from tessel.search.repetend.branch_and_bound import OrderSearch
from tessel.search.repetend.cyclic_problem import make_cyclic_problem
from tessel.search.repetend.cyclic_starts import close_up
from tessel.search.repetend.latency import latency, shorten_latency
from tessel.search.repetend.params import RepetendParams
from tessel.shapes import make_shape
from tessel.validation import find_violations


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["vshape", "xshape", "mshape", "nnshape", "kshape", "interleaved", "alphafold"]),
    st.integers(2, 4),
    st.integers(1, 2),
    st.integers(3, 6),
    st.integers(0, 2),
)
def test_latency_never_grows_and_all_rules_are_kept(
    shape: str, num_devices: int, copies: int, memory: int, lag: int
) -> None:
    placement = make_shape(shape, num_devices, lag=lag)
    problem = make_problem(placement, memory=memory)
    cyclic = make_cyclic_problem(problem, copies)
    period = cyclic.longest_period // 2
    search = OrderSearch(cyclic, period)
    search.run(10**7)
    if search.starts is None:
        return
    before = close_up(cyclic, search.starts, period)
    after = shorten_latency(problem, before, period, SearchBudget(), RepetendParams())
    assert latency(problem, after) <= latency(problem, before)
    schedule = Schedule.of(
        placement,
        {
            (block, copy + copies * n): int(after[copy, block]) + n * period
            for n in range(4)
            for copy in range(copies)
            for block in range(problem.num_blocks)
        },
        micro_batches=4 * copies,
        memory=problem.limits_or_none,
    )
    assert find_violations(schedule) == ()


@pytest.mark.parametrize(
    ("shape", "memory", "period", "longest"), [("vshape", 4, 4, 16), ("kshape", 6, 6, 16)]
)
def test_known_shapes_have_the_latency_of_one_micro_batch_alone(
    shape: str, memory: int, period: int, longest: int
) -> None:
    problem = make_problem(make_shape(shape, 4), memory=memory)
    cyclic = make_cyclic_problem(problem, 1)
    search = OrderSearch(cyclic, period)
    search.run(10**7)
    assert search.starts is not None
    found = shorten_latency(
        problem, close_up(cyclic, search.starts, period), period, SearchBudget(), RepetendParams()
    )
    assert latency(problem, found) == longest


def test_latency_counts_the_longest_copy() -> None:
    problem = make_problem(make_shape("vshape", 2), memory=None)
    assert latency(problem, np.array([[0, 1, 2, 5], [4, 5, 6, 10]])) == 9
