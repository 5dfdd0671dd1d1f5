"""A placement without choices that is nowhere longer, for bounds that know no choices.

Where a block may run joint or as two blocks one after the other on the same devices, both are at least as
long, hold at least as much and let others start no earlier than a pair that takes the best of either:

    b          2.2 steps, frees 2 at its start
    i .. w     1.3 and 1 steps, free 1 and 1              relaxed    i' .. w'    1.3 and 0.9, free 1 and 1

A schedule of the placement, with i' where b or i starts and w' behind i' or where w starts, is one of the
relaxation, so that each bound on the latter holds for the former: what b frees at its start is of no use
before its end, since whatever adds memory needs the device, so that a part may as well be freed inside it;
not so where a block without a span adds memory there. A pair whose first block adds, what its second needs,
adds no more than b does.
Choices of another form are not relaxed.
Checked in tests/tessel/search/test_every_bound.py against CP-SAT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from tessel.placement import Block, Edge, Placement


def without_choices(placement: Placement) -> Placement | None:
    """Return the relaxation, the placement itself without choices, None where one has another form.

    Its block names are those that the placement has outside choices, and those of the split options.
    """
    if not placement.choices:
        return placement
    splits = _read_splits(placement)
    if splits is None:
        return None
    owner = {name: split.first.name for split in splits for name in split.names}
    by_name = {split.first.name: split for split in splits}
    blocks: list[Block] = []
    for block in placement.blocks:
        if block.name not in owner:
            blocks.append(block)
        elif block.name in by_name:
            blocks += by_name[block.name].relaxed
    return Placement(
        devices=placement.devices, blocks=tuple(blocks), edges=tuple(_edges(placement, by_name, owner))
    )


@dataclass(frozen=True, slots=True)
class _Split:
    """A choice between one block and two.

    Attributes:
        joint: the block that is run alone.
        first: the first of the two.
        second: the second of the two.
        gap: least steps from the start of the first to that of the second.
        is_beside_instant: whether a block without a span adds memory on one of their devices.
    """

    joint: Block
    first: Block
    second: Block
    gap: int
    is_beside_instant: bool

    @property
    def names(self) -> tuple[str, str, str]:
        return self.joint.name, self.first.name, self.second.name

    @property
    def options(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """By option, its blocks in order, with the least steps from the start of the first one to theirs."""
        return {self.joint.name: 0}, {self.first.name: 0, self.second.name: self.gap}

    @property
    def relaxed(self) -> tuple[Block, Block]:
        """The pair that takes the best of either option."""
        span = min(self.joint.span, self.first.span)
        rest = min(self.second.span, self.joint.span - span)
        left = min(self.joint.memory, self.first.memory + self.second.memory)
        # What is freed inside the joint block helps nobody, but for those without a span that may add when it
        # starts. A second block without a span would start when the next one may, and free too late for it.
        most = self.joint.memory if rest == 0 or self.is_beside_instant else max(0, self.joint.memory)
        held = min(self.first.memory, most)
        return _changed(self.first, span, held), _changed(self.second, rest, min(0, left - held))


def _changed(block: Block, span: int, memory: int) -> Block:
    return Block(name=block.name, kind=block.kind, devices=block.devices, span=span, memory=memory)


def _read_splits(placement: Placement) -> Sequence[_Split] | None:
    """The choices, if each is one between a block and two, one after the other, on the same devices."""
    by_name = {block.name: block for block in placement.blocks}
    lag = {(edge.source, edge.target): edge.lag for edge in placement.edges}
    instant = {d for block in placement.blocks if block.span == 0 and block.memory > 0 for d in block.devices}
    found = []
    for choice in placement.choices:
        options = sorted(choice.options, key=len)
        if [len(option) for option in options] != [1, 2]:
            return None
        joint, pair = by_name[options[0][0]], options[1]
        if (pair[0], pair[1]) not in lag:
            pair = pair[::-1]
        if (pair[0], pair[1]) not in lag:
            return None
        first, second = by_name[pair[0]], by_name[pair[1]]
        if not joint.devices == first.devices == second.devices:
            return None
        gap = first.span + lag[pair[0], pair[1]]
        found.append(_Split(joint, first, second, gap, not instant.isdisjoint(joint.devices)))
    return found


def _edges(placement: Placement, splits: Mapping[str, _Split], owner: Mapping[str, str]) -> Iterator[Edge]:
    """The edges that hold whatever options are taken, each with the least of its lags."""
    delays: dict[tuple[str, str], dict[tuple[str, str], int]] = {}
    span = {block.name: block.span for block in placement.blocks}
    for edge in placement.edges:
        source, target = owner.get(edge.source, edge.source), owner.get(edge.target, edge.target)
        if source != target:
            ends = delays.setdefault((source, target), {})
            ends[edge.source, edge.target] = span[edge.source] + edge.lag
    for (source, target), ends in delays.items():
        least = min(
            _delay(ends, leaving, entered)
            for leaving, entered in product(_options(splits, source), _options(splits, target))
        )
        if least >= 0:
            first = splits[source].relaxed[0].span if source in splits else span[source]
            yield Edge(source, target, least - first)
    for split in splits.values():
        yield Edge(split.first.name, split.second.name)


def _options(splits: Mapping[str, _Split], name: str) -> tuple[Mapping[str, int], ...]:
    return splits[name].options if name in splits else ({name: 0},)


def _delay(
    ends: Mapping[tuple[str, str], int], leaving: Mapping[str, int], entered: Mapping[str, int]
) -> int:
    """Least steps from start to start of the first blocks of two options; -1 where no edge says anything.

    An edge into the second block of an option says nothing of its first one.
    """
    target = next(iter(entered))
    return max(
        (offset + ends[source, target] for source, offset in leaving.items() if (source, target) in ends),
        default=-1,
    )
