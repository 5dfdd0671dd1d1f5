"""Recognise pipelines whose stages stand inside each other, to build a repetend from the inside out.

A *stage pair* is a block that adds memory and the one that frees it. In a chain of stages each stage pair
encloses the next, from the first stage's (outermost) to the last one's (innermost):

    f0 ( f1 ( f2 ( f3  b3 ) b2 ) b1 ) b0          a v-shape: four stage pairs, one a device
    T  f0 ( f1 ( S f2 ( f3 b3 ) S' b1 ) b0 ) T'   tensor-parallel blocks stand on the path (S) or apart (T)

Each stage pair has its device to itself, but for blocks on several devices, whose slots in the period are
*fixed* before anything else is placed. Several chains may end in one fixed stage pair (a k-shape). Blocks
tied to no memory limit only need a free slot; those on several devices are fixed too, others are not
recognised.

Checked in tests/tessel/search/repetend/chain_dp/test_nested_chain_dp.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessel.search.model.problem import UNREACHABLE, Problem
from tessel.search.repetend.cyclic_problem import CyclicProblem


@dataclass(frozen=True, slots=True)
class Path:
    """How one block leads to another: the fixed blocks between, and the steps from each start to the next."""

    between: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StagePair:
    """Two blocks and what stands inside them.

    Attributes:
        opening: the block that adds memory.
        closing: the block that frees it.
        inner: position in `NestedChain.stage_pairs` of the next stage pair inside; None for an innermost one.
        path_in: from the opening to the inner opening, or to the closing of an innermost stage pair.
        path_out: from the inner closing to the closing; None for an innermost stage pair.
    """

    opening: int
    closing: int
    inner: int | None
    path_in: Path
    path_out: Path | None


@dataclass(frozen=True, slots=True)
class NestedChain:
    """A whole placement as stage pairs.

    Attributes:
        stage_pairs: each after the one inside it.
        fixed: blocks on several devices, ascending.
    """

    stage_pairs: tuple[StagePair, ...]
    fixed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CrossingChains:
    """Two chains of stages that run through the same devices in opposite directions (an x-shape).

    Attributes:
        devices: in the order of the falling chain, from its innermost one.
        falling: its stage pairs, each around the one before.
        rising: the other chain's stage pairs on the same devices, each inside the one before.
    """

    devices: tuple[int, ...]
    falling: tuple[StagePair, ...]
    rising: tuple[StagePair, ...]


def find_crossing_chains(cyclic: CyclicProblem) -> CrossingChains | None:
    """Return the placement as two crossing chains; None where it is not built like that."""
    problem = cyclic.problem
    pairs = _memory_pairs(problem)
    if cyclic.copies != 1 or pairs is None or any(len(devices) > 1 for devices in problem.devices):
        return None
    if 2 * len(pairs) != problem.num_blocks or len(pairs) != 2 * problem.num_devices:
        return None
    network = _Network(cyclic)
    closing = dict(pairs)
    enclosures = {opening: network.enclosed(opening, closing, ()) for opening in closing}
    known = {opening: path for opening, path in enclosures.items() if path is not None}
    ordered = _inside_out(known) if len(known) == len(enclosures) else None
    if ordered is None or _is_forked(known, ()):
        return None
    chains = _chains(ordered, known)
    devices = [tuple(problem.devices[opening][0] for opening in chain) for chain in chains]
    if len(chains) != 2 or devices[0] != devices[1][::-1] or len(set(devices[0])) != problem.num_devices:
        return None
    falling, rising = (
        tuple(
            StagePair(opening, closing[opening], None if place == 0 else place - 1, *known[opening][1:])
            for place, opening in enumerate(chain)
        )
        for chain in chains
    )
    return CrossingChains(devices[0], falling, rising[::-1])


def _chains(
    ordered: Sequence[int], enclosures: Mapping[int, tuple[int | None, Path, Path | None]]
) -> list[list[int]]:
    """Group openings into chains, each from the inside out."""
    chains: dict[int, list[int]] = {}
    for opening in ordered:
        inner = enclosures[opening][0]
        chain = [] if inner is None else chains.pop(inner)
        chains[opening] = [*chain, opening]
    return list(chains.values())


def find_nested_chain(cyclic: CyclicProblem) -> NestedChain | None:
    """Return the placement as stage pairs; None where it is not built like that, or has several copies."""
    problem = cyclic.problem
    if cyclic.copies != 1 or any(len(blocks) == 0 for blocks in problem.devices):
        return None
    stage_pairs = _memory_pairs(problem)
    fixed = tuple(block for block, devices in enumerate(problem.devices) if len(devices) > 1)
    if stage_pairs is None or not _covers_devices(problem, stage_pairs, fixed):
        return None
    network = _Network(cyclic)
    closing = dict(stage_pairs)
    enclosures: dict[int, tuple[int | None, Path, Path | None]] = {}
    for opening in closing:
        found = network.enclosed(opening, closing, fixed)
        if found is None:
            return None
        enclosures[opening] = found
    on_a_path = [
        block for _, path_in, path_out in enclosures.values() for block in _between(path_in, path_out)
    ]
    if not network.is_covered([*closing, *closing.values(), *on_a_path], fixed):
        return None
    ordered = _inside_out(enclosures)
    if ordered is None or not _knows_memory_in_time(problem, ordered) or _is_forked(enclosures, fixed):
        return None
    position = {opening: index for index, opening in enumerate(ordered)}
    return NestedChain(
        stage_pairs=tuple(
            StagePair(
                opening,
                closing[opening],
                None if enclosures[opening][0] is None else position[_present(enclosures[opening][0])],
                enclosures[opening][1],
                enclosures[opening][2],
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


def _covers_devices(problem: Problem, stage_pairs: Sequence[tuple[int, int]], fixed: Sequence[int]) -> bool:
    """Return whether every block is in a stage pair or fixed, and no device has two stage pairs of its
    own."""
    in_pair = [block for pair in stage_pairs for block in pair]
    if any(block not in in_pair and block not in fixed for block in range(problem.num_blocks)):
        return False
    own = [problem.devices[opening] for opening, _ in stage_pairs if len(problem.devices[opening]) == 1]
    return len(own) == len(set(own))


class _Network:
    """The edges that bind, without those that a longer path implies."""

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
    ) -> tuple[int | None, Path, Path | None] | None:
        """Return the next opening inside and the enclosures in and out; None where a path forks.

        A stage pair that nothing ties to any other is an innermost one, whose two blocks need not wait.
        """
        stops = {*closing, *closing.values()}
        if not any(
            edges[block]
            for edges in (self.following, self.preceding)
            for block in (opening, closing[opening])
        ):
            return None, Path((), (0,)), None
        inwards = self._follow(opening, self.following, stops, fixed)
        if inwards is None:
            return None
        reached, path_in = inwards
        if reached == closing[opening]:
            return None, path_in, None
        outwards = self._follow(closing[opening], self.preceding, stops, fixed)
        if reached not in closing or outwards is None or outwards[0] != closing[reached]:
            return None
        path = outwards[1]
        return reached, path_in, Path(path.between[::-1], path.steps[::-1])

    def is_covered(self, seen: Sequence[int], fixed: Sequence[int]) -> bool:
        """Return whether every block that an edge ties is in a stage pair or on a path, once."""
        tied = [block for block, edges in enumerate(self.following) if edges or self.preceding[block]]
        return len(set(seen)) == len(seen) and all(block in seen for block in tied)

    def _follow(
        self,
        block: int,
        edges: Sequence[Sequence[tuple[int, int]]],
        stops: set[int],
        fixed: Sequence[int],
    ) -> tuple[int, Path] | None:
        between: list[int] = []
        steps: list[int] = []
        while len(edges[block]) == 1:
            block, length = edges[block][0]
            steps.append(length)
            if block in stops:
                return block, Path(tuple(between), tuple(steps))
            if block not in fixed or len(self.following[block]) != 1 or len(self.preceding[block]) != 1:
                return None
            between.append(block)
        return None


def _between(path_in: Path, path_out: Path | None) -> tuple[int, ...]:
    return path_in.between + (path_out.between if path_out is not None else ())


def _inside_out(enclosures: Mapping[int, tuple[int | None, Path, Path | None]]) -> list[int] | None:
    """Return the openings, each after the one inside it; None if that goes round in a circle."""
    ordered: list[int] = []
    while len(ordered) < len(enclosures):
        ready = [
            opening
            for opening, (inner, _, _) in enclosures.items()
            if opening not in ordered and (inner is None or inner in ordered)
        ]
        if not ready:
            return None
        ordered.extend(ready)
    return ordered


def _is_forked(enclosures: Mapping[int, tuple[int | None, Path, Path | None]], fixed: Sequence[int]) -> bool:
    """Return whether several stage pairs stand around one that is not fixed."""
    inner = [inside for inside, _, _ in enclosures.values() if inside is not None and inside not in fixed]
    return len(inner) != len(set(inner))


def _knows_memory_in_time(problem: Problem, ordered: Sequence[int]) -> bool:
    """Return whether a device's stage pairs on several devices come before its own one."""
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
        raise AssertionError("an enclosing stage_pair has an inner one")
    return opening
