"""Find what flows between the parts of a cut program: what each takes, makes and must pass on.

A value that is used two parts after the one that makes it is *relayed*: every part between receives it and
sends it on, because a stage talks to its neighbours only. Values that depend on no input of the user (a
causal mask, a transposed weight) never cross a cut: each part that reads them computes them again, which
costs less than sending them and keeps a weight's gradient within its stage. The fields of a tuple are taken
where the tuple is made, so that only tensors cross.

Order is that of the program: inputs first, then bindings, so every rank agrees on it. Checked by a second
definition of liveness in tests/tuner/stages/test_liveness.py.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import relax

from tuner.stages.program import Binding, Program, Var


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a cut program.

    Attributes:
        bindings: what it computes, in program order, recomputed values included.
        received: values from the part before, in order.
        received_and_read: those of them that it reads.
        inputs: the user's inputs that it reads, in order.
        parameters: weights that it reads, in order of first use.
        made: values that it computes for later parts or the user, in order.
        sent: values for the part after, in order: relayed ones and its own.
    """

    bindings: tuple[Binding, ...]
    received: tuple[Var, ...]
    received_and_read: tuple[Var, ...]
    inputs: tuple[Var, ...]
    parameters: tuple[Var, ...]
    made: tuple[Var, ...]
    sent: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """The parts in order, and what crosses each cut between them, in order."""

    parts: tuple[Part, ...]
    crossing: tuple[tuple[Var, ...], ...]


def find_flow(program: Program, cuts: Sequence[int]) -> Flow:
    """Cut a program before the bindings at the positions `cuts`, rising. O(bindings + crossings)."""
    floating = input_free(program)
    owner = _owners(program, cuts, floating)
    order = tuple(owner)
    bindings_by_part = _bindings_by_part(program, owner, floating, num_parts=len(cuts) + 1)
    last_use: dict[Var, int] = {}
    for part_index, bindings in enumerate(bindings_by_part):
        for binding in bindings:
            last_use.update(dict.fromkeys(binding.reads, part_index))
    crossing = _crossing(order, owner, last_use, num_cuts=len(cuts))
    returned = set(program.outputs)
    weights = set(program.parameters)
    own: list[list[Var]] = [[] for _ in bindings_by_part]
    for value in order:
        own[owner[value]].append(value)
    parts = []
    for index, bindings in enumerate(bindings_by_part):
        reads = dict.fromkeys(variable for binding in bindings for variable in binding.reads)
        received = crossing[index - 1] if index else ()
        sent = crossing[index] if index < len(cuts) else ()
        leaving = returned | set(sent)
        parts.append(
            Part(
                bindings=bindings,
                received=received,
                received_and_read=tuple(value for value in received if value in reads),
                inputs=tuple(value for value in program.inputs if value in reads),
                parameters=tuple(value for value in reads if value in weights),
                made=tuple(value for value in own[index] if value in leaving),
                sent=sent,
            )
        )
    return Flow(tuple(parts), crossing)


def input_free(program: Program) -> frozenset[Var]:
    """Find the values that depend on weights and constants alone, and are not returned."""
    bound = set(program.inputs)
    free = []
    for binding in program.bindings:
        if bound.isdisjoint(binding.reads):
            free.append(binding.var)
        else:
            bound.add(binding.var)
    return frozenset(free).difference(program.outputs)


def _crossing(
    order: Sequence[Var], owner: Mapping[Var, int], last_use: Mapping[Var, int], *, num_cuts: int
) -> tuple[tuple[Var, ...], ...]:
    crossing: list[list[Var]] = [[] for _ in range(num_cuts)]
    for value in order:
        for cut_index in range(owner[value], last_use.get(value, -1)):
            crossing[cut_index].append(value)
    return tuple(map(tuple, crossing))


def _owners(program: Program, cuts: Sequence[int], floating: frozenset[Var]) -> dict[Var, int]:
    """Say which part computes each value that may cross a cut, in program order."""
    owner: dict[Var, int] = {}
    for position, binding in enumerate(program.bindings):
        if isinstance(binding.value, relax.TupleGetItem) and binding.value.tuple_value in owner:
            owner[binding.var] = owner[binding.value.tuple_value]
        elif binding.var not in floating and not isinstance(binding.value, relax.Var | relax.Tuple):
            owner[binding.var] = bisect.bisect_right(cuts, position)
    return owner


def _bindings_by_part(
    program: Program, owner: dict[Var, int], floating: frozenset[Var], *, num_parts: int
) -> list[tuple[Binding, ...]]:
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


def _closure(program: Program, position_by_var: dict[Var, int], roots: Sequence[Var]) -> set[int]:
    """Find the positions of the bindings that compute `roots` from weights and constants."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        position = position_by_var.get(waiting.pop())
        if position is not None and position not in found:
            found.add(position)
            waiting.extend(program.bindings[position].reads)
    return found
