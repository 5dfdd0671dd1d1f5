"""Repetends against a general solver's answers, the independent validation, and hand-worked examples."""

from __future__ import annotations

import signal
from fractions import Fraction
from types import FrameType

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from tessel.errors import InfeasibleError
from tessel.placement import Block, Choice, Edge, Placement
from tessel.schedule.schedule import Schedule
from tessel.search import Progress, RepetendResult, find_repetend
from tessel.search.budget import SearchBudget
from tessel.search.model.problem import UNLIMITED, Problem, make_problem, options
from tessel.shapes import make_shape
from tessel.validation import find_violations


@st.composite
def placements(draw: st.DrawFn, max_stages: int = 4) -> Placement:
    """Random DAGs of forward blocks, most with a backward on the same devices that frees their memory."""
    num_devices = draw(st.integers(1, 3))
    some_devices = st.sets(st.integers(0, num_devices - 1), min_size=1).map(
        lambda found: tuple(sorted(found))
    )
    blocks: list[Block] = []
    edges: list[Edge] = []
    num_forward = draw(st.integers(1, max_stages))
    for index in range(num_forward):
        devices, span = draw(some_devices), draw(st.integers(0, 4))
        memory = draw(st.integers(0, 2))
        blocks.append(Block(name=f"f{index}", devices=devices, span=span, memory=memory))
        if memory or draw(st.booleans()):
            backward = Block(name=f"b{index}", devices=devices, span=draw(st.integers(0, 5)), memory=-memory)
            blocks.append(backward)
            edges.append(Edge(f"f{index}", backward.name, draw(st.integers(0, 2))))
    for source, target in draw(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4)):
        if source < target < num_forward:
            edges.append(Edge(f"f{source}", f"f{target}", draw(st.integers(0, 2))))
            names = {block.name for block in blocks}
            if {f"b{source}", f"b{target}"} <= names and draw(st.booleans()):
                edges.append(Edge(f"b{target}", f"b{source}"))
    return Placement(devices=num_devices, blocks=tuple(blocks), edges=tuple(edges))


@st.composite
def limits(draw: st.DrawFn, num_devices: int) -> tuple[int, ...] | None:
    return draw(st.none() | st.tuples(*[st.integers(1, 5)] * num_devices))


WORK = 4.0
"""A search that spent less ended by itself, with nothing left open."""


def can_repeat(problem: Problem, period: int, copies: int) -> bool:
    """Ask CP-SAT, with a model of phases and iterations that knows nothing of orders between copies."""
    model = cp_model.CpModel()
    most_laps = 2 * problem.num_blocks + 2
    nodes = [(copy, block) for copy in range(copies) for block in range(problem.num_blocks)]
    phase = {node: model.new_int_var(0, period - 1, "") for node in nodes}
    lap = {node: model.new_int_var(0, most_laps, "") for node in nodes}
    first = {}
    for u in nodes:
        for v in nodes:
            if u < v and set(problem.devices[u[1]]) & set(problem.devices[v[1]]):
                first[u, v] = model.new_bool_var("")
                first[v, u] = ~first[u, v]
                for a, b in ((u, v), (v, u)):
                    model.add(phase[b] >= phase[a] + int(problem.spans[a[1]])).only_enforce_if(first[a, b])
                    model.add(phase[a] + period >= phase[b] + int(problem.spans[b[1]])).only_enforce_if(
                        first[a, b]
                    )
    for copy in range(copies):
        for source in range(problem.num_blocks):
            for target, steps in problem.successors[source]:
                u, v = (copy, source), (copy, target)
                model.add(phase[v] + period * lap[v] >= phase[u] + period * lap[u] + steps)
    for device in range(problem.num_devices):
        if problem.limits[device] >= UNLIMITED:
            continue
        here = [node for node in nodes if device in problem.devices[node[1]] and problem.memory[node[1]]]
        for u in here:
            started = [1 if v == u else first[v, u] for v in here]
            held = sum(
                int(problem.memory[v[1]]) * (now - lap[v]) for v, now in zip(here, started, strict=True)
            )
            model.add(held <= int(problem.limits[device]))
    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False  # else Ctrl-C kills this process ever after
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.INFEASIBLE)
    return status != cp_model.INFEASIBLE


def least_period(problem: Problem, copies: int) -> int | None:
    longest = max(1, copies * int(problem.spans.sum() + problem.lags.sum()))
    if not can_repeat(problem, longest, copies):
        return None
    low, high = max(1, int(problem.spans.max())), longest
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if can_repeat(problem, middle, copies) else (middle + 1, high)
    return low


def unrolled(found: RepetendResult, periods: int = 5) -> Schedule:
    starts = {
        (block, copy + found.copies * n): found.starts[copy][here] + n * found.period
        for n in range(periods)
        for copy in range(found.copies)
        for here, block in enumerate(found.block_indices)
    }
    return Schedule.of(found.placement, starts, micro_batches=periods * found.copies, memory=found.memory)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_period_equals_the_general_solvers(data: st.DataObject) -> None:
    placement = data.draw(placements())
    memory = data.draw(limits(placement.devices))
    expected = least_period(make_problem(placement, memory=memory), 1)
    if expected is None:
        with pytest.raises(InfeasibleError):
            find_repetend(placement, memory=memory, max_copies=1)
        return
    found = find_repetend(placement, memory=memory, max_copies=1)
    assert (found.period, found.lower_bound, found.optimal) == (expected, expected, True)
    assert found.rate_lower_bound <= found.rate
    assert find_violations(unrolled(found)) == ()


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_period_of_two_copies_equals_the_general_solvers(data: st.DataObject) -> None:
    placement = data.draw(placements(max_stages=2))
    memory = data.draw(limits(placement.devices))
    problem = make_problem(placement, memory=memory)
    one = least_period(problem, 1)
    if one is None:
        return
    two = least_period(problem, 2)
    assert two is not None
    found = find_repetend(placement, memory=memory, max_copies=2)
    assert found.rate == min(Fraction(one), Fraction(two, 2))
    assert found.optimal
    assert find_violations(unrolled(found)) == ()


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_more_memory_is_never_slower_and_numbering_does_not_matter(data: st.DataObject) -> None:
    placement = data.draw(placements(max_stages=3))
    memory = data.draw(st.integers(1, 4))
    try:
        budget = SearchBudget(WORK)
        tight = find_repetend(placement, memory=memory, max_copies=2, budget=budget)
    except InfeasibleError:
        return
    assume(budget.stopped_by != "work")
    loose = find_repetend(placement, memory=memory + 1, max_copies=2, budget=SearchBudget(WORK))
    assert loose.rate <= tight.rate
    new_number = data.draw(st.permutations(range(placement.devices)))
    mirrored = Placement(
        devices=placement.devices,
        blocks=tuple(
            Block(
                name=block.name,
                devices=tuple(sorted(new_number[device] for device in block.devices)),
                span=block.span,
                memory=block.memory,
            )
            for block in reversed(placement.blocks)
        ),
        edges=placement.edges,
    )
    budget = SearchBudget(WORK)
    other = find_repetend(mirrored, memory=memory, max_copies=2, budget=budget)
    assert other.rate <= tight.rate or budget.stopped_by == "work"
    assert other.rate >= tight.rate


@pytest.mark.parametrize("is_reversed", [False, True])
def test_blocks_without_a_span_may_add_and_free_in_one_step(is_reversed: bool) -> None:
    """Two micro-batches a step: what the second block holds is freed in the step in which it adds again."""
    blocks = [Block(name=name, devices=(0,), span=0, memory=memory) for name, memory in INSTANT_BLOCKS]
    placement = Placement(
        devices=1,
        blocks=tuple(reversed(blocks) if is_reversed else blocks),
        edges=(Edge("f0", "b0"), Edge("f2", "b2", 1)),
    )
    budget = SearchBudget(1.0)
    found = find_repetend(placement, memory=2, max_copies=2, budget=budget)
    assert found.rate == Fraction(1, 2)
    assert budget.stopped_by != "work"


INSTANT_BLOCKS = [("f0", 1), ("b0", -1), ("f1", 0), ("f2", 1), ("b2", -1)]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_choices_are_searched_in_every_combination(data: st.DataObject) -> None:
    span = st.integers(1, 5)
    spans = {name: data.draw(st.tuples(span, span)) for name in ("joint", "input", "weight")}
    placement = make_shape(
        data.draw(st.sampled_from(["vshape", "mshape"])),
        2,
        choose_backward=True,
        backward_span=spans["joint"],
        backward_input_span=spans["input"],
        backward_weight_span=spans["weight"],
        forward_memory=2,
        backward_memory=-2,
        lag=data.draw(st.integers(0, 2)),
    )
    memory = data.draw(st.integers(2, 5))
    expected = [
        least_period(make_problem(placement, memory=memory, option_indices=taken), 1)
        for taken in options(placement)
    ]
    found = find_repetend(placement, memory=memory, max_copies=1)
    assert found.period == min(period for period in expected if period is not None)
    assert found.optimal
    assert find_violations(unrolled(found)) == ()


@pytest.mark.parametrize(
    ("shape", "memory", "period"),
    [("vshape", 4, 4), ("xshape", 4, 8), ("mshape", 6, 6), ("nnshape", 6, 8), ("kshape", 6, 6)],
)
def test_the_known_shapes_reach_their_least_periods(shape: str, memory: int, period: int) -> None:
    found = find_repetend(make_shape(shape, 4), memory=memory)
    assert (found.period, found.copies, found.optimal, found.rate_optimal) == (period, 1, True, True)
    assert find_violations(unrolled(found)) == ()


def test_several_copies_come_closer_to_the_memory_bound() -> None:
    placement = make_shape("vshape", 4)
    periods = [find_repetend(placement, memory=3, max_copies=copies).period for copies in (1, 2, 3)]
    assert periods == [8, 12, 16]
    found = find_repetend(placement, memory=3)
    assert (found.period, found.copies) == (16, 3)
    assert found.rate_lower_bound == Fraction(16, 3)
    assert found.rate_optimal


def test_spans_of_real_stages_are_exact() -> None:
    placement = make_shape(
        "vshape",
        4,
        forward_span=(4137, 5210, 4980, 6011),
        backward_span=(8311, 9377, 9100, 12000),
        forward_memory=(1_500_000, 1_400_000, 1_400_000, 1_700_000),
        backward_memory=(-1_500_000, -1_400_000, -1_400_000, -1_700_000),
        lag=211,
    )
    found = find_repetend(placement, memory=(6_000_000, 4_500_000, 3_000_000, 2_000_000))
    assert (found.period, found.copies, found.rate_optimal) == (18011, 1, True)


def least_period_of_a_chain(forward: list[int], backward: list[int], in_flight: list[int], lag: int) -> int:
    """Bisect over the period, going along the chain from its end with the least time from f to b."""

    def fits(period: int) -> bool:
        steps = 0
        for stage in reversed(range(len(forward))):
            is_last = stage == len(forward) - 1
            steps = forward[stage] + (0 if is_last else steps + backward[stage + 1] + 2 * lag)
            phase = steps % period
            if phase < forward[stage]:
                steps += forward[stage] - phase
            elif phase > period - backward[stage]:
                steps += period - phase + forward[stage]
            if steps // period + 1 > in_flight[stage]:
                return False
        return True

    low = max(map(sum, zip(forward, backward, strict=True)))
    high = sum(forward) + sum(backward) + 2 * lag * len(forward)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_large_unequal_spans_are_exact_under_unequal_limits(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    span = st.integers(1, 10**6)
    forward, backward, in_flight = (
        data.draw(st.lists(numbers, min_size=size, max_size=size))
        for numbers in (span, span, st.integers(1, 6))
    )
    lag = data.draw(st.integers(0, 10**4))
    unit = data.draw(st.integers(1, 10**9))
    placement = make_shape(
        "vshape",
        size,
        forward_span=forward,
        backward_span=backward,
        forward_memory=unit,
        backward_memory=-unit,
        lag=lag,
    )
    memory = [unit * count + unit // 2 for count in in_flight]
    found = find_repetend(placement, memory=memory, max_copies=1)
    assert found.period == least_period_of_a_chain(forward, backward, in_flight, lag)
    assert found.optimal
    assert find_violations(unrolled(found)) == ()


def test_infeasible_limits_name_the_device_and_its_need() -> None:
    with pytest.raises(InfeasibleError, match=r"device 1 needs at least 3 units .* its limit is 2"):
        find_repetend(make_shape("vshape", 2, forward_memory=(2, 3), backward_memory=(-2, -3)), memory=2)


def test_limits_that_only_fail_together_are_named() -> None:
    names = ("f0", "g0", "f1", "g1")
    placement = Placement(
        devices=2,
        blocks=tuple(
            Block(name=name, devices=(int(name[1]),), memory=1 if name[0] == "f" else -1)
            for name in ("f0", "g0", "f1", "g1")
        )
        + tuple(
            Block(name=f"{name}x", devices=(int(name[1]),), memory=1 if name[0] == "f" else -1)
            for name in names
        ),
        edges=(
            Edge("f0", "g0"),
            Edge("f0x", "g0x"),
            Edge("f1", "g1"),
            Edge("f1x", "g1x"),
            Edge("f0", "f1x"),
            Edge("f0x", "f1"),
            Edge("g1", "g0"),
            Edge("g1x", "g0x"),
        ),
    )
    problem = make_problem(placement, memory=1)
    assert least_period(problem, 1) is None
    with pytest.raises(InfeasibleError, match=r"device 0 needs at least 2 units"):
        find_repetend(placement, memory=1)


def test_memory_that_is_never_freed_is_named() -> None:
    placement = Placement(devices=1, blocks=(Block(name="f", devices=(0,), memory=2),))
    assert find_repetend(placement).period == 1
    with pytest.raises(InfeasibleError, match=r"leaves 2 units behind on device 0"):
        find_repetend(placement, memory=100)


def test_blocks_without_span_repeat_too() -> None:
    blocks = (Block(name="f", devices=(0,), span=0), Block(name="g", devices=(0,), span=0))
    assert find_repetend(Placement(devices=1, blocks=blocks, edges=(Edge("f", "g"),))).period == 1


def test_no_time_still_gives_a_valid_answer() -> None:
    placement = make_shape("nnshape", 8)
    found = find_repetend(placement, memory=6, time_limit_s=0.0)
    assert found.lower_bound <= found.period
    assert find_violations(unrolled(found)) == ()


def test_the_same_call_gives_the_same_answer() -> None:
    placement = make_shape("xshape", 5)
    first, second = (find_repetend(placement, memory=5) for _ in range(2))
    assert first.starts == second.starts


def test_progress_is_told_and_never_gets_worse() -> None:
    told: list[int] = []
    found = find_repetend(
        make_shape("vshape", 4),
        memory=3,
        max_copies=1,
        budget=SearchBudget(on_progress=lambda now: told.append(now.makespan)),
    )
    assert told
    assert told == sorted(told, reverse=True)
    assert told[-1] == found.period


def test_a_choice_is_left_joint_where_splitting_costs_more() -> None:
    placement = make_shape(
        "vshape", 3, choose_backward=True, backward_span=4, backward_input_span=3, backward_weight_span=2
    )
    found = find_repetend(placement, memory=3)
    names = {placement.blocks[index].name for index in found.block_indices}
    assert (found.period, found.rate_optimal) == (5, True)
    assert names == {"f0", "f1", "f2", "b0", "b1", "b2"}


def test_a_file_of_ones_own_with_two_options_is_searched() -> None:
    placement = Placement(
        devices=2,
        blocks=(
            Block(name="a", devices=(0,), span=2),
            Block(name="left", devices=(0,), span=1),
            Block(name="right", devices=(1,), span=2),
        ),
        edges=(Edge("a", "left"), Edge("a", "right")),
        choices=(Choice("side", (("left",), ("right",))),),
    )
    found = find_repetend(placement)
    assert (found.period, found.block_indices) == (2, (0, 2))


def test_an_interrupt_returns_the_best_so_far() -> None:
    placement = make_shape("mshape", 4)
    calls = iter(range(10**6))

    def clock() -> float:
        if next(calls) == 40:
            raise KeyboardInterrupt
        return 0.0

    found = find_repetend(placement, memory=3, max_copies=4, budget=SearchBudget(clock=clock))
    assert found.rate <= Fraction(8)
    assert not found.rate_optimal
    assert find_violations(unrolled(found)) == ()


def test_an_interrupt_of_compiled_code_returns_the_best_so_far() -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def arm(progress: Progress) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.3)

    before = signal.signal(signal.SIGALRM, interrupt)
    budget = SearchBudget(None, 600, on_progress=arm)
    try:
        found = find_repetend(make_shape("nnshape", 8), memory=5, budget=budget)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert budget.is_interrupted
    assert find_violations(unrolled(found)) == ()


def test_an_interrupt_before_any_answer_is_passed_on() -> None:
    calls = iter(range(10**6))

    def clock() -> float:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        find_repetend(make_shape("nnshape", 24), memory=24, budget=SearchBudget(clock=clock))
