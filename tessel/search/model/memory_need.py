"""Least memory limit that is possible, and the sentence that says so when one is below it.

What one micro-batch holds alone, in its best order, is a lower bound on any limit: every order of the blocks
that hold memory on the device, as far as edges leave one, is looked at (sets of blocks, 2^16 at most). With
more such blocks a bound stands in: when block b starts, its micro-batch holds what the blocks started so far
have added. Those are a set that contains b and everything before it, and nothing whose predecessors it lacks;
the least sum of such a set is a minimum closure, one minimum cut. Checked in
tests/tessel/search/model/test_instance.py and test_bounds.py.

Source: Picard, "Maximal closure of a graph and applications to combinatorial problems" (1976).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import networkx as nx

from tessel.placement import Placement
from tessel.search.model.problem import Problem, make_problem

NEVER_AMPLE = 1 << 61
"""More than any device has room, one without a limit included."""

MAX_COMBINATIONS = 64
"""Combinations of options looked at; beyond, the sentence names the limits without a number."""

MAX_COUNTS = 1 << 16
"""Counts of blocks started by several micro-batches up to which their least peak is computed."""

MAX_BLOCKS_ORDERED = 16
"""Blocks with memory on a device up to which every order is tried (2^16 sets, some 0.1 s)."""


def least_memory(problem: Problem, device: int) -> int:
    """Return the units the device needs for one micro-batch alone, in the best order its edges allow.

    Where it has more than `MAX_BLOCKS_ORDERED` blocks with memory, a bound that may be below that. Blocks of
    span 0 may add and free in one step, so that with one of them nothing is known: 0.
    """
    held = _holders(problem, device)
    if any(problem.spans[block] == 0 for block in held):
        return 0
    memory = [int(problem.memory[block]) for block in held]
    before = _before(problem, held)
    return _least_peak(memory, before) if len(held) <= MAX_BLOCKS_ORDERED else _least_closure(memory, before)


def ample_rooms(placement: Placement) -> tuple[int, ...]:
    """Return, by device, room with which every micro-batch under way can be finished, one after the other.

    That is all that one micro-batch adds, provided that each gives back what it took and never more. Where
    that is not so, or there are too many options to tell, the answer is `NEVER_AMPLE`.
    """
    known: dict[tuple[int, ...], Problem] = {}
    return tuple(_ample_room(placement, device, known) for device in range(placement.devices))


def micro_batches_may_help_each_other(placement: Placement) -> bool:
    """Return whether several micro-batches may fit where each alone, after the others, does not.

    They may where one leaves something behind at its end, or may have freed more than it has added so far.
    """
    combinations = list(itertools.islice(_problems(placement), MAX_COMBINATIONS + 1))
    if len(combinations) > MAX_COMBINATIONS:
        return True
    return any(
        problem.net_memory[device] != 0 or _most_freed_by_one(problem, device) > 0
        for problem in combinations
        for device in range(problem.num_devices)
    )


def explain_infeasible(
    placement: Placement, *, micro_batches: int, memory: Sequence[int], is_proven: bool
) -> str:
    """Return the sentence for limits under which no schedule exists: device, need, limit, what to do.

    Args:
        placement: the blocks of one micro-batch.
        memory: limit by device.
        is_proven: whether every order was tried; otherwise the sentence does not claim that none exists,
            unless one device alone proves it.
    """
    needs = _needs(placement, micro_batches)
    for device, (need, limit) in enumerate(zip(needs, memory, strict=True)):
        if need > limit:
            return (
                f"device {device} needs at least {need} unit{'s' * (need != 1)} for {_count(micro_batches)}, "
                f"its limit is {limit}; {_remedy(placement, device, micro_batches)}"
            )
    device = min(range(placement.devices), key=lambda device: memory[device] - needs[device])
    tightest = f"needs at least {needs[device]} units, its limit is {memory[device]}"
    if not is_proven:
        return (
            f"no order of the blocks was found that keeps the limits of all devices (device {device} is "
            f"tightest: it {tightest}), and not every order was tried; raise the limits"
        )
    return (
        f"no order of the blocks keeps the limits of all devices at once (device {device} is tightest: it "
        f"{tightest}); raise the limits"
    )


def _remedy(placement: Placement, device: int, micro_batches: int) -> str:
    left = _units_left(placement, device)
    if left > 0 and micro_batches > 1:
        return (
            f"each micro-batch leaves {left} unit{'s' * (left != 1)} there that no block frees: have its "
            "backward blocks free what its forward blocks add"
        )
    return "raise the limit, recompute, or spread the blocks over more devices"


def _units_left(placement: Placement, device: int) -> int:
    """Units that a micro-batch leaves on a device whatever options it takes, which are few here."""
    return min(int(problem.net_memory[device]) for problem in _problems(placement))


def _holders(problem: Problem, device: int) -> list[int]:
    return [block for block in problem.blocks_by_device[device] if problem.memory[block]]


def _before(problem: Problem, held: Sequence[int]) -> list[int]:
    """For each of these blocks the set, as bits, of those among them that come before it on some way."""
    found = problem.ancestors
    return [sum(1 << item for item, other in enumerate(held) if found[block] >> other & 1) for block in held]


def _least_peak(memory: Sequence[int], before: Sequence[int]) -> int:
    """Return the least peak over all orders in which each item comes after the set `before` it."""
    whole = (1 << len(memory)) - 1
    level = {0: 0}
    peak = {0: 0}
    for done in range(whole):
        if done not in peak:
            continue
        for item, units in enumerate(memory):
            bit = 1 << item
            if done & bit or before[item] & ~done:
                continue
            level[done | bit] = level[done] + units
            reached = max(peak[done], level[done | bit])
            peak[done | bit] = min(peak.get(done | bit, reached), reached)
    return peak[whole]


def _least_closure(memory: Sequence[int], before: Sequence[int]) -> int:
    """Return the most, over the items, of what is at least held right after the item starts."""
    return max((_least_held(memory, before, item) for item in range(len(memory))), default=0)


def _least_held(memory: Sequence[int], before: Sequence[int], item: int) -> int:
    """Least units held right after an item starts: what must have started less the most then freed."""
    started = before[item] | 1 << item
    held = sum(units for other, units in enumerate(memory) if started >> other & 1)
    optional = [
        other for other in range(len(memory)) if not started >> other & 1 and not before[other] >> item & 1
    ]
    return held - _most_freed(memory, before, optional)


def _most_freed(memory: Sequence[int], before: Sequence[int], optional: Sequence[int]) -> int:
    """Return the most units that a set of optional items frees which holds all optional ones before each."""
    if _is_covered(memory, before, optional):
        return 0
    network = nx.DiGraph()
    network.add_nodes_from(("source", "sink"))
    freed = 0
    for item in optional:
        if memory[item] < 0:
            freed -= memory[item]
            network.add_edge("source", item, capacity=-memory[item])
        elif memory[item] > 0:
            network.add_edge(item, "sink", capacity=memory[item])
        network.add_edges_from((item, other) for other in optional if before[item] >> other & 1)
    return freed - int(nx.minimum_cut(network, "source", "sink")[0]) if freed else 0


def _is_covered(memory: Sequence[int], before: Sequence[int], optional: Sequence[int]) -> bool:
    """Whether what each item frees can be matched with what is added before it; quick, and may miss it."""
    left = {item: memory[item] for item in optional if memory[item] > 0}
    for item in optional:
        owed = -memory[item]
        for source in left:
            if owed > 0 and before[item] >> source & 1:
                taken = min(owed, left[source])
                left[source] -= taken
                owed -= taken
        if owed > 0:
            return False
    return True


def _ample_room(placement: Placement, device: int, known: dict[tuple[int, ...], Problem]) -> int:
    sizes = _options_that_matter(placement, device)
    names = [choice.name for choice in placement.choices]
    most = 0
    for count, options in enumerate(itertools.product(*sizes)):
        if count == MAX_COMBINATIONS:
            return NEVER_AMPLE
        if options not in known:
            taken = dict(zip(names, options, strict=True))
            known[options] = make_problem(placement, memory=None, option_indices=taken)
        problem = known[options]
        held = _holders(problem, device)
        memory = [int(problem.memory[block]) for block in held]
        if sum(memory) != 0 or _most_freed(memory, _before(problem, held), range(len(held))) > 0:
            return NEVER_AMPLE
        most = max(most, sum(amount for amount in memory if amount > 0))
    return most


def _options_that_matter(placement: Placement, device: int) -> list[range]:
    """The options of each choice; the first alone where none has a block on the device."""
    if not placement.choices:
        return []
    here = {block.name for block in placement.blocks if device in block.devices}
    return [
        range(len(choice.options) if any(here.intersection(option) for option in choice.options) else 1)
        for choice in placement.choices
    ]


def _count(micro_batches: int) -> str:
    return "one micro-batch" if micro_batches == 1 else f"{micro_batches} micro-batches"


def _problems(placement: Placement) -> Iterator[Problem]:
    sizes = (range(len(choice.options)) for choice in placement.choices)
    names = [choice.name for choice in placement.choices]
    for options in itertools.product(*sizes):
        yield make_problem(placement, memory=None, option_indices=dict(zip(names, options, strict=True)))


def _needs(placement: Placement, micro_batches: int) -> list[int]:
    """What each device needs at least, whatever options the micro-batches take; 0 where that is open."""
    problems = list(itertools.islice(_problems(placement), MAX_COMBINATIONS + 1))
    if len(problems) > MAX_COMBINATIONS:
        return [0] * placement.devices
    return [_need_of(problems, device, micro_batches) for device in range(placement.devices)]


def _need_of(problems: Sequence[Problem], device: int, micro_batches: int) -> int:
    """The least peak of all micro-batches, exactly where no options are mixed and the counts are few.

    Otherwise two bounds: what is left at the end, and the peak of one less what the others may have freed.
    """
    if any(problems[0].spans[block] == 0 for block in _holders(problems[0], device)):
        return 0
    if len(problems) == 1:
        exact = _least_peak_of_all(problems[0], device, micro_batches)
        if exact is not None:
            return exact
    left = min(int(problem.net_memory[device]) for problem in problems)
    alone = min(least_memory(problem, device) for problem in problems)
    freed = max(_most_freed_by_one(problem, device) for problem in problems)
    return max(0, micro_batches * left, alone - (micro_batches - 1) * freed)


def _most_freed_by_one(problem: Problem, device: int) -> int:
    """How far below nothing one micro-batch may bring what the device holds."""
    held = _holders(problem, device)
    memory = [int(problem.memory[block]) for block in held]
    return _most_freed(memory, _before(problem, held), range(len(held)))


def _least_peak_of_all(problem: Problem, device: int, micro_batches: int) -> int | None:
    """Return the least peak over all orders of the device's tasks, or None where there are too many."""
    held = _holders(problem, device)
    if (micro_batches + 1) ** len(held) > MAX_COUNTS:
        return None
    memory = [int(problem.memory[block]) for block in held]
    before = _before(problem, held)
    sources = [[other for other in range(len(held)) if row >> other & 1] for row in before]
    peak: dict[tuple[int, ...], int] = {(0,) * len(held): 0}
    for _ in range(len(held) * micro_batches):
        reached: dict[tuple[int, ...], int] = {}
        for counts, known in peak.items():
            level = sum(count * units for count, units in zip(counts, memory, strict=True))
            for item, units in enumerate(memory):
                if counts[item] == micro_batches or any(
                    counts[source] <= counts[item] for source in sources[item]
                ):
                    continue
                moved = (*counts[:item], counts[item] + 1, *counts[item + 1 :])
                found = max(known, level + units)
                reached[moved] = min(reached.get(moved, found), found)
        peak = reached
    return min(peak.values())
