"""A longer limit is never worse: over work, and over time on a clock that counts work."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tessel.errors import InfeasibleError
from tessel.placement import Block, Choice, Edge, Placement
from tessel.schedule.schedule import Schedule
from tessel.search.budget import OPERATIONS_A_UNIT, SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.shapes import make_shape
from tessel.validation import check_schedule

LIMITS = (0.01, 0.05, 0.3)
"""Units of work, and seconds of a clock that shows a second for each unit."""


class WorkClock:
    """Shows a second for each unit of work that a budget has been charged."""

    budget: SearchBudget | None = None

    def __call__(self) -> float:
        return 0.0 if self.budget is None else self.budget.operations / OPERATIONS_A_UNIT


def budget_of(limit: float, *, is_time: bool) -> SearchBudget:
    if not is_time:
        return SearchBudget(limit)
    clock = WorkClock()
    clock.budget = SearchBudget(None, limit, clock=clock)
    return clock.budget


def seven_stages_with_choices() -> Placement:
    """Return 28 blocks on 3 devices: a chain of seven stages, each backward joint or split."""
    spans = ((2, 4, 2, 2), (1, 3, 2, 1), (2, 3, 2, 2), (1, 2, 1, 1), (3, 4, 2, 3), (1, 2, 1, 2), (2, 4, 3, 2))
    blocks: list[Block] = []
    edges: list[Edge] = []
    for stage, (forward, joint, first, second) in enumerate(spans):
        device = (stage % 3,)
        for name, span, memory in (("f", forward, 2), ("b", joint, -2), ("i", first, -1), ("w", second, -1)):
            blocks.append(Block(name=f"{name}{stage}", devices=device, span=span, memory=memory))
        edges += [Edge(f"f{stage}", f"b{stage}"), Edge(f"f{stage}", f"i{stage}")]
        edges.append(Edge(f"i{stage}", f"w{stage}"))
        if stage:
            edges.append(Edge(f"f{stage - 1}", f"f{stage}"))
            edges += [Edge(f"{here}{stage}", f"{there}{stage - 1}") for here in "bi" for there in "bi"]
    choices = tuple(Choice(f"b{stage}", ((f"b{stage}",), (f"i{stage}", f"w{stage}"))) for stage in range(7))
    return Placement(devices=3, blocks=tuple(blocks), edges=tuple(edges), choices=choices)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Placement, int, int | None]:
    """Shapes of two to four devices, some with choices, with ample and with tight memory."""
    spans = st.integers(1, 5)
    variant = draw(st.sampled_from(["joint", "split", "choice"]))
    placement = make_shape(
        draw(st.sampled_from(["vshape", "zbv", "nnshape", "kshape"])),
        draw(st.integers(2, 4)),
        forward_span=draw(spans),
        **({"backward_span": draw(spans)} if variant != "split" else {}),
        **(
            {"backward_input_span": draw(spans), "backward_weight_span": draw(spans)}
            if variant != "joint"
            else {}
        ),
        split_backward=variant == "split",
        choose_backward=variant == "choice",
        forward_memory=2,
        backward_memory=-2,
        lag=draw(st.integers(0, 2)),
    )
    return placement, draw(st.integers(3, 9)), draw(st.none() | st.integers(4, 12))


def check_that_none_is_worse(found: list[Schedule]) -> None:
    for shorter, longer in pairwise(found):
        check_schedule(longer)
        assert longer.makespan <= shorter.makespan
        assert longer.lower_bound >= shorter.lower_bound


@settings(max_examples=8, deadline=None)
@given(problem=problems(), is_time=st.booleans())
def test_a_longer_limit_is_never_worse(problem: tuple[Placement, int, int | None], is_time: bool) -> None:
    placement, micro_batches, memory = problem
    try:
        found = [
            find_schedule(
                placement,
                micro_batches=micro_batches,
                memory=memory,
                budget=budget_of(limit, is_time=is_time),
            )
            for limit in LIMITS
        ]
    except InfeasibleError:
        reject()
    check_that_none_is_worse(found)


def test_a_longer_limit_is_never_worse_with_seven_choices() -> None:
    placement = seven_stages_with_choices()
    assert len(placement.blocks) == 28
    for is_time in (False, True):
        found = [
            find_schedule(placement, micro_batches=9, memory=8, budget=budget_of(limit, is_time=is_time))
            for limit in LIMITS
        ]
        check_that_none_is_worse(found)
