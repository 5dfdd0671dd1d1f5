"""The option assignments of a placement, the most promising first.

Each assignment becomes a problem with its bound. Bounds rule most of them out unsearched. Where there are
more than `MAX_ASSIGNMENTS` only the likeliest are listed: every choice at the option with the least work,
and the choices up to some place at one option number and all after it at another. `Assignments.bound` holds
for all of them, listed or not, also if micro-batches were to take different options. Checked in
tests/tessel/search/repetend/test_find_repetend.py and test_bounds.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations, product

import numpy as np

from tessel.errors import InfeasibleError
from tessel.placement import Choice, Placement
from tessel.search.model.instance import Instance
from tessel.search.model.precedence import UNREACHABLE, least_distances_from
from tessel.search.model.problem import IntArray, Problem, make_problem, options
from tessel.search.repetend.infeasibility import limit_violation
from tessel.search.repetend.params import RepetendParams
from tessel.search.repetend.period_bounds import device_bounds, memory_bound


@dataclass(frozen=True, slots=True)
class Assignments:
    """Problems to search, best bound first.

    Attributes:
        problems: one for each assignment listed, without those that break a limit whatever the period.
        bounds: steps that a micro-batch takes at least, as `problems`.
        bound: the same for every assignment and mixture.
        is_complete: whether all assignments are listed.
    """

    problems: tuple[Problem, ...]
    bounds: tuple[Fraction, ...]
    bound: Fraction
    is_complete: bool


def list_assignments(instance: Instance, params: RepetendParams) -> Assignments:
    """Return the assignments of an instance, however many micro-batches it has.

    Raises:
        InfeasibleError: every assignment breaks the limit of some device.
    """
    placement, memory = instance.placement, instance.memory
    is_complete = math.prod(len(choice.options) for choice in placement.choices) <= params.max_assignments
    indices = options(placement) if is_complete else _likely_options(placement)
    listed = [make_problem(placement, memory=memory, option_indices=taken) for taken in indices]
    violations = [limit_violation(problem) for problem in listed]
    possible = [problem for problem, violation in zip(listed, violations, strict=True) if violation is None]
    if not possible:
        raise InfeasibleError(violations[0])
    by_device = [device_bounds(problem) for problem in possible]
    ranked = sorted(range(len(possible)), key=lambda index: max(by_device[index]))
    if is_complete:
        bound = max(map(min, zip(*by_device, strict=True)))
    else:
        bound = max(
            relaxed_bound(instance, device, max_combinations=params.max_local_assignments)
            for device in range(placement.devices)
        )
    return Assignments(
        problems=tuple(possible[index] for index in ranked),
        bounds=tuple(max(by_device[index]) for index in ranked),
        bound=bound,
        is_complete=is_complete,
    )


def relaxed_bound(instance: Instance, device: int, *, max_combinations: int) -> Fraction:
    """Return the bound that a device imposes whatever options are taken elsewhere.

    The choices with a block on the device are tried in every combination, up to `max_combinations`; between
    its blocks lie the least steps that any options leave. Otherwise its least work is the bound.
    """
    placement = instance.placement
    local = [choice for choice in placement.choices if _is_on(placement, device, choice)]
    if math.prod(len(choice.options) for choice in local) > max_combinations:
        return Fraction(placement.work(device))
    bounds = []
    for taken in product(*(range(len(choice.options)) for choice in local)):
        indices = {choice.name: index for choice, index in zip(local, taken, strict=True)}
        problem = make_problem(placement, memory=instance.memory, option_indices=indices)
        by_memory = memory_bound(problem, device, _least_paths(instance, problem, device))
        bounds.append(max(Fraction(int(problem.work[device])), by_memory))
    return min(bounds)


def _is_on(placement: Placement, device: int, choice: Choice) -> bool:
    return any(device in placement.block(name).devices for option in choice.options for name in option)


def _least_paths(instance: Instance, problem: Problem, device: int) -> IntArray:
    """Return the steps between blocks with memory on the device that every combination leaves."""
    kept = list(problem.block_indices)
    paths = np.full((problem.num_blocks, problem.num_blocks), UNREACHABLE, dtype=np.int64)
    for u in problem.blocks_by_device[device]:
        if problem.memory[u] > 0:
            paths[u] = least_distances_from(instance.precedence, kept[u])[kept]
    return paths


def _likely_options(placement: Placement) -> Iterator[dict[str, int]]:
    yield {
        choice.name: min(
            range(len(choice.options)), key=lambda index: _work(placement, choice.options[index])
        )
        for choice in placement.choices
    }
    most_options = max(len(choice.options) for choice in placement.choices)
    for index in range(most_options):
        yield {choice.name: min(index, len(choice.options) - 1) for choice in placement.choices}
    for first, then in permutations(range(most_options), 2):
        for place in range(1, len(placement.choices)):
            yield {
                choice.name: min(first if here < place else then, len(choice.options) - 1)
                for here, choice in enumerate(placement.choices)
            }


def _work(placement: Placement, names: Sequence[str]) -> int:
    return sum(placement.block(name).span * len(placement.block(name).devices) for name in names)
