"""Orders deadlock where a simulator that runs them finds that they do, and the cycle named is one."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.checking import Case, explain_deadlock, simulate
from tessel.checking.case import NamedOrders, task_orders
from tessel.orders import DeadlockError
from tessel.placement import Placement
from tessel.shapes import interleaved, vshape, zbv

SENTENCE = re.compile(
    r"(\w+)\[(\d+)\] on device ([\d, ]+) "
    r"(takes the result of|stands behind) (\w+)\[(\d+)\] on device [\d, ]+( in the order of its device)?"
)


def run(placement: Placement, orders: NamedOrders) -> int | None:
    """Run orders step by step, in whole steps of time; None where nobody can go on."""
    before = {block.name: [] for block in placement.blocks}
    for edge in placement.edges:
        before[edge.target].append(edge)
    span = {block.name: block.span for block in placement.blocks}
    at = [0] * placement.devices
    free = [0] * placement.devices
    end: dict[tuple[str, int], int] = {}
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        moved = False
        for device, order in enumerate(orders):
            if at[device] == len(order):
                continue
            name, number = order[at[device]]
            needed = [
                (edge.source, edge.lag) for edge in before[name] if (edge.source, number) in tasks(orders)
            ]
            if any((source, number) not in end for source, _ in needed):
                continue
            start = max([free[device], *(end[source, number] + lag for source, lag in needed)])
            end[name, number] = free[device] = start + span[name]
            at[device] += 1
            moved = True
        if not moved:
            return None
    return max(end.values())


def tasks(orders: NamedOrders) -> set[tuple[str, int]]:
    return {task for order in orders for task in order}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = draw(st.sampled_from([vshape, interleaved, zbv]))
    placement = shape(draw(st.integers(2, 3)), lag=draw(st.integers(0, 1)))
    micro_batches = draw(st.integers(1, 3))
    rng = random.Random(draw(st.integers(0, 10**6)))
    orders = []
    for device in range(placement.devices):
        own = [block.name for block in placement.blocks if device in block.devices]
        order = sorted(
            itertools.product(own, range(micro_batches)),
            key=lambda task: (
                (task[0].startswith("b"), task[1]) if rng.random() < 0.9 else (rng.random() < 0.5, 0)
            ),
        )
        orders.append(tuple(order))
    return Case(name="x", placement=placement, orders=tuple(orders), micro_batches=micro_batches)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_makespan_and_deadlock_are_those_of_a_run(case: Case) -> None:
    expected = run(case.placement, case.orders)
    orders = task_orders(case.placement, case.orders)
    try:
        found = simulate(case)
    except DeadlockError as error:
        assert expected is None
        check_cycle(case, explain_deadlock(case.placement, orders, error))
    else:
        assert found.schedule.makespan == expected
        assert found.length == expected


def check_cycle(case: Case, sentences: tuple[str, ...]) -> None:
    links = [SENTENCE.fullmatch(sentence) for sentence in sentences]
    assert len(links) >= 2
    named = [(match[1], int(match[2])) for match in links if match]
    others = [(match[5], int(match[6])) for match in links if match]
    assert others == [*named[1:], named[0]]
    edges = {(edge.source, edge.target) for edge in case.placement.edges}
    for match, task, other in zip(links, named, others, strict=True):
        assert match is not None
        if match[4] == "takes the result of":
            assert (other[0], task[0]) in edges
            assert task[1] == other[1]
        else:
            assert any(
                task in order and other in order and order.index(other) < order.index(task)
                for order in case.orders
            )


def test_who_waits_for_whom_is_said() -> None:
    orders = ((("f0", 0), ("b0", 0), ("f0", 1), ("b0", 1)), (("f1", 1), ("f1", 0), ("b1", 1), ("b1", 0)))
    case = Case(name="x", placement=vshape(2), orders=orders, micro_batches=2)
    with pytest.raises(DeadlockError) as error:
        simulate(case)
    assert explain_deadlock(case.placement, task_orders(case.placement, orders), error.value) == (
        "b0[0] on device 0 takes the result of b1[0] on device 1",
        "b1[0] on device 1 stands behind f1[1] on device 1 in the order of its device",
        "f1[1] on device 1 takes the result of f0[1] on device 0",
        "f0[1] on device 0 stands behind b0[0] on device 0 in the order of its device",
    )
