"""Time of orders in which a forward and a backward of one device run together, as an OVERLAP_F_B cell says.

What a pair takes is `tessel.schedule.overlap`'s. Checked in tests/tessel/checking/test_overlap.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessel.checking.case import Case, NamedTask, task_orders
from tessel.engine.actions import Action, ActionKind, RankCells
from tessel.planning.costs.training_step import estimate_ends
from tessel.schedule.overlap import paired_starts

Pair = tuple[NamedTask, NamedTask]
"""A forward and a backward of one device, by the names of their blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlapped:
    """What orders take whose pairs run together.

    Attributes:
        factor: share of the sum of its blocks that a pair takes.
        length: microseconds of the training step; of the pipeline where nothing else is known; steps where a
            step has no length.
        num_pairs: pairs that run together.
        num_apart: pairs whose backward waits for their forward.
    """

    factor: float
    length: float
    num_pairs: int
    num_apart: int


def pairs_of_cells(cells: RankCells) -> tuple[Pair, ...]:
    """Return the pairs that share a cell."""
    return tuple((_name(cell[0]), _name(cell[1])) for rank in cells for cell in rank if len(cell) == 2)


def overlapped(case: Case, pairs: Sequence[Pair], factor: float) -> Overlapped:
    """Return what the case takes where pairs run together.

    Args:
        case: its orders end without pairs.
        pairs: neighbours in the order of a device.
        factor: within 0..1.
    """
    together = list(map(tuple, task_orders(case.placement, tuple(pairs))))
    orders = task_orders(case.placement, case.orders)
    found = paired_starts(case.placement, orders, together, factor)
    return Overlapped(
        factor=factor,
        length=_length(case, found.ends),
        num_pairs=len(found.pairs),
        num_apart=len(pairs) - len(found.pairs),
    )


def _name(action: Action) -> NamedTask:
    halves = {ActionKind.BACKWARD_INPUT: "_input", ActionKind.BACKWARD_WEIGHT: "_weight"}
    kind = "f" if action.kind is ActionKind.FORWARD else "b"
    return f"{kind}{action.stage}{halves.get(action.kind, '')}", action.micro_batch


def _length(case: Case, ends: Mapping[tuple[int, int], int]) -> float:
    """Return what the step takes, given when each task ends."""
    step_us = 1.0 if case.step_us is None else case.step_us
    if case.step is None:
        return max(ends.values(), default=0) * step_us
    last = [0] * len(case.step.figures.groups)
    for (block, _), end in ends.items():
        stage = int(case.placement.blocks[block].name[1:].partition("_")[0])
        last[stage] = max(last[stage], end)
    return estimate_ends(
        case.step.figures,
        stage_ends_us=[end * step_us for end in last],
        activation_bytes=(0,) * case.placement.devices,
        micro_batches=case.micro_batches,
    ).step_us
