"""Instances: the serial order keeps its limits, and impossible limits are named with what is needed."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.errors import InfeasibleError, ScheduleError
from tessel.placement import Block, Choice, Edge, Placement
from tessel.search.model import feasible_order, instance, memory_need
from tessel.search.model.instance import build_instance
from tessel.search.model.memory_need import NEVER_AMPLE, ample_rooms, least_memory
from tessel.search.model.problem import make_problem
from tessel.shapes import vshape, zbv
from tests.samples.schedule_samples import Case, tiny_cases


def peaks_of_orders(placement: Placement, device: int) -> list[int]:
    """Most units held on the device, for every order of one micro-batch."""
    peaks = []
    for order in itertools.permutations(placement.blocks):
        rank = {block.name: index for index, block in enumerate(order)}
        if all(rank[edge.source] < rank[edge.target] for edge in placement.edges):
            changes = [block.memory for block in order if device in block.devices]
            peaks.append(max(itertools.accumulate(changes, initial=0)))
    return peaks


@settings(max_examples=60, deadline=None)
@given(case=tiny_cases())
def test_serial_order_is_topological_and_keeps_the_limits(case: Case) -> None:
    placement, micro_batches, memory = case
    try:
        arrays = build_instance(placement, micro_batches=micro_batches, memory=memory).arrays
    except InfeasibleError:
        return
    order = arrays.serial_order.tolist()
    assert sorted(order) == list(range(len(placement.blocks)))
    rank = {placement.blocks[block].name: index for index, block in enumerate(order)}
    assert all(rank[edge.source] < rank[edge.target] for edge in placement.edges)
    held = [0] * placement.devices
    for block in (placement.blocks[block] for block in order):
        choice, option = arrays.choice[order[rank[block.name]]], arrays.option[order[rank[block.name]]]
        if choice < 0 or option == arrays.default_option[choice]:
            for device in block.devices:
                held[device] += block.memory
                assert memory is None or held[device] <= memory[device]


@settings(max_examples=60, deadline=None)
@given(case=tiny_cases())
def test_least_memory_is_the_least_peak_of_any_order(case: Case) -> None:
    placement = case[0].chosen({choice.name: 0 for choice in case[0].choices})
    problem = make_problem(placement, memory=None)
    for device in range(placement.devices):
        assert least_memory(problem, device) == min(peaks_of_orders(placement, device))


def test_as_many_tasks_as_are_allowed_are_scheduled_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "MAX_TASKS", 8)
    build_instance(vshape(2), micro_batches=2, memory=None)
    with pytest.raises(ScheduleError, match="schedule has at most 8"):
        build_instance(vshape(2), micro_batches=3, memory=None)


def test_impossible_limit_names_the_device_and_the_need() -> None:
    with pytest.raises(InfeasibleError, match=r"device 0 needs at least 2 units .* its limit is 1; raise"):
        build_instance(zbv(2), micro_batches=3, memory=(1, 2))


def test_what_is_left_behind_counts_for_every_micro_batch() -> None:
    placement = Placement(
        devices=1,
        blocks=(Block(name="f", devices=(0,), memory=3), Block(name="b", devices=(0,), memory=-2)),
        edges=(Edge("f", "b"),),
    )
    build_instance(placement, micro_batches=4, memory=(6,))
    with pytest.raises(InfeasibleError, match="needs at least 7 units for 5 micro-batches"):
        build_instance(placement, micro_batches=5, memory=(6,))


def test_a_limit_that_what_is_left_behind_breaks_names_the_cause() -> None:
    """A V whose backwards free less than its forwards add; as shapes are built by default, they balance."""
    leaking = zbv(4, forward_memory=2, backward_memory=1, split_backward=True)
    with pytest.raises(InfeasibleError, match="each micro-batch leaves 6 units there that no block frees"):
        build_instance(leaking, micro_batches=64, memory=16)
    balanced = build_instance(zbv(4, forward_memory=2, split_backward=True), micro_batches=64, memory=16)
    assert balanced.memory == (16,) * 4


def test_limits_that_only_clash_together_are_refused() -> None:
    # Each device would have to free one before it adds the other, but all adds come before the frees there.
    blocks = (
        Block(name="a", devices=(0,), memory=1),
        Block(name="a_free", devices=(0,), memory=-1),
        Block(name="c", devices=(0,), memory=1),
        Block(name="c_free", devices=(0,), memory=-1),
        Block(name="b", devices=(1,), memory=1),
        Block(name="b_free", devices=(1,), memory=-1),
        Block(name="d", devices=(1,), memory=1),
        Block(name="d_free", devices=(1,), memory=-1),
    )
    edges = (
        *(Edge(name, f"{name}_free") for name in "acbd"),
        *(Edge(name, f"{other}_free") for name in "ac" for other in "bd"),
        *(Edge(name, f"{other}_free") for name in "bd" for other in "ac"),
    )
    placement = Placement(devices=2, blocks=blocks, edges=edges)
    build_instance(placement, micro_batches=1, memory=(2, 2))
    with pytest.raises(InfeasibleError, match="no order of the blocks keeps the limits of all devices"):
        build_instance(placement, micro_batches=1, memory=(1, 1))


def test_ample_room_is_what_a_micro_batch_adds_if_it_gives_it_back() -> None:
    assert ample_rooms(zbv(3)) == (2, 2, 2)
    assert ample_rooms(zbv(3, choose_backward=True, forward_memory=3, backward_memory=-3)) == (6, 6, 6)
    assert ample_rooms(vshape(2, backward_memory=0)) == (NEVER_AMPLE, NEVER_AMPLE)


def least_limit(placement: Placement, micro_batches: int) -> int:
    """The least peak of one device over all orders of all tasks."""
    tasks = [(block, m) for block in placement.blocks for m in range(micro_batches)]
    best = None
    for order in itertools.permutations(tasks):
        rank = {(block.name, m): place for place, (block, m) in enumerate(order)}
        if all(rank[e.source, m] < rank[e.target, m] for e in placement.edges for m in range(micro_batches)):
            peak = max(itertools.accumulate((block.memory for block, _ in order), initial=0))
            best = peak if best is None else min(best, peak)
    assert best is not None
    return best


@settings(max_examples=80, deadline=None)
@given(
    memory=st.lists(st.integers(-6, 6), min_size=2, max_size=3),
    edges=st.sets(st.sampled_from([(0, 1), (0, 2), (1, 2)])),
)
def test_limits_are_refused_exactly_where_no_order_of_all_tasks_keeps_them(
    memory: list[int], edges: set[tuple[int, int]]
) -> None:
    placement = Placement(
        devices=1,
        blocks=tuple(Block(name=f"b{i}", devices=(0,), memory=units) for i, units in enumerate(memory)),
        edges=tuple(Edge(f"b{a}", f"b{b}") for a, b in edges if b < len(memory)),
    )
    needed = least_limit(placement, 2)
    instance = build_instance(placement, micro_batches=2, memory=(needed,))
    if instance.first_tasks is not None:
        held = itertools.accumulate(memory[block] for block, _ in instance.first_tasks)
        assert max(held) <= needed
    if needed > 0:
        with pytest.raises(InfeasibleError, match=f"needs at least {needed} unit"):
            build_instance(placement, micro_batches=2, memory=(needed - 1,))


def has_an_order(placement: Placement, micro_batches: int, limits: tuple[int, ...]) -> bool:
    """Whether all tasks can start one after another within the limits, by every state that is reached."""
    blocks = placement.blocks
    number = {block.name: index for index, block in enumerate(blocks)}
    before = [
        [number[edge.source] for edge in placement.edges if edge.target == block.name] for block in blocks
    ]
    reached, waiting = {(0,) * len(blocks)}, [(0,) * len(blocks)]
    while waiting:
        counts = waiting.pop()
        held = [
            sum(
                count * block.memory
                for count, block in zip(counts, blocks, strict=True)
                if device in block.devices
            )
            for device in range(placement.devices)
        ]
        for index, block in enumerate(blocks):
            following = (*counts[:index], counts[index] + 1, *counts[index + 1 :])
            may_start = counts[index] < micro_batches and all(
                counts[source] > counts[index] for source in before[index]
            )
            fits = all(
                block.memory <= 0 or held[each] + block.memory <= limits[each] for each in block.devices
            )
            if may_start and fits and following not in reached:
                reached.add(following)
                waiting.append(following)
    return (micro_batches,) * len(blocks) in reached


@pytest.mark.parametrize("seed", range(8))
def test_limits_of_several_devices_are_refused_exactly_where_no_order_keeps_them(seed: int) -> None:
    rng, answers = random.Random(seed), set()
    for _ in range(60):
        num_blocks = rng.randint(3, 5)
        blocks = tuple(
            Block(
                name=f"b{index}",
                devices=rng.choice([(0,), (1,), (0, 1)]),
                memory=rng.choice([-3, -2, -1, 0, 1, 2, 3]),
            )
            for index in range(num_blocks)
        )
        edges = tuple(
            Edge(f"b{a}", f"b{b}")
            for a, b in itertools.combinations(range(num_blocks), 2)
            if rng.random() < 0.25
        )
        placement = Placement(devices=2, blocks=blocks, edges=edges)
        limits = (rng.randint(1, 6), rng.randint(1, 6))
        try:
            tasks = build_instance(placement, micro_batches=2, memory=limits).first_tasks
        except InfeasibleError:
            answers.add(False)
            assert not has_an_order(placement, 2, limits), placement
        else:
            answers.add(True)
            assert has_an_order(placement, 2, limits), placement
            held = [0, 0]
            for index, _ in tasks or ():
                for device in blocks[index].devices:
                    held[device] += blocks[index].memory
                    assert blocks[index].memory <= 0 or held[device] <= limits[device]
    assert answers == {False, True}


def test_blocks_that_free_come_first_and_then_those_that_add_least() -> None:
    memory = {"a": 2, "b": 1, "c": -1, "d": -2, "e": 0}
    blocks = tuple(Block(name=name, devices=(0,), memory=units) for name, units in memory.items())
    placement = Placement(devices=1, blocks=blocks)
    order = build_instance(placement, micro_batches=1, memory=(9,)).arrays.serial_order.tolist()
    assert "".join(blocks[index].name for index in order) == "cdeba"


def test_what_is_freed_at_most_is_that_of_the_best_set_of_blocks() -> None:
    rng = random.Random(0)
    for _ in range(120):
        count = rng.randint(1, 6)
        memory = [rng.choice([-3, -2, -1, 0, 1, 2, 3]) for _ in range(count)]
        before = [sum(1 << other for other in range(item) if rng.random() < 0.4) for item in range(count)]
        sets = [
            chosen
            for chosen in range(1 << count)
            if all(before[item] & ~chosen == 0 for item in range(count) if chosen >> item & 1)
        ]
        freed = [-sum(memory[item] for item in range(count) if chosen >> item & 1) for chosen in sets]
        assert memory_need._most_freed(memory, before, range(count)) == max(freed), (memory, before)


def test_the_bound_on_the_peak_is_what_is_held_at_least_when_some_block_has_started() -> None:
    rng = random.Random(0)
    for _ in range(120):
        count = rng.randint(1, 6)
        memory = [rng.choice([-2, -1, 0, 1, 2, 3]) for _ in range(count)]
        before: list[int] = []
        for item in range(count):
            sources = [other for other in range(item) if rng.random() < 0.4]
            before.append(functools.reduce(int.__or__, (before[other] | 1 << other for other in sources), 0))
        least: dict[int, int] = {}
        for chosen in range(1 << count):
            items = [item for item in range(count) if chosen >> item & 1]
            if all(before[item] & ~chosen == 0 for item in items):
                held = sum(memory[item] for item in items)
                # The item that started last is one that no other of the set comes after.
                for last in items:
                    if not any(before[item] >> last & 1 for item in items):
                        least[last] = min(held, least.get(last, held))
        expected = max(least.values())
        assert memory_need._least_closure(memory, before) == expected, (memory, before)


def test_too_many_options_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = vshape(2, choose_backward=True, backward_memory=0)
    balanced = vshape(2, choose_backward=True)
    assert not memory_need.micro_batches_may_help_each_other(balanced)
    with pytest.raises(InfeasibleError, match="each micro-batch leaves 1 unit there"):
        build_instance(placement, micro_batches=4, memory=2)
    monkeypatch.setattr(memory_need, "MAX_COMBINATIONS", 3)
    assert memory_need.micro_batches_may_help_each_other(balanced)
    with pytest.raises(InfeasibleError, match="needs at least 0 units") as error:
        build_instance(placement, micro_batches=4, memory=2)
    assert "each micro-batch leaves" not in str(error.value)


def test_a_search_that_was_cut_off_does_not_claim_that_there_is_no_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = (
        Block(name="x", devices=(0,), memory=-2),
        Block(name="a", devices=(0, 1), memory=6),
        Block(name="z", devices=(0,), memory=-5),
        Block(name="z1", devices=(1,), memory=-6),
    )
    edges = (Edge("x", "a"), Edge("a", "z"), Edge("a", "z1"))
    placement = Placement(devices=2, blocks=blocks, edges=edges)
    assert build_instance(placement, micro_batches=2, memory=(3, 6)).first_tasks is not None
    monkeypatch.setattr(feasible_order, "MAX_ORDER_STATES", -1)
    monkeypatch.setattr(memory_need, "MAX_COUNTS", 0)
    with pytest.raises(InfeasibleError, match="not every order was tried"):
        build_instance(placement, micro_batches=2, memory=(2, 6))


# Within one state, one micro-batch after the other is found to have no order.
@pytest.mark.parametrize("states", [0, 1])
def test_a_search_of_all_tasks_gives_up_at_its_limit_of_states(
    states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What adds least comes first: with both s started, no a has room.
    units = {"x": -2, "s": 1, "a": 6, "z": -5, "t": -1}
    blocks = tuple(Block(name=name, devices=(0,), memory=memory) for name, memory in units.items())
    edges = (Edge("x", "a"), Edge("a", "z"), Edge("a", "t"), Edge("s", "t"))
    placement = Placement(devices=1, blocks=blocks, edges=edges)
    assert build_instance(placement, micro_batches=2, memory=(3,)).first_tasks is not None
    monkeypatch.setattr(feasible_order, "MAX_ORDER_STATES", states)
    with pytest.raises(InfeasibleError, match="not every order was tried"):
        build_instance(placement, micro_batches=2, memory=(3,))


def test_what_is_needed_counts_all_that_any_option_may_free_first() -> None:
    # With x, two micro-batches need 3: x x a z a z; with y, which frees nothing before a, they need 6.
    units = {"x": -2, "y": -1, "a": 6, "z": -5}
    placement = Placement(
        devices=1,
        blocks=tuple(Block(name=name, devices=(0,), memory=memory) for name, memory in units.items()),
        edges=(Edge("a", "y"), Edge("a", "z")),
        choices=(Choice("way", (("x",), ("y",))),),
    )
    assert build_instance(placement, micro_batches=2, memory=(3,)).first_tasks is not None
    with pytest.raises(InfeasibleError, match="device 0 is tightest: it needs at least 2 units"):
        build_instance(placement, micro_batches=2, memory=(2,))


def test_what_only_an_option_not_taken_ties_is_no_proof_that_nothing_fits() -> None:
    # With x, nothing says that f comes before b; the order of all blocks that is looked for has i between.
    blocks = tuple(
        Block(name=name, devices=(device,), memory=units)
        for name, device, units in (("f", 0, 3), ("b", 0, -3), ("i", 1, 0), ("x", 1, 0))
    )
    placement = Placement(
        devices=2,
        blocks=blocks,
        edges=(Edge("f", "i"), Edge("i", "b")),
        choices=(Choice("way", (("i",), ("x",))),),
    )
    with pytest.raises(InfeasibleError, match="not every order was tried"):
        build_instance(placement, micro_batches=1, memory=(0, 0))
