"""What every hand-written schedule keeps, on every shape, and how rules refuse."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.errors import InfeasibleError, ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.shapes import SHAPES, interleaved, make_shape, vshape, xshape, zbv
from tessel.validation import find_violations

RULES = {rule.name: rule for rule in HANDWRITTEN}
VARIANTS = ("joint", "split_backward", "choose_backward", "infer")


@st.composite
def shapes(draw: st.DrawFn) -> Placement:
    """Any known shape with spans, lags, variant and memory of its own."""
    spans = st.integers(0, 9)
    memory = draw(st.integers(1, 9))
    options = {
        "forward_span": draw(spans),
        "backward_span": draw(spans),
        "backward_input_span": draw(spans),
        "backward_weight_span": draw(spans),
        "tensor_parallel_span": draw(spans),
        "lag": draw(st.sampled_from((0, 1, 7))),
        "forward_memory": memory,
        "backward_memory": -memory,
        "recompute": draw(st.booleans()),
        "recompute_memory": draw(st.integers(0, 3)),
    }
    variant = draw(st.sampled_from(VARIANTS))
    if variant != "joint":
        options[variant] = True
    return make_shape(draw(st.sampled_from(sorted(SHAPES))), draw(st.integers(2, 5)), **options)


@settings(max_examples=80, deadline=None)
@given(shapes(), st.integers(1, 12))
def test_what_applies_is_valid(placement: Placement, micro_batches: int) -> None:
    for rule in HANDWRITTEN:
        if rule.needs_limit or rule.why_not(placement, micro_batches) is not None:
            continue
        schedule = rule.build(placement, micro_batches=micro_batches)
        assert find_violations(schedule) == ()
        assert schedule.found_by == rule.name
        assert rule.build(placement, micro_batches=micro_batches) == schedule


@settings(max_examples=60, deadline=None)
@given(shapes(), st.integers(1, 8), st.integers(0, 60))
def test_a_limit_is_kept_or_refused(placement: Placement, micro_batches: int, limit: int) -> None:
    memory = (limit,) * placement.devices
    for rule in HANDWRITTEN:
        reason = rule.why_not(placement, micro_batches, memory)
        if reason is None:
            schedule = rule.build(placement, micro_batches=micro_batches, memory=memory)
            assert max(schedule.peak_memory) <= limit
            assert find_violations(schedule) == ()
        else:
            with pytest.raises(ScheduleError):
                rule.build(placement, micro_batches=micro_batches, memory=memory)


def test_1f1b_and_gpipe_apply_to_every_shape() -> None:
    for name in SHAPES:
        for rule in ("1f1b", "gpipe"):
            assert RULES[rule].why_not(make_shape(name, 4), 8) is None


def test_1f1b_applies_where_blocks_have_no_kind() -> None:
    placement = Placement(
        devices=2,
        blocks=(
            Block(name="a", devices=(0,), memory=2),
            Block(name="b", devices=(1,), span=3),
            Block(name="c", devices=(0,), memory=-2),
        ),
        edges=(Edge("a", "b"), Edge("b", "c")),
    )
    schedule = RULES["1f1b"].build(placement, micro_batches=4)
    assert find_violations(schedule) == ()
    assert schedule.peak_memory == (2, 0)


def test_a_choice_is_joint_for_1f1b_and_split_for_zero_bubble() -> None:
    placement = vshape(3, choose_backward=True)
    run_by = {
        name: {start.block for start in RULES[name].build(placement, micro_batches=4).starts}
        for name in ("1f1b", "gpipe", "zb-h1", "zb-h2")
    }
    assert {"b0", "b1", "b2"} <= run_by["1f1b"]
    assert {"b0", "b1", "b2"} <= run_by["gpipe"]
    assert not {"b0", "b1", "b2"} & run_by["zb-h1"]
    assert not {"b0", "b1", "b2"} & run_by["zb-h2"]


def test_stages_that_cannot_split_run_whole_among_those_that_can() -> None:
    split, joint = vshape(2, split_backward=True), vshape(2)
    mixed = Placement(
        devices=2,
        blocks=(*joint.blocks[:2], joint.block("b1"), split.block("b0_input"), split.block("b0_weight")),
        edges=(
            Edge("f0", "f1"),
            Edge("f1", "b1"),
            Edge("b1", "b0_input"),
            Edge("f0", "b0_input"),
            Edge("b0_input", "b0_weight"),
        ),
    )
    schedule = RULES["zb-h1"].build(mixed, micro_batches=3)
    assert find_violations(schedule) == ()


def test_split_backwards_run_input_then_weight_in_1f1b() -> None:
    schedule = RULES["1f1b"].build(vshape(3, split_backward=True), micro_batches=5)
    starts = schedule.start_by_block()
    index = schedule.placement.index_by_name
    for micro_batch in range(5):
        span = schedule.placement.block("b1_input").span
        first, second = (starts[index[name], micro_batch] for name in ("b1_input", "b1_weight"))
        assert second == first + span


def test_1f1b_recomputes_on_arrival_and_the_early_rule_before() -> None:
    placement = vshape(4, recompute=True, lag=2)
    usual = RULES["1f1b"].build(placement, micro_batches=8)
    early = RULES["early-recompute-1f1b"].build(placement, micro_batches=8)
    assert early.makespan < usual.makespan
    arrivals = usual.start_by_block()
    index = placement.index_by_name
    for micro_batch in range(8):
        gradient = arrivals[index["b3"], micro_batch] + placement.block("b3").span + 2
        assert arrivals[index["r2"], micro_batch] >= gradient


def test_1f1b_fits_exactly_when_its_peak_does() -> None:
    placement = vshape(4, forward_memory=5, backward_memory=-5)
    assert RULES["1f1b"].why_not(placement, 8, (20, 15, 10, 5)) is None
    assert RULES["1f1b"].why_not(placement, 8, (20, 14, 10, 5)) == (
        "1f1b does not fit: device 1 needs 15 units, its limit is 14"
    )
    with pytest.raises(InfeasibleError, match="device 1 needs 15 units"):
        RULES["1f1b"].build(placement, micro_batches=8, memory=(20, 14, 10, 5))


def test_limited_1f1b_is_1f1b_where_that_fits_and_slower_below() -> None:
    placement = vshape(4, backward_span=2)
    limited = RULES["1f1b-limited"]
    makespans = [
        limited.build(placement, micro_batches=8, memory=(limit,) * 4).makespan for limit in (4, 3, 2, 1)
    ]
    assert makespans[0] == RULES["1f1b"].build(placement, micro_batches=8).makespan
    assert makespans == sorted(makespans)
    assert makespans[-1] == 8 * 12
    assert limited.why_not(placement, 8, (4, 4, 0, 4)) == (
        "1f1b-limited does not fit: device 2 needs 1 units, its limit is 0 with one micro-batch in flight"
    )
    assert "needs a memory limit" in str(limited.why_not(placement, 8))


def test_refusals_say_why() -> None:
    reasons = {
        "zb-h1": (vshape(2), "no stage has a backward in an input and a weight half"),
        "zb-v": (vshape(2, split_backward=True), "its chain is not a V"),
        "interleaved": (vshape(2), "each device has one stage"),
        "chimera": (xshape(3), "an even number of devices"),
        "dualpipe-v": (zbv(2, split_backward=True), "at least 4 micro-batches"),
        "early-recompute-1f1b": (vshape(2), "no stage recomputes"),
    }
    for name, (placement, reason) in reasons.items():
        assert reason in str(RULES[name].why_not(placement, 3))
        with pytest.raises(ScheduleError, match="does not apply"):
            RULES[name].build(placement, micro_batches=3)
    assert "no multiple" in str(RULES["interleaved"].why_not(interleaved(2), 3))
    with pytest.raises(ValueError, match="1 memory limits were given for 2 devices"):
        RULES["1f1b"].why_not(vshape(2), 4, (3,))
    with pytest.raises(ValueError, match="0 micro-batches"):
        RULES["1f1b"].why_not(vshape(2), 0)


def test_devices_may_be_numbered_otherwise() -> None:
    placement = vshape(3)
    renamed = Placement(
        devices=4,
        blocks=tuple(
            Block(
                name=block.name,
                kind=BlockKind(block.kind),
                devices=((2, 0, 3)[block.devices[0]],),
                span=block.span,
                memory=block.memory,
            )
            for block in placement.blocks
        ),
        edges=placement.edges,
    )
    schedule = RULES["1f1b"].build(renamed, micro_batches=6)
    assert schedule.makespan == RULES["1f1b"].build(placement, micro_batches=6).makespan
    assert schedule.peak_memory == (2, 0, 3, 1)
