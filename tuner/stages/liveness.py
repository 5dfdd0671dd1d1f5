"""Liveness across the cuts of a program: what each part consumes, produces and relays.

A value that is used two parts after the one that makes it is *relayed*: every part between receives it and
sends it on, because a stage talks to its neighbours only. Neighbours are those before and after in program
order, or, where parts form branches, those that are said to be:

    chain      0 ─ 1 ─ 2 ─ 3           branches   0 ─ 1 ─┐
                                                  2 ─ 3 ─┴ 4      what 0 makes for 4 is relayed by 1

 Values that depend on no input of the user (a
causal mask, a transposed weight) never cross a cut: each part that reads them computes them again, which
costs less than sending them and keeps a weight's gradient within its stage. The fields of a tuple are taken
where the tuple is made, so that only tensors cross.

Order is that of the program: inputs first, then bindings, so every rank agrees on it. Checked by a second
definition of liveness in tests/tuner/stages/test_liveness.py.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from tuner.errors import TunerError

StagesBefore: TypeAlias = Sequence[Sequence[int]]
"""Of each stage of a pipeline with branches, the stages that it may receive from; all stand before it."""

Value: TypeAlias = Hashable
"""Whatever a framework calls a value: a Relax variable, a node of a torch graph."""


class Step(Protocol):
    """One step of a program: it binds one value."""

    @property
    def var(self) -> Value:
        """The value that it binds."""
        ...

    @property
    def reads(self) -> tuple[Value, ...]:
        """The values that it reads, each once."""
        ...

    @property
    def field_of(self) -> Value | None:
        """The tuple that it takes a field of, or None."""
        ...

    @property
    def is_alias(self) -> bool:
        """Whether it computes nothing, so that readers see through it."""
        ...


AnyStep = TypeVar("AnyStep", bound=Step, covariant=True)


class Dataflow(Protocol[AnyStep]):
    """A program to be cut, of Relax or of torch."""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The user's inputs, in order."""
        ...

    @property
    def parameters(self) -> tuple[Value, ...]:
        """The weights, in order."""
        ...

    @property
    def bindings(self) -> tuple[AnyStep, ...]:
        """The steps, each after those that it reads."""
        ...

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What the program returns, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[AnyStep]):
    """One part of a cut program.

    Attributes:
        bindings: what it computes, in program order, recomputed values included.
        received: values from parts before, in order.
        sources: for each of them, the part that it comes from.
        received_and_read: those of them that it reads.
        inputs: the user's inputs that it reads, in order.
        parameters: weights that it reads, in order of first use.
        made: values that it computes for later parts or the user, in order.
        sent: values for parts after, in order: relayed ones and its own.
    """

    bindings: tuple[AnyStep, ...]
    received: tuple[Any, ...]
    sources: tuple[int, ...]
    received_and_read: tuple[Any, ...]
    inputs: tuple[Any, ...]
    parameters: tuple[Any, ...]
    made: tuple[Any, ...]
    sent: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Flow(Generic[AnyStep]):
    """The parts in order, and what crosses each cut between them, in order.

    Of branches: what each part but the last sends.
    """

    parts: tuple[Part[AnyStep], ...]
    crossing: tuple[tuple[Any, ...], ...]


def find_flow(
    program: Dataflow[AnyStep], cuts: Sequence[int], before: StagesBefore | None = None
) -> Flow[AnyStep]:
    """Cut a program before the bindings at the positions `cuts`, rising. O(bindings + crossings).

    Args:
        before: of each part, the parts that it may receive from; the one before it if None.

    Raises:
        TunerError: a part reads a value, and there is no way to it from the part that makes it.
    """
    floating = input_free(program)
    owner = _owners(program, cuts, floating)
    order = tuple(owner)
    bindings_by_part = _bindings_by_part(program, owner, floating, num_parts=len(cuts) + 1)
    if before is None:
        received, crossing = _along_chain(order, owner, bindings_by_part)
    else:
        received, crossing = _along_branches(order, owner, bindings_by_part, before)
    returned = set(program.outputs)
    weights = set(program.parameters)
    own: list[list[Value]] = [[] for _ in bindings_by_part]
    for value in order:
        own[owner[value]].append(value)
    parts = []
    for index, bindings in enumerate(bindings_by_part):
        reads = dict.fromkeys(variable for binding in bindings for variable in binding.reads)
        sent = crossing[index] if index < len(cuts) else ()
        leaving = returned | set(sent)
        parts.append(
            Part(
                bindings=bindings,
                received=tuple(received[index]),
                sources=tuple(received[index].values()),
                received_and_read=tuple(value for value in received[index] if value in reads),
                inputs=tuple(value for value in program.inputs if value in reads),
                parameters=tuple(value for value in reads if value in weights),
                made=tuple(value for value in own[index] if value in leaving),
                sent=sent,
            )
        )
    return Flow(tuple(parts), crossing)


def input_free(program: Dataflow[AnyStep]) -> frozenset[Any]:
    """Find the values that depend on weights and constants alone, and are not returned."""
    bound = set(program.inputs)
    free = []
    for binding in program.bindings:
        if bound.isdisjoint(binding.reads):
            free.append(binding.var)
        else:
            bound.add(binding.var)
    return frozenset(free).difference(program.outputs)


_Received: TypeAlias = list[dict[Value, int]]
"""Of each part, the values that it receives, in order, and the part that each comes from."""


def _along_chain(
    order: Sequence[Value], owner: Mapping[Value, int], bindings_by_part: Sequence[Sequence[Step]]
) -> tuple[_Received, tuple[tuple[Value, ...], ...]]:
    """Relay each value from part to part up to the last that reads it."""
    last_use: dict[Value, int] = {}
    for part_index, bindings in enumerate(bindings_by_part):
        for binding in bindings:
            last_use.update(dict.fromkeys(binding.reads, part_index))
    crossing: list[list[Value]] = [[] for _ in bindings_by_part[1:]]
    for value in order:
        for cut_index in range(owner[value], last_use.get(value, -1)):
            crossing[cut_index].append(value)
    received = [dict.fromkeys(values, index) for index, values in enumerate(crossing)]
    return [{}, *received], tuple(map(tuple, crossing))


def _along_branches(
    order: Sequence[Value],
    owner: Mapping[Value, int],
    bindings_by_part: Sequence[Sequence[Step]],
    before: StagesBefore,
) -> tuple[_Received, tuple[tuple[Value, ...], ...]]:
    """Relay each value along a shortest way to each part that reads it; ways to several readers may fork."""
    readers: dict[Value, set[int]] = {}
    for part_index, bindings in enumerate(bindings_by_part):
        for binding in bindings:
            for value in binding.reads:
                readers.setdefault(value, set()).add(part_index)
    ways = {maker: _ways_from(maker, before) for maker in set(owner.values())}
    received: _Received = [{} for _ in bindings_by_part]
    sent: list[dict[Value, None]] = [{} for _ in bindings_by_part]
    for value in order:
        came_from = ways[owner[value]]
        for reader in sorted(readers.get(value, ())):
            part = reader
            while part != owner[value] and value not in received[part]:
                if part not in came_from:
                    raise TunerError(
                        f"stage {reader} reads what stage {owner[value]} makes, and the placement has no way "
                        "from the one to the other; cut elsewhere, or let their blocks follow one another"
                    )
                received[part][value] = came_from[part]
                sent[came_from[part]][value] = None
                part = came_from[part]
    return received, tuple(map(tuple, sent[:-1]))


def _ways_from(maker: int, before: StagesBefore) -> dict[int, int]:
    """Return, for each part that can be reached, the one before it on a shortest way; the first of equals."""
    steps = {maker: 0}
    came_from: dict[int, int] = {}
    for part in range(maker + 1, len(before)):  # Parts stand in topological order.
        reached = [earlier for earlier in before[part] if earlier in steps]
        if reached:
            came_from[part] = min(reached, key=lambda earlier: (steps[earlier], earlier))
            steps[part] = steps[came_from[part]] + 1
    return came_from


def _owners(program: Dataflow[AnyStep], cuts: Sequence[int], floating: frozenset[Value]) -> dict[Value, int]:
    """Say which part computes each value that may cross a cut, in program order."""
    owner: dict[Value, int] = {}
    for position, binding in enumerate(program.bindings):
        if binding.field_of in owner:
            owner[binding.var] = owner[binding.field_of]
        elif binding.var not in floating and not binding.is_alias:
            owner[binding.var] = bisect.bisect_right(cuts, position)
    return owner


def _bindings_by_part(
    program: Dataflow[AnyStep], owner: dict[Value, int], floating: frozenset[Value], *, num_parts: int
) -> list[tuple[AnyStep, ...]]:
    own: list[list[int]] = [[] for _ in range(num_parts)]
    for position, binding in enumerate(program.bindings):
        if binding.var in owner:
            own[owner[binding.var]].append(position)
    position_by_var = {binding.var: position for position, binding in enumerate(program.bindings)}
    parts = []
    for positions in own:
        reads = [
            value for position in positions for value in program.bindings[position].reads if value in floating
        ]
        again = _closure(program, position_by_var, reads)
        parts.append(tuple(program.bindings[position] for position in sorted({*positions, *again})))
    return parts


def _closure(
    program: Dataflow[AnyStep], position_by_var: dict[Value, int], roots: Sequence[Value]
) -> set[int]:
    """Find the positions of the bindings that compute `roots` from weights and constants."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        position = position_by_var.get(waiting.pop())
        if position is not None and position not in found:
            found.add(position)
            waiting.extend(program.bindings[position].reads)
    return found
