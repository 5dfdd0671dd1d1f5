"""The simulation that extends 1F1B and GPipe to any placement."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.handwritten import HANDWRITTEN
from tessel.handwritten.construction.greedy import Preference, read_flow, run_greedily
from tessel.placement import Block, BlockKind, Choice, Edge, Placement
from tessel.schedule import Schedule
from tessel.shapes import SHAPES, make_shape, mshape, vshape
from tessel.validation import find_violations


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Any acyclic placement: kinds, devices, spans, lags and memory are arbitrary."""
    devices = draw(st.integers(1, 3))
    count = draw(st.integers(1, 7))
    blocks = [
        Block(
            name=f"x{index}",
            kind=draw(st.sampled_from(BlockKind)),
            devices=tuple(sorted(draw(st.sets(st.integers(0, devices - 1), min_size=1, max_size=devices)))),
            span=draw(st.integers(0, 4)),
            memory=draw(st.integers(-2, 2)),
        )
        for index in range(count)
    ]
    pairs = [(low, high) for high in range(count) for low in range(high)]
    edges = [
        Edge(f"x{low}", f"x{high}", draw(st.integers(0, 3)))
        for low, high in draw(
            st.lists(st.sampled_from(pairs), max_size=8, unique=True) if pairs else st.just([])
        )
    ]
    return Placement(devices=devices, blocks=tuple(blocks), edges=tuple(edges))


@settings(max_examples=150, deadline=None)
@given(placements(), st.integers(1, 5), st.integers(1, 3), st.booleans(), st.booleans())
def test_any_placement_runs_to_its_end_under_any_limit(
    placement: Placement, micro_batches: int, limit: int, opening_first: bool, deepest_first: bool
) -> None:
    flow = read_flow(placement)
    starts = run_greedily(
        flow,
        micro_batches=micro_batches,
        in_flight=dict.fromkeys(flow.opening, limit),
        groups=Preference(opening_first=opening_first, deepest_first=deepest_first).groups(flow),
    )
    schedule = Schedule.of(placement, starts, micro_batches=micro_batches)
    assert find_violations(schedule) == ()


@settings(max_examples=150, deadline=None)
@given(placements(), st.integers(1, 5))
def test_every_rule_builds_a_valid_schedule_or_refuses(placement: Placement, micro_batches: int) -> None:
    memory = (4,) * placement.devices
    for rule in HANDWRITTEN:
        limit = memory if rule.needs_limit else None
        if rule.why_not(placement, micro_batches, limit) is None:
            schedule = rule.build(placement, micro_batches=micro_batches, memory=limit)
            assert find_violations(schedule) == ()


def test_a_chain_under_the_limits_of_its_depth_is_1f1b() -> None:
    placement = vshape(4, backward_span=2)
    flow = read_flow(placement)
    starts = run_greedily(flow, micro_batches=8, in_flight=flow.depth)
    schedule = Schedule.of(placement, starts, micro_batches=8)
    assert schedule.makespan == (8 + 3) * 3
    assert schedule.peak_memory == (4, 3, 2, 1)


def test_depth_counts_forwards_and_closing_is_the_own_backward() -> None:
    placement = mshape(3)
    flow = read_flow(placement)
    index = placement.index_by_name
    assert [flow.depth[index[name]] for name in ("f0", "f1", "f2", "f3")] == [4, 3, 2, 1]
    assert flow.closing[index["f2"]] == (index["b2"],)


def test_no_more_than_the_limit_is_in_flight() -> None:
    for name in SHAPES:
        placement = make_shape(name, 4)
        flow = read_flow(placement)
        starts = run_greedily(flow, micro_batches=6, in_flight=dict.fromkeys(flow.opening, 2))
        for opener in flow.opening:
            for micro_batch in range(2, 6):
                closed = [starts[closer, micro_batch - 2] for closer in flow.closing[opener]]
                assert starts[opener, micro_batch] >= max(closed, default=0)


def test_of_a_choice_the_least_work_runs() -> None:
    placement = Placement(
        devices=1,
        blocks=(
            Block(name="slow", devices=(0,), span=5),
            Block(name="quick_a", devices=(0,), span=2),
            Block(name="quick_b", devices=(0,), span=2),
        ),
        choices=(Choice("way", (("slow",), ("quick_a", "quick_b"))),),
    )
    assert read_flow(placement).blocks == (1, 2)


def test_of_a_choice_the_joint_backward_runs_even_where_it_takes_longer() -> None:
    placement = mshape(
        2, choose_backward=True, backward_span=9, backward_input_span=2, backward_weight_span=2
    )
    running = {placement.blocks[block].name for block in read_flow(placement).blocks}
    assert running == {"f0", "f1", "f2", "b0", "b1", "b2"}
