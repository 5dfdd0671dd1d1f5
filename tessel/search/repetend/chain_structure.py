"""Recognise pipelines whose stages stand inside each other, to build a repetend from the inside out.

A *shell* is a block that adds memory and the one that frees it. In a chain of stages each shell encloses the
next, from the first stage's (outermost) to the last one's (innermost):

    f0 ( f1 ( f2 ( f3  b3 ) b2 ) b1 ) b0          a v-shape: four shells, one a device
    T  f0 ( f1 ( S f2 ( f3 b3 ) S' b1 ) b0 ) T'   tensor-parallel blocks stand on the way (S) or apart (T)

Each shell has its device to itself, but for blocks on several devices, whose moments in the period are
*fixed* before anything else is placed. Several chains may end in one fixed shell (a k-shape). Blocks tied to
no memory limit only need a free moment; those on several devices are fixed too, others are not recognised.

Checked in tests/tessel/search/test_period_nested.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessel.search.model.problem import UNREACHABLE, Problem
from tessel.search.repetend.cyclic_problem import CyclicProblem


@dataclass(frozen=True, slots=True)
class Way:
    """How one block leads to another: the fixed blocks between, and the steps from each start to the next."""

    between: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shell:
    """Two blocks and what stands inside them.

    Attributes:
        opening: the block that adds memory.
        closing: the block that frees it.
        inner: position in `NestedShells.shells` of the next shell inside; None for an innermost one.
        way_in: from the opening to the inner opening, or to the closing of an innermost shell.
        way_out: from the inner closing to the closing; None for an innermost shell.
    """

    opening: int
    closing: int
    inner: int | None
    way_in: Way
    way_out: Way | None


@dataclass(frozen=True, slots=True)
class NestedShells:
    """A whole placement as shells.

    Attributes:
        shells: each after the one inside it.
        fixed: blocks on several devices, ascending.
    """

    shells: tuple[Shell, ...]
    fixed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CrossingShells:
    """Two chains of stages that run through the same devices in opposite directions (an x-shape).

    Attributes:
        devices: in the order of the falling chain, from its innermost one.
        falling: its shells, each around the one before.
        rising: the other chain's shells on the same devices, each inside the one before.
    """

    devices: tuple[int, ...]
    falling: tuple[Shell, ...]
    rising: tuple[Shell, ...]


def find_crossing_shells(cyclic: CyclicProblem) -> CrossingShells | None:
    """Return the placement as two crossing chains; None where it is not built like that."""
    problem = cyclic.problem
    pairs = _memory_pairs(problem)
    if cyclic.copies != 1 or pairs is None or any(len(devices) > 1 for devices in problem.devices):
        return None
    if 2 * len(pairs) != problem.num_blocks or len(pairs) != 2 * problem.num_devices:
        return None
    network = _Network(cyclic)
    closing = dict(pairs)
    ways = {opening: network.enclosed(opening, closing, ()) for opening in closing}
    known = {opening: way for opening, way in ways.items() if way is not None}
    ordered = _inside_out(known) if len(known) == len(ways) else None
    if ordered is None or _is_forked(known, ()):
        return None
    chains = _chains(ordered, known)
    devices = [tuple(problem.devices[opening][0] for opening in chain) for chain in chains]
    if len(chains) != 2 or devices[0] != devices[1][::-1] or len(set(devices[0])) != problem.num_devices:
        return None
    falling, rising = (
        tuple(
            Shell(opening, closing[opening], None if place == 0 else place - 1, *known[opening][1:])
            for place, opening in enumerate(chain)
        )
        for chain in chains
    )
    return CrossingShells(devices[0], falling, rising[::-1])


def _chains(
    ordered: Sequence[int], ways: Mapping[int, tuple[int | None, Way, Way | None]]
) -> list[list[int]]:
    """Group openings into chains, each from the inside out."""
    chains: dict[int, list[int]] = {}
    for opening in ordered:
        inner = ways[opening][0]
        chain = [] if inner is None else chains.pop(inner)
        chains[opening] = [*chain, opening]
    return list(chains.values())


def find_nested_shells(cyclic: CyclicProblem) -> NestedShells | None:
    """Return the placement as shells; None where it is not built like that, or has several copies."""
    problem = cyclic.problem
    if cyclic.copies != 1 or any(len(blocks) == 0 for blocks in problem.devices):
        return None
    shells = _memory_pairs(problem)
    fixed = tuple(block for block, devices in enumerate(problem.devices) if len(devices) > 1)
    if shells is None or not _covers_devices(problem, shells, fixed):
        return None
    network = _Network(cyclic)
    closing = dict(shells)
    ways: dict[int, tuple[int | None, Way, Way | None]] = {}
    for opening in closing:
        found = network.enclosed(opening, closing, fixed)
        if found is None:
            return None
        ways[opening] = found
    on_a_way = [block for _, way_in, way_out in ways.values() for block in _between(way_in, way_out)]
    if not network.is_covered([*closing, *closing.values(), *on_a_way], fixed):
        return None
    ordered = _inside_out(ways)
    if ordered is None or not _knows_memory_in_time(problem, ordered) or _is_forked(ways, fixed):
        return None
    position = {opening: index for index, opening in enumerate(ordered)}
    return NestedShells(
        shells=tuple(
            Shell(
                opening,
                closing[opening],
                None if ways[opening][0] is None else position[_present(ways[opening][0])],
                ways[opening][1],
                ways[opening][2],
            )
            for opening in ordered
        ),
        fixed=fixed,
    )


def _memory_pairs(problem: Problem) -> list[tuple[int, int]] | None:
    """Return (opening, closing) of every block with memory, matched by devices, units and edges."""
    pairs = []
    paths = problem.paths
    closings = [block for block in range(problem.num_blocks) if problem.memory[block] < 0]
    for opening in range(problem.num_blocks):
        if problem.memory[opening] <= 0:
            continue
        match = [
            block
            for block in closings
            if problem.devices[block] == problem.devices[opening]
            and problem.memory[block] == -problem.memory[opening]
            and paths[opening, block] > UNREACHABLE
        ]
        if len(match) != 1:
            return None
        closings.remove(match[0])
        pairs.append((opening, match[0]))
    return pairs if not closings else None


def _covers_devices(problem: Problem, shells: Sequence[tuple[int, int]], fixed: Sequence[int]) -> bool:
    """Return whether every block is in a shell or fixed, and no device has two shells of its own."""
    in_shell = [block for pair in shells for block in pair]
    if any(block not in in_shell and block not in fixed for block in range(problem.num_blocks)):
        return False
    own = [problem.devices[opening] for opening, _ in shells if len(problem.devices[opening]) == 1]
    return len(own) == len(set(own))


class _Network:
    """The edges that bind, without those that a longer way implies."""

    def __init__(self, cyclic: CyclicProblem) -> None:
        problem = cyclic.problem
        paths = problem.paths
        self.following: list[list[tuple[int, int]]] = [[] for _ in range(problem.num_blocks)]
        self.preceding: list[list[tuple[int, int]]] = [[] for _ in range(problem.num_blocks)]
        longest: dict[tuple[int, int], int] = {}
        for u, v, steps, _ in cyclic.arcs.tolist():
            longest[u, v] = max(steps, longest.get((u, v), 0))
        for (u, v), steps in longest.items():
            is_implied = any(
                paths[w, v] > UNREACHABLE and length + paths[w, v] >= steps
                for w, length in problem.successors[u]
                if w != v
            )
            if not is_implied:
                self.following[u].append((v, steps))
                self.preceding[v].append((u, steps))

    def enclosed(
        self, opening: int, closing: Mapping[int, int], fixed: Sequence[int]
    ) -> tuple[int | None, Way, Way | None] | None:
        """Return the next opening inside and the ways in and out; None where a way forks.

        A shell that nothing ties to any other is an innermost one, whose two blocks need not wait.
        """
        stops = {*closing, *closing.values()}
        if not any(
            edges[block]
            for edges in (self.following, self.preceding)
            for block in (opening, closing[opening])
        ):
            return None, Way((), (0,)), None
        inwards = self._follow(opening, self.following, stops, fixed)
        if inwards is None:
            return None
        reached, way_in = inwards
        if reached == closing[opening]:
            return None, way_in, None
        outwards = self._follow(closing[opening], self.preceding, stops, fixed)
        if reached not in closing or outwards is None or outwards[0] != closing[reached]:
            return None
        way = outwards[1]
        return reached, way_in, Way(way.between[::-1], way.steps[::-1])

    def is_covered(self, seen: Sequence[int], fixed: Sequence[int]) -> bool:
        """Return whether every block that an edge ties is in a shell or on a way, once."""
        tied = [block for block, edges in enumerate(self.following) if edges or self.preceding[block]]
        return len(set(seen)) == len(seen) and all(block in seen for block in tied)

    def _follow(
        self,
        block: int,
        edges: Sequence[Sequence[tuple[int, int]]],
        stops: set[int],
        fixed: Sequence[int],
    ) -> tuple[int, Way] | None:
        between: list[int] = []
        steps: list[int] = []
        while len(edges[block]) == 1:
            block, length = edges[block][0]
            steps.append(length)
            if block in stops:
                return block, Way(tuple(between), tuple(steps))
            if block not in fixed or len(self.following[block]) != 1 or len(self.preceding[block]) != 1:
                return None
            between.append(block)
        return None


def _between(way_in: Way, way_out: Way | None) -> tuple[int, ...]:
    return way_in.between + (way_out.between if way_out is not None else ())


def _inside_out(ways: Mapping[int, tuple[int | None, Way, Way | None]]) -> list[int] | None:
    """Return the openings, each after the one inside it; None if that goes round in a circle."""
    ordered: list[int] = []
    while len(ordered) < len(ways):
        ready = [
            opening
            for opening, (inner, _, _) in ways.items()
            if opening not in ordered and (inner is None or inner in ordered)
        ]
        if not ready:
            return None
        ordered.extend(ready)
    return ordered


def _is_forked(ways: Mapping[int, tuple[int | None, Way, Way | None]], fixed: Sequence[int]) -> bool:
    """Return whether several shells stand around one that is not fixed."""
    inner = [inside for inside, _, _ in ways.values() if inside is not None and inside not in fixed]
    return len(inner) != len(set(inner))


def _knows_memory_in_time(problem: Problem, ordered: Sequence[int]) -> bool:
    """Return whether a device's shells on several devices come before its own one."""
    own_seen: set[int] = set()
    for opening in ordered:
        devices = problem.devices[opening]
        if len(devices) > 1 and own_seen.intersection(devices):
            return False
        if len(devices) == 1:
            own_seen.update(devices)
    return True


def _present(opening: int | None) -> int:
    if opening is None:
        raise AssertionError("an enclosing shell has an inner one")
    return opening
