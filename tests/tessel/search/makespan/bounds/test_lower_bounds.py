"""Bounds by hand, and what they do not depend on; tests/tessel/search/test_every_bound.py has the truth."""

from __future__ import annotations

from hypothesis import given, reject, settings
from msgspec import structs

from tessel.errors import InfeasibleError
from tessel.placement import Block, Choice, Edge, Placement
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.model.instance import build_instance
from tessel.shapes import vshape
from tests.samples.schedule_samples import Case, tiny_cases


def bound_of(placement: Placement, micro_batches: int, memory: tuple[int, ...] | None = None) -> int:
    try:
        instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    except InfeasibleError:
        reject()
    return makespan_lower_bound(instance)


@settings(max_examples=30, deadline=None)
@given(case=tiny_cases())
def test_bound_only_rises_with_micro_batches_and_with_less_memory(case: Case) -> None:
    placement, micro_batches, memory = case
    bound = bound_of(placement, micro_batches, memory)
    assert bound_of(placement, micro_batches) <= bound
    assert bound_of(placement, micro_batches + 1, memory) >= bound


@settings(max_examples=30, deadline=None)
@given(case=tiny_cases())
def test_bound_is_unchanged_by_relabelling_devices(case: Case) -> None:
    placement, micro_batches, memory = case
    last = placement.devices - 1
    mirrored = structs.replace(
        placement,
        blocks=tuple(
            structs.replace(block, devices=tuple(sorted(last - device for device in block.devices)))
            for block in placement.blocks
        ),
    )
    limits = None if memory is None else memory[::-1]
    assert bound_of(mirrored, micro_batches, limits) == bound_of(placement, micro_batches, memory)


def test_bounds_by_hand() -> None:
    # Work: three forwards before the last device's eight times four steps, three backwards of three behind.
    assert bound_of(vshape(4), 8) == 3 + 8 * 4 + 3 * 3
    # Memory: device 0 holds a unit from a forward's start to its backward's end, 4 + 4 x 3, one at a time.
    assert bound_of(vshape(4), 8, (1, 4, 4, 4)) == 8 * 16
    # Path: a single micro-batch goes all the way down and up.
    assert bound_of(vshape(4), 1) == 4 * (1 + 3)


def test_the_path_through_the_shorter_option_is_a_bound_that_no_devices_work_has() -> None:
    spans = {"first": 4, "beside_first": 1, "second": 6, "beside_second": 1, "always": 2}
    blocks = tuple(
        Block(name=name, devices=(device,), span=span) for device, (name, span) in enumerate(spans.items())
    )
    choice = Choice("choice", (("first", "beside_first"), ("second", "beside_second")))
    assert bound_of(Placement(devices=len(blocks), blocks=blocks, choices=(choice,)), 1) == 4


def test_what_one_unit_in_no_time_adds_may_take_the_room_of_what_is_freed_at_that_step() -> None:
    blocks = (
        Block(name="f", devices=(0,), span=0, memory=1),
        Block(name="x", devices=(1,), span=2),
        Block(name="b", devices=(0,), span=3, memory=-1),
    )
    placement = Placement(devices=2, blocks=blocks, edges=(Edge("f", "x"), Edge("x", "b")))
    # The second f starts with the first b, and its x runs beside it: b's are one behind the other.
    assert bound_of(placement, 2, (1, 1)) == 2 + 2 * 3
