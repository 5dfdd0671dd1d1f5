"""Every bound on random instances: never above the least makespan, and no weaker than it was."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

import pytest

from tessel.errors import InfeasibleError
from tessel.placement import Placement
from tessel.search import find_schedule
from tessel.search.budget import SearchBudget
from tessel.search.makespan.bounds.choice_relaxation import without_choices
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.makespan.bounds.ramp_bound import DeviceBlocks, ramp_bound
from tessel.search.makespan.bounds.sub_problem import on_devices, without_last_blocks
from tessel.search.makespan.exact.prover import without_options
from tessel.search.model.instance import Instance, build_instance
from tessel.search.model.precedence import least_distances_from
from tessel.search.model.problem import make_problem
from tessel.search.repetend.period_bounds import device_bounds
from tessel.validation import check_schedule
from tests.oracles.makespan_oracle import least_makespan_by_cpsat
from tests.oracles.random_instances import random_instance
from tests.samples.schedule_samples import Case, bound_of_diagram, least_makespan

NUMBERS = range(300)
FAR = 1 << 40

# Their answers say the same in each test.
truth_of = functools.cache(lambda number: least_makespan_by_cpsat(*random_instance(number)))


def built(case: Case) -> Instance | None:
    """Return the instance, or None where its limits are kept only by what starts and ends at one step."""
    placement, micro_batches, memory = case
    try:
        return build_instance(placement, micro_batches=micro_batches, memory=memory)
    except InfeasibleError as error:
        if "not every order was tried" not in str(error):
            raise
        return None


def of_arrays(case: Case) -> Iterator[int]:
    instance = built(case)
    if instance is not None:
        yield makespan_lower_bound(instance)


def of_ramps(case: Case) -> Iterator[int]:
    instance = built(case)
    if instance is None or instance.memory is None:
        return
    arrays = instance.arrays
    for device in range(arrays.num_devices):
        here = arrays.on[arrays.on_start[device] : arrays.on_start[device + 1]].tolist()
        distances_from = functools.partial(least_distances_from, instance.precedence)
        work = int(instance.least_work()[device])
        yield ramp_bound(DeviceBlocks(arrays, here, instance.memory[device], work, distances_from))


def of_diagrams(case: Case) -> Iterator[int]:
    instance = built(case)
    relaxed = None if instance is None else without_options(instance)
    if relaxed is None:
        return
    for size in range(1, relaxed.placement.devices + 1):
        for devices in combinations(range(relaxed.placement.devices), size):
            yield bound_of_diagram(relaxed, devices, FAR)


def of_periods(case: Case) -> Iterator[int]:
    """The same schedule again and again is a repetend: its micro-batches are no faster than the bound."""
    placement, micro_batches, memory = case
    if not placement.choices:
        for bound in device_bounds(make_problem(placement, memory=memory)):
            yield -(-bound * micro_batches // 1)


def of_relaxations(case: Case) -> Iterator[int]:
    placement, micro_batches, memory = case
    relaxed = without_choices(placement)
    assert relaxed is not None
    yield solved(relaxed, micro_batches, memory)
    for kept in ((), (0,)):
        smaller = without_last_blocks(relaxed, kept)
        yield solved(smaller, micro_batches, memory)
        devices = sorted({device for block in smaller.blocks for device in block.devices})[-2:]
        limits = None if memory is None else tuple(memory[device] for device in devices)
        yield solved(on_devices(smaller, devices), micro_batches, limits)


def solved(placement: Placement, micro_batches: int, memory: tuple[int, ...] | None) -> int:
    found = least_makespan_by_cpsat(placement, micro_batches, memory)
    assert found is not None
    return found


BOUNDS: dict[str, tuple[Callable[[Case], Iterable[int]], range, int]] = {
    "work, paths and memory": (of_arrays, NUMBERS, 6145),
    "ramps": (of_ramps, NUMBERS, 4504),
    "diagrams": (of_diagrams, NUMBERS, 11425),
    "periods": (of_periods, NUMBERS, 4118),
    "relaxations": (of_relaxations, range(60), 5419),
}
"""Bounds, the instances that they are computed of, and their sum over these."""


@pytest.mark.parametrize("name", BOUNDS)
def test_no_bound_is_above_the_truth_or_weaker_than_it_was(name: str) -> None:
    bounds_of, numbers, total = BOUNDS[name]
    proven = 0
    for number in numbers:
        bounds = list(bounds_of(random_instance(number)))
        assert max(bounds, default=0) <= truth_of(number), f"instance {number}"
        proven += sum(bounds)
    assert proven == total, "what is true and proves more is welcome: write down the new sum"


def test_the_oracles_agree() -> None:
    cases = [random_instance(number) for number in NUMBERS]
    small = [number for number, case in enumerate(cases) if len(case[0].blocks) * case[1] <= 6]
    assert len(small) > 30
    for number in small:
        found = least_makespan(*cases[number])
        # Exhaustive orders add one after the other what starts at one step.
        has_instant = any(block.span == 0 and block.memory for block in cases[number][0].blocks)
        assert found == truth_of(number) or has_instant


def test_the_search_claims_nothing_that_is_not_true() -> None:
    for number in range(120):
        placement, micro_batches, memory = case = random_instance(number)
        if built(case) is None:
            continue
        found = find_schedule(
            placement, micro_batches=micro_batches, memory=memory, budget=SearchBudget(0.02)
        )
        check_schedule(found)
        assert found.lower_bound <= truth_of(number) <= found.makespan, f"instance {number}"
        assert not found.optimal or found.makespan == truth_of(number), f"instance {number}"
