"""Find the shortest whole schedule in which forwards and backwards of a device may run together.

    the best order of blocks by themselves → the orders of hand-written rules and of paired list scheduling,
    neighbours paired in each → exchanges, pairs and halves at random places, as long as the budget lasts

Every candidate is timed exactly (`paired_starts`). The answer is no longer than the best found without pairs,
nor than any rule with its neighbours paired; whether it is optimal is said where it meets `_paired_bound`,
and only there: the bound of each device by its work (`least_end`), where a choice counts as the option that
takes least, and that of one micro-batch's way. Checked in tests/tessel/search/overlap/test_find_overlapped.py
against CP-SAT.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tessel.handwritten import OVERLAPPING
from tessel.handwritten.paired import fits, orders_of, orders_of_rule, pairings, timed
from tessel.orders import DeadlockError, Orders, Task, device_orders
from tessel.placement import Block, BlockKind, Placement
from tessel.schedule.overlap import DeviceWork, Pair, least_end
from tessel.schedule.schedule import Schedule
from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.params import MakespanParams
from tessel.search.model.instance import Instance, build_instance
from tessel.search.overlap.paired_listing import POLICIES, joint_placement, list_paired
from tessel.search.overlap.paired_moves import as_arrays, as_tasks, kinds_of, move_at_random

OPERATIONS_A_TASK = 8_000
"""Charged for each task of an order that is listed or timed: some microseconds."""

APART_SHARE = 0.3
"""Share of the budget that goes into the order of blocks by themselves."""

OPERATIONS_A_TASK_MOVED = 15
"""Charged for each task of a change: some nanoseconds, compiled."""

MOVES_A_ROUND = 500
"""Changes at random places between two looks at the budget."""

PATIENCE = 200
"""Rounds without a shorter order after which changes end."""


def find_overlapped(
    placement: Placement,
    *,
    micro_batches: int,
    factor: float,
    memory: Sequence[int] | int | None = None,
    budget: SearchBudget | None = None,
    seed: int = 0,
    start_from: Schedule | None = None,
    params: MakespanParams | None = None,
) -> Schedule:
    """Return the best schedule found; see `find_schedule`, which has the same arguments but for `factor`.

    An interrupt returns the best so far.

    Args:
        factor: share of the sum of its blocks that a pair takes.

    Raises:
        InfeasibleError: no schedule keeps the limits; pairs hold no less than blocks by themselves.
    """
    budget = budget or SearchBudget()
    instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    part = budget.part(APART_SHARE)
    is_apart = start_from is not None and start_from.overlap_factor is None
    apart = find_schedule(
        placement,
        micro_batches=micro_batches,
        memory=memory,
        budget=part,
        seed=seed,
        start_from=start_from if is_apart else None,
        params=params,
    )
    search = _Search(
        instance=instance,
        factor=factor,
        lower_bound=min(_paired_bound(instance, factor), apart.makespan),
        budget=budget,
    )
    search.offer(device_orders(placement, apart.start_by_block()), (), apart.found_by)
    budget.answer = search.answer
    try:
        if start_from is not None and not is_apart:
            search.offer(orders_of(start_from), start_from.pairs, start_from.found_by)
        search.run(seed)
    except KeyboardInterrupt:
        budget.interrupt()
    return search.answer()


@dataclass(slots=True, eq=False, kw_only=True)
class _Search:
    instance: Instance
    factor: float
    lower_bound: int
    budget: SearchBudget
    best: Schedule | None = None
    best_orders: list[list[Task]] = field(default_factory=list)
    best_pairs: list[Pair] = field(default_factory=list)

    @property
    def placement(self) -> Placement:
        """Blocks of one micro-batch."""
        return self.instance.placement

    @property
    def micro_batches(self) -> int:
        """How many are run."""
        return self.instance.micro_batches

    @property
    def memory(self) -> tuple[int, ...] | None:
        """Limit by device."""
        return self.instance.memory

    def answer(self) -> Schedule:
        """Return the best so far."""
        assert self.best is not None, "the order without pairs was offered first"
        optimal = self.best.makespan <= self.lower_bound
        self.budget.is_proven = optimal
        return msgspec.structs.replace(
            self.best,
            lower_bound=self.lower_bound,
            optimal=optimal,
            search_seconds=self.budget.elapsed_s,
        )

    @property
    def _is_over(self) -> bool:
        assert self.best is not None, "see answer"
        return self.budget.is_over or self.best.makespan <= self.lower_bound

    def run(self, seed: int) -> None:
        """Offer all candidates, then change the best."""
        for name, orders, pairs in self._candidates():
            if self._is_over:
                return
            before = self.best
            self.offer(orders, pairs, name)
            if self.best is not before:
                self._split_tails()
        self._move(seed)

    def offer(self, orders: Orders, pairs: Sequence[Pair], found_by: str) -> None:
        """Keep an order if it is as short as the best; by whom it was found, if it is shorter."""
        self.budget.charge(OPERATIONS_A_TASK * sum(map(len, orders)))
        try:
            found = timed(
                self.placement, orders, pairs, self.factor, self.micro_batches, self.memory, found_by
            )
        except DeadlockError:
            return
        if not fits(found) or (self.best is not None and found.makespan > self.best.makespan):
            return
        is_better = self.best is None or found.makespan < self.best.makespan
        if self.best is not None and not is_better:
            found = msgspec.structs.replace(found, found_by=self.best.found_by)
        self.best, self.best_pairs = found, list(found.pairs)
        self.best_orders = [list(order) for order in orders]
        if is_better:
            self.budget.report(found.makespan, self.lower_bound, found_by)

    def _candidates(self) -> Iterator[tuple[str, Orders, Sequence[Pair]]]:
        for pairs in pairings(self.placement, self.best_orders):
            yield (self.best.found_by if self.best else ""), self.best_orders, pairs
        joint = joint_placement(self.placement)
        if all(len(block.devices) == 1 for block in joint.blocks):
            for policy in POLICIES:
                self.budget.charge(OPERATIONS_A_TASK * len(joint.blocks) * self.micro_batches)
                listed = list_paired(
                    joint,
                    micro_batches=self.micro_batches,
                    memory=self.memory,
                    factor=self.factor,
                    policy=policy,
                )
                if listed is not None:
                    yield ("paired list scheduling", *self._of_joint(joint, *listed))
                if self._is_over:
                    return
        for rule in OVERLAPPING:
            limits = self.memory if rule.needs_limit else None
            if rule.why_not(self.placement, self.micro_batches, limits) is None:
                for orders in orders_of_rule(rule, self.placement, self.micro_batches, self.memory):
                    for pairs in pairings(self.placement, orders):
                        yield rule.name, orders, pairs

    def _of_joint(
        self, joint: Placement, orders: Orders, pairs: Iterable[Pair]
    ) -> tuple[Orders, Sequence[Pair]]:
        index = [self.placement.index_by_name[block.name] for block in joint.blocks]

        def own(task: Task) -> Task:
            return Task(index[task.block_index], task.micro_batch)

        return [list(map(own, order)) for order in orders], [(own(one), own(two)) for one, two in pairs]

    def _split_tails(self) -> None:
        """Try halves in place of the last backwards of each device, their weight halves at its end."""
        halves = self._halves()
        count = 1
        while halves and count <= self.micro_batches and not self._is_over:
            paired = {task for pair in self.best_pairs for task in pair}
            orders = []
            for order in self.best_orders:
                tail = [task for task in order if task.block_index in halves and task not in paired]
                split = set(tail[-count:])
                whole = [
                    Task(halves[task.block_index][0], task.micro_batch) if task in split else task
                    for task in order
                ]
                late = [
                    Task(halves[task.block_index][1], task.micro_batch) for task in order if task in split
                ]
                orders.append([*whole, *late])
            self.offer(orders, self.best_pairs, "paired list scheduling")
            count *= 2

    def _halves(self) -> dict[int, tuple[int, int]]:
        """Return both halves of each joint backward that a choice may split."""
        index, found = self.placement.index_by_name, {}
        for choice in self.placement.choices:
            joint = [option for option in choice.options if len(option) == 1]
            split = [option for option in choice.options if len(option) == 2]
            if len(joint) == 1 and len(split) == 1:
                kinds = {self.placement.block(name).kind: index[name] for name in split[0]}
                if set(kinds) == {BlockKind.BACKWARD_INPUT, BlockKind.BACKWARD_WEIGHT}:
                    found[index[joint[0][0]]] = (
                        kinds[BlockKind.BACKWARD_INPUT],
                        kinds[BlockKind.BACKWARD_WEIGHT],
                    )
        return found

    def _move(self, seed: int) -> None:
        """Change the best at random places, in rounds of fixed size, until the budget or the gains end."""
        if any(len(block.devices) > 1 for block in self.placement.blocks):
            return
        arrays, kinds = self.instance.arrays, kinds_of(self.placement)
        state, rounds_left = seed & 0x7FFFFFFF, PATIENCE
        while rounds_left and not self._is_over:
            rounds_left -= 1
            before = self.best.makespan if self.best else 0
            found = as_arrays(self.best_orders, self.best_pairs, arrays.num_blocks)
            moves = MOVES_A_ROUND
            self.budget.charge(OPERATIONS_A_TASK_MOVED * len(found.task) * moves)
            makespan, state = move_at_random(
                found, arrays, kinds, factor=self.factor, state=state, moves=moves
            )
            if makespan < 0:
                return
            self.offer(*as_tasks(found, arrays.num_blocks), "moves of pairs" if makespan < before else "")
            if makespan < before:
                rounds_left = PATIENCE


_ROUNDING = 1e-6
"""Steps that rounding errors of floating point may add; a bound is rounded up above them."""


def _paired_bound(instance: Instance, factor: float) -> int:
    """Return a makespan that no schedule beats, in steps; O(blocks × edges)."""
    arrays = instance.arrays
    longest = float((arrays.head + arrays.tail).max())
    for device in range(instance.placement.devices):
        longest = max(longest, _least_end(instance, device, factor))
    return math.ceil(longest - _ROUNDING)


def _least_end(instance: Instance, device: int, factor: float) -> float:
    placement, arrays, count = instance.placement, instance.arrays, instance.micro_batches
    here = [block for block in placement.blocks if device in block.devices]
    if not here:
        return 0.0
    place = placement.index_by_name
    heads = {block.name: int(arrays.head[place[block.name]]) for block in here}
    tails = {block.name: int(arrays.tail[place[block.name]]) - block.span for block in here}
    head, tail = min(heads.values()), min(tails.values())
    forwards = {block.name: block.span for block in here if _is_paired(block, BlockKind.FORWARD)}
    backwards = _backwards(placement, device)
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    work = placement.work(device)
    if not forwards or not backwards or optional & set(forwards):
        return head + factor * work * count + tail
    forward, backward = sum(forwards.values()), sum(backwards.values())
    rest = (work - forward - backward) * count
    are_apart = _are_apart_once(placement, forwards, backwards)
    pieces = [name for names in backwards for name in names]
    found = DeviceWork(
        forward=forward * count,
        backward=backward * count,
        shortest_forward=min(forwards.values()) if are_apart else 0,
        shortest_backward=min(backwards.values()) if are_apart else 0,
        head=head + rest,
        backward_head=head + rest,
        tail=tail,
        forward_tail=tail,
    )
    if not rest:
        found = found._replace(
            backward_head=min(heads[name] for name in pieces),
            forward_tail=min(tails[name] for name in forwards),
        )
    return least_end(found, factor)


def _is_paired(block: Block, kind: BlockKind) -> bool:
    return block.kind is kind and len(block.devices) == 1


def _backwards(placement: Placement, device: int) -> Mapping[tuple[str, ...], int]:
    """Return the least steps of each backward that may be in a pair, by the blocks of all its options."""
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    found: dict[tuple[str, ...], int] = {
        (block.name,): block.span
        for block in placement.blocks
        if block.devices == (device,) and block.kind is BlockKind.BACKWARD and block.name not in optional
    }
    for choice in placement.choices:
        options = [[placement.block(name) for name in option] for option in choice.options]
        blocks = [block for option in options for block in option]
        if any(_is_paired(block, BlockKind.BACKWARD) and block.devices == (device,) for block in blocks):
            least = min(sum(block.span for block in own if device in block.devices) for own in options)
            found[tuple(block.name for block in blocks)] = least
    return found


def _are_apart_once(
    placement: Placement, forwards: Iterable[str], backwards: Iterable[tuple[str, ...]]
) -> bool:
    """Whether each backward has a forward of its micro-batch ahead, and each forward a backward behind."""
    behind = [placement.reachable(name, by=placement.followers) for name in forwards]
    return all(any(set(own) <= later for later in behind) for own in backwards) and all(
        any(set(own) <= later for own in backwards) for later in behind
    )
