"""A trace's table has medians, and says what is missing and how far times spread."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessel.errors import DocumentError
from tessel.placement import BlockKind
from tessel.profiles.traces.ranges import Trace, TraceRange, in_order
from tessel.profiles.traces.trace_profile import profile_of_trace

F, B = BlockKind.FORWARD, BlockKind.BACKWARD
INPUT, WEIGHT = BlockKind.BACKWARD_INPUT, BlockKind.BACKWARD_WEIGHT


def trace(*ranges: tuple[int, BlockKind, float], num_stages: int = 2) -> Trace:
    """A trace of ranges that follow each other, each of a micro-batch of its own."""
    made = [
        TraceRange(stage, stage, number, kind, 10.0 * number, duration)
        for number, (stage, kind, duration) in enumerate(ranges)
    ]
    names = tuple(f"stage{number}" for number in range(num_stages))
    return Trace(name="trace", ranges=in_order(made), stage_names=names)


@given(
    st.lists(st.floats(1.0, 1e6), min_size=1, max_size=9),
    st.lists(st.floats(1.0, 1e6), min_size=1, max_size=9),
)
def test_figures_are_medians(forwards: list[float], backwards: list[float]) -> None:
    found = trace(*((0, F, each) for each in forwards), *((0, B, each) for each in backwards), num_stages=1)
    (cost,) = profile_of_trace(found).tables[0].costs
    assert cost.forward_us == statistics.median(forwards)
    assert cost.backward_us == statistics.median(backwards)


def test_joint_and_split_backwards_stand_beside_each_other() -> None:
    found = trace((0, F, 5), (0, B, 9), (0, WEIGHT, 8), (1, F, 5), (1, INPUT, 4), (1, WEIGHT, 6), (1, B, 9))
    first, second = profile_of_trace(found).tables[0].costs
    assert (first.backward_us, first.backward_input_us, first.backward_weight_us) == (9, 0, 8)
    assert (second.backward_us, second.backward_input_us, second.backward_weight_us) == (9, 4, 6)


def test_a_layer_without_gradients_has_a_backward_of_nothing() -> None:
    frozen, trained = profile_of_trace(trace((0, F, 5), (1, F, 5), (1, B, 9))).tables[0].costs
    assert (frozen.backward_us, trained.backward_us) == (0.0, 9.0)
    assert not profile_of_trace(trace((0, F, 5), (1, F, 5))).is_training


def test_times_far_apart_are_told() -> None:
    near = profile_of_trace(trace(*((0, F, each) for each in (10, 11, 10, 11, 10)), num_stages=1))
    assert not any("in half of its" in note for note in near.notes)
    far = profile_of_trace(trace(*((0, F, each) for each in (10, 30, 10, 40, 20)), num_stages=1))
    assert any("forward of stage0 took" in note for note in far.notes)
    # Half of the middle half over the median: 0.5 of 10, and 12.5 of 20; the normal law's is 0.6745 sigma.
    found = [each.tables[0].spread_by_layer[0] for each in (near, far)]
    assert found == pytest.approx([0.05 / 0.6745, 0.625 / 0.6745])


def test_stages_that_are_not_in_it_are_named() -> None:
    with pytest.raises(DocumentError, match="trace: stage1 of 2 have no forward in it"):
        profile_of_trace(trace((0, F, 5)))


def test_a_repeated_range_is_of_the_next_step() -> None:
    ranges = [TraceRange(0, 0, number % 2, F, 100.0 + number, 1.0) for number in range(6)]
    found = in_order(reversed(ranges))
    assert [(each.step, each.micro_batch, each.start_us) for each in found] == [
        (0, 0, 0.0),
        (0, 1, 1.0),
        (1, 0, 2.0),
        (1, 1, 3.0),
        (2, 0, 4.0),
        (2, 1, 5.0),
    ]
