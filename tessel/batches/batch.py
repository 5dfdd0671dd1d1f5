"""Classes of micro-batches, and a batch as a sequence of them.

A placement says which blocks there are, where they run and what waits for what; that holds for every
micro-batch. A class says what its blocks take for micro-batches of one kind, such as one length of sequence:
spans, memory and lags in the placement's order of blocks and edges. What a class says takes the place of the
placement's own figures.

    batch 1x2,3     m0 m1 m2        device 0   f0 f1 f2 f2 f2 .  b0 b1 …      the third is three times as long

Which micro-batches there are is given; in which order they run is the schedule's. Checked in
tests/tessel/batches/test_batch.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import gcd

import msgspec
import numpy as np
import numpy.typing as npt

from tessel.errors import ScheduleError, shown
from tessel.names import check_name
from tessel.placement import MAX_MEMORY, MAX_SPAN, Placement

IntArray = npt.NDArray[np.int64]


class MicroBatchClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the blocks of one kind of micro-batch take.

    Attributes:
        name: unique in its batch.
        spans: steps, >= 0, one a block of the placement.
        memory: units added on each device of a block when it starts, negative frees; one a block.
        lags: steps, >= 0, one an edge of the placement.

    Raises:
        ScheduleError: a number is out of range.
    """

    name: str
    spans: tuple[int, ...]
    memory: tuple[int, ...]
    lags: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_name("class", self.name)
        steps = (0, *self.spans, *self.lags)
        if min(steps) < 0 or max(steps) > MAX_SPAN:
            wrong = min(steps) if min(steps) < 0 else max(steps)
            raise ScheduleError(
                f"class {self.name!r} has a span or lag of {wrong}; both are whole numbers of steps, "
                f"0..{MAX_SPAN}"
            )
        most = max(self.memory, key=abs, default=0)
        if abs(most) > MAX_MEMORY:
            raise ScheduleError(
                f"class {self.name!r} has memory {most}; at most {MAX_MEMORY} units are added or freed"
            )


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Micro-batches by class.

    Attributes:
        classes: with names of their own; all with as many blocks and edges.
        sequence: the class of each micro-batch, as its position among the classes.

    Raises:
        ScheduleError: it has no micro-batch, names no class, or its classes are of different placements.
    """

    classes: tuple[MicroBatchClass, ...]
    sequence: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.classes or not self.sequence:
            raise ScheduleError("batch has no class, or no micro-batch; give at least one of each")
        names = [each.name for each in self.classes]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ScheduleError(f"class name {twice!r} occurs twice; give each class a name of its own")
        lowest, highest = min(self.sequence), max(self.sequence)
        if lowest < 0 or highest >= len(self.classes):
            wrong = lowest if lowest < 0 else highest
            raise ScheduleError(
                f"batch has a micro-batch of class {wrong}; there are classes 0..{len(self.classes) - 1}"
            )
        first = self.classes[0]
        for each in self.classes:
            if len(each.spans) != len(first.spans) or len(each.lags) != len(first.lags):
                raise ScheduleError(
                    f"class {each.name!r} has {len(each.spans)} spans and {len(each.lags)} lags, class "
                    f"{first.name!r} {len(first.spans)} and {len(first.lags)}; give one a block and edge"
                )
            if len(each.memory) != len(each.spans):
                raise ScheduleError(
                    f"class {each.name!r} has {len(each.spans)} spans and {len(each.memory)} changes of "
                    "memory; give one of each a block"
                )

    @property
    def micro_batches(self) -> int:
        """How many there are."""
        return len(self.sequence)

    @property
    def names(self) -> tuple[str, ...]:
        """The class of each micro-batch by name."""
        return tuple(self.classes[each].name for each in self.sequence)

    @cached_property
    def spans(self) -> IntArray:
        """Steps; int64, shape (micro-batches, blocks)."""
        return self._by_micro_batch([each.spans for each in self.classes])

    @cached_property
    def memory(self) -> IntArray:
        """Units; int64, shape (micro-batches, blocks)."""
        return self._by_micro_batch([each.memory for each in self.classes])

    @cached_property
    def lags(self) -> IntArray:
        """Steps; int64, shape (micro-batches, edges)."""
        return self._by_micro_batch([each.lags for each in self.classes])

    def check(self, placement: Placement) -> None:
        """Refuse a placement that has other blocks or edges.

        Raises:
            ScheduleError: it has another number of them.
        """
        blocks, edges = len(self.classes[0].spans), len(self.classes[0].lags)
        if blocks != len(placement.blocks) or edges != len(placement.edges):
            raise ScheduleError(
                f"the batch's classes have {blocks} blocks and {edges} edges, the placement "
                f"{len(placement.blocks)} and {len(placement.edges)}; give each block a span and memory, "
                "and each edge a lag"
            )

    def class_placement(self, placement: Placement, index: int) -> Placement:
        """Return the placement with the figures of a class, as if all micro-batches were of it."""
        of = self.classes[index]
        if (
            of.spans == tuple(block.span for block in placement.blocks)
            and of.memory == tuple(block.memory for block in placement.blocks)
            and of.lags == tuple(edge.lag for edge in placement.edges)
        ):
            return placement  # what was derived from it is known
        return msgspec.structs.replace(
            placement,
            blocks=tuple(
                msgspec.structs.replace(block, span=span, memory=memory)
                for block, span, memory in zip(placement.blocks, of.spans, of.memory, strict=True)
            ),
            edges=tuple(
                msgspec.structs.replace(edge, lag=lag)
                for edge, lag in zip(placement.edges, of.lags, strict=True)
            ),
        )

    def taken(self, micro_batches: Sequence[int]) -> Batch:
        """Return the batch of some of the micro-batches, in the order given."""
        return msgspec.structs.replace(self, sequence=tuple(self.sequence[each] for each in micro_batches))

    def equal_parts(self) -> tuple[tuple[int, ...], ...]:
        """Return the micro-batches in as many parts as possible that are alike, class by class.

        Two long ones and four short ones are two parts of a long one and two short ones. Each part lists its
        micro-batches by class, and takes of every class the earliest that are left.
        """
        counts = Counter(self.sequence)
        number = gcd(*counts.values())
        left = {each: [] for each in sorted(counts)}  # type: dict[int, list[int]]
        for micro_batch, of in enumerate(self.sequence):
            left[of].append(micro_batch)
        size = {of: counts[of] // number for of in left}
        return tuple(
            tuple(each for of, own in left.items() for each in own[part * size[of] : (part + 1) * size[of]])
            for part in range(number)
        )

    def _by_micro_batch(self, rows: Sequence[Sequence[int]]) -> IntArray:
        return np.array(rows, dtype=np.int64).reshape(len(rows), -1)[list(self.sequence)]


def scaled_class(placement: Placement, name: str, factor: float) -> MicroBatchClass:
    """Return a class whose blocks take a placement's figures times a factor, in whole steps and units.

    Spans of at least one step stay so. Where rounding leaves a device more or less than it had after a
    micro-batch, the block that frees most there makes up for it. Lags are scaled too: a longer sequence sends
    more.

    Raises:
        ScheduleError: the factor is no positive number, or a figure gets out of range.
    """
    if not 0 < factor < float("inf"):
        raise ScheduleError(f"class {shown(name)!r} has factor {factor}; give a number above 0")
    if factor == 1:
        return MicroBatchClass(
            name=name,
            spans=tuple([block.span for block in placement.blocks]),
            memory=tuple([block.memory for block in placement.blocks]),
            lags=tuple([edge.lag for edge in placement.edges]),
        )
    spans = [max(round(block.span * factor), min(block.span, 1)) for block in placement.blocks]
    memory = [round(block.memory * factor) for block in placement.blocks]
    for device in range(placement.devices):
        here = [index for index, block in enumerate(placement.blocks) if device in block.devices]
        if not here or sum(placement.blocks[index].memory for index in here) != 0:
            continue
        largest = min(here, key=lambda index: (memory[index], -index))
        if len(placement.blocks[largest].devices) == 1:
            memory[largest] -= sum(memory[index] for index in here)
    return MicroBatchClass(
        name=name,
        spans=tuple(spans),
        memory=tuple(memory),
        lags=tuple(round(edge.lag * factor) for edge in placement.edges),
    )
