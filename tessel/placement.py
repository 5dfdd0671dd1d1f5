"""One micro-batch's blocks, the devices they run on, and their dependencies.

A block holds all of its devices for its span. An edge `source → target` with lag `l` means that the target
starts no earlier than `l` steps after the source ends. Memory is counted in whole units: a block adds its
`memory` on each of its devices when it starts; a negative one frees. Contention between transfers is not
modelled: a lag does not depend on the number of concurrent transfers. Checked in
tests/tessel/test_placement.py.

    device 0   f0 . . . . . . . . b0        a v-shape on two devices: forward spans 1, backward 3
    device 1   . f1 b1 b1 b1 . . .
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import msgspec

from tessel.errors import ScheduleError, shown
from tessel.names import check_name

SCHEMA_VERSION = 1

MAX_SPAN = 10**9
"""Longest span or lag; whole schedules of 10⁶ such blocks still fit 64-bit integers."""


MAX_DEVICES = 2**16
"""Most devices; every figure of a schedule is a list of so many."""

MAX_MEMORY = 10**13
"""Most units a block adds or frees: ten terabytes, of which a million still fit 64-bit integers."""


class BlockKind(enum.StrEnum):
    """What a block does; only pictures and hand-written schedules look at it."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    RECOMPUTE = "recompute"
    OTHER = "other"


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A unit of work of one micro-batch.

    Attributes:
        name: unique in its placement.
        kind: what it does.
        devices: ascending device numbers, all held at once while it runs.
        span: whole steps it runs, >= 0.
        memory: units added on each of its devices when it starts; negative frees.
    """

    name: str
    kind: BlockKind = BlockKind.OTHER
    devices: tuple[int, ...]
    span: int = 1
    memory: int = 0


class Edge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The target starts at least `lag` steps after the source ends, in the same micro-batch."""

    source: str
    target: str
    lag: int = 0


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ways to do one thing; every micro-batch runs the blocks of exactly one option."""

    name: str
    options: tuple[tuple[str, ...], ...]


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """The blocks of one micro-batch on their devices; valid from birth.

    Attributes:
        devices: number of devices; they are numbered from 0.
        blocks: in any order; their names are unique.
        edges: precedence inside one micro-batch; acyclic.
        choices: alternatives among the blocks; edges to and from blocks not run do not count.

    Raises:
        ScheduleError: it has no block, a device or block that does not exist, a cycle, or a number out of
            range.
    """

    devices: int
    blocks: tuple[Block, ...]
    edges: tuple[Edge, ...] = ()
    choices: tuple[Choice, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        _check_version(self.schema_version)
        _check_blocks(self)
        _check_edges(self)
        _check_choices(self)

    @cached_property
    def index_by_name(self) -> Mapping[str, int]:
        """Position in `blocks` of each block by name."""
        return {block.name: index for index, block in enumerate(self.blocks)}

    @cached_property
    def followers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the blocks that wait for each block directly, in the order of the edges."""
        found: dict[str, dict[str, None]] = {block.name: {} for block in self.blocks}
        for edge in self.edges:
            found[edge.source][edge.target] = None
        return {name: tuple(targets) for name, targets in found.items()}

    @cached_property
    def waits_for(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the blocks that each block waits for directly, in the order of the edges."""
        found: dict[str, dict[str, None]] = {block.name: {} for block in self.blocks}
        for edge in self.edges:
            found[edge.target][edge.source] = None
        return {name: tuple(sources) for name, sources in found.items()}

    @cached_property
    def topological_order(self) -> tuple[str, ...]:
        """Names of the blocks, each after those that it waits for; ties as in `blocks` and `edges`."""
        return tuple(_sorter(self).static_order())

    def reachable(self, name: str, *, by: Mapping[str, tuple[str, ...]]) -> set[str]:
        """Return what is reached from a block by `followers` or by `waits_for`, itself left out."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            fresh = set(by[waiting.pop()]) - found
            found |= fresh
            waiting.extend(fresh)
        return found

    def block(self, name: str) -> Block:
        """Return the block of that name.

        Raises:
            KeyError: there is none.
        """
        return self.blocks[self.index_by_name[name]]

    def work(self, device: int) -> int:
        """Steps that a micro-batch keeps the device busy, taking the cheapest option of each choice there.

        A lower bound where there are choices: the cheapest option of a device need not be the one chosen.
        """
        in_choice = {name for choice in self.choices for option in choice.options for name in option}
        fixed = (block for block in self.blocks if block.name not in in_choice)
        return self._span_on(device, fixed) + sum(
            min(self._span_on(device, map(self.block, option)) for option in choice.options)
            for choice in self.choices
        )

    def chosen(self, option_indices: Mapping[str, int]) -> Placement:
        """Return the placement in which each choice is fixed to the option of that index.

        Args:
            option_indices: option by choice name; every choice is given.
        """
        dropped = {
            name
            for choice in self.choices
            for index, option in enumerate(choice.options)
            for name in option
            if index != option_indices[choice.name]
        }
        return Placement(
            devices=self.devices,
            blocks=tuple(block for block in self.blocks if block.name not in dropped),
            edges=tuple(e for e in self.edges if e.source not in dropped and e.target not in dropped),
        )

    def __repr__(self) -> str:
        choices = f", {len(self.choices)} choices" if self.choices else ""
        return (
            f"Placement({self.devices} devices, {len(self.blocks)} blocks, {len(self.edges)} edges{choices}, "
            f"work {max(map(self.work, range(self.devices)))} on the busiest device)"
        )

    def to_json(self) -> bytes:
        """Return the document of DESIGN's placement format, keys sorted."""
        return msgspec.json.encode(self, order="sorted")

    @staticmethod
    def _span_on(device: int, blocks: Iterable[Block]) -> int:
        return sum(block.span for block in blocks if device in block.devices)


def _check_version(found: int) -> None:
    if found != SCHEMA_VERSION:
        raise ScheduleError(
            f"placement has schema_version {found}, this installation reads {SCHEMA_VERSION}; "
            "convert it, or use the version that wrote it"
        )


def _check_blocks(placement: Placement) -> None:
    if placement.devices < 1:
        raise ScheduleError(f"placement has {placement.devices} devices; it needs at least 1")
    if placement.devices > MAX_DEVICES:
        raise ScheduleError(f"placement has {placement.devices} devices; {MAX_DEVICES} are the most")
    if not placement.blocks:
        raise ScheduleError("placement has no blocks; give at least one")
    seen: set[str] = set()
    for block in placement.blocks:
        if not block.name:
            raise ScheduleError("a block has an empty name; give each block a name of its own")
        check_name("block", block.name)
        if block.name in seen:
            raise ScheduleError(f"block name {block.name!r} occurs twice; give each block a name of its own")
        seen.add(block.name)
        _check_block(block, placement.devices)


def _check_block(block: Block, num_devices: int) -> None:
    if not block.devices:
        raise ScheduleError(f"block {block.name!r} has no device; name at least one of 0..{num_devices - 1}")
    unknown = [device for device in block.devices if not 0 <= device < num_devices]
    if unknown:
        raise ScheduleError(
            f"block {block.name!r} is on device {unknown[0]}, but the placement has devices "
            f'0..{num_devices - 1}; correct the number or raise "devices"'
        )
    if list(block.devices) != sorted(set(block.devices)):
        raise ScheduleError(
            f"block {block.name!r} has devices {shown(list(block.devices))}; list each once, in ascending "
            "order"
        )
    if not 0 <= block.span <= MAX_SPAN:
        raise ScheduleError(
            f"block {block.name!r} has span {block.span}; a span is a whole number of steps, 0..{MAX_SPAN}"
        )
    if abs(block.memory) > MAX_MEMORY:
        raise ScheduleError(
            f"block {block.name!r} has memory {block.memory}; at most {MAX_MEMORY} units are added or freed"
        )


def _check_edges(placement: Placement) -> None:
    names = {block.name for block in placement.blocks}
    for edge in placement.edges:
        for end in (edge.source, edge.target):
            if end not in names:
                raise ScheduleError(
                    f"edge {shown(edge.source)} -> {shown(edge.target)} names block {shown(end)!r}, which "
                    "does not exist; "
                    "correct the name or add the block"
                )
        if not 0 <= edge.lag <= MAX_SPAN:
            raise ScheduleError(
                f"edge {edge.source} -> {edge.target} has lag {edge.lag}; a lag is a whole number of "
                f"steps, 0..{MAX_SPAN}"
            )
    try:
        _sorter(placement).prepare()
    except CycleError as error:
        path = " -> ".join(error.args[1])
        raise ScheduleError(
            f"blocks wait for each other in a cycle, {shown(path)}; remove one of these edges"
        ) from None


def _check_choices(placement: Placement) -> None:
    names = {block.name for block in placement.blocks}
    seen_choices: set[str] = set()
    owner: dict[str, str] = {}
    for choice in placement.choices:
        check_name("choice", choice.name)
        if choice.name in seen_choices:
            raise ScheduleError(f"choice {choice.name!r} occurs twice; give each choice a name of its own")
        seen_choices.add(choice.name)
        if len(choice.options) < 2 or not all(choice.options):
            raise ScheduleError(
                f"choice {choice.name!r} needs at least two options, each with at least one block"
            )
        for name in (name for option in choice.options for name in option):
            if name not in names:
                raise ScheduleError(
                    f"choice {choice.name!r} names block {shown(name)!r}, which does not exist"
                )
            if name in owner:
                raise ScheduleError(
                    f"block {name!r} stands in choice {owner[name]!r} and again in {choice.name!r}; "
                    "a block belongs to one option of one choice"
                )
            owner[name] = choice.name


def _sorter(placement: Placement) -> TopologicalSorter[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for block in placement.blocks:
        sorter.add(block.name)
    for source, target in dict.fromkeys((edge.source, edge.target) for edge in placement.edges):
        sorter.add(target, source)
    return sorter
