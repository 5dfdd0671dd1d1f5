"""Instructions of one device as columns of numbers, for schedules of hundreds of thousands of them.

A rule may write its streams as columns instead of instructions one by one: each kind of work with its
micro-batches and a key that says where they stand. Columns are iterated like any other stream, and
`tessel.handwritten.construction.rule.task_numbers` turns them into tasks without an object for each.

    1F1B, warm-up 2      Forward 0 1 | 2 3 ...  at -2 -1 | 1 3 ...      F0 F1 B0 F2 B1 F3 ...
                         Backward    0 1 2 ...  at       0 2 4 ...

Checked in tests/tessel/handwritten/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessel.instruction import Instruction

_IntArray = npt.NDArray[np.int64]

Part = tuple[type[Instruction], int, _IntArray, _IntArray]
"""A kind of work, its stage, micro-batches, and by micro-batch the key of its place."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The instructions of one device, first to last.

    Attributes:
        kinds: the kinds that `kind` numbers.
        kind: int64, shape (instructions,); `stage` and `micro_batch` likewise.
    """

    kinds: tuple[type[Instruction], ...]
    kind: _IntArray
    stage: _IntArray
    micro_batch: _IntArray

    @classmethod
    def by_key(cls, *parts: Part) -> Columns:
        """Return the instructions of some parts in the order of their keys; equal keys in the order given."""
        order = np.concatenate([keys for _, _, _, keys in parts]).argsort(kind="stable")
        lengths = [len(keys) for _, _, _, keys in parts]
        return cls(
            kinds=tuple(kind for kind, _, _, _ in parts),
            kind=np.repeat(np.arange(len(parts)), lengths)[order],
            stage=np.repeat([stage for _, stage, _, _ in parts], lengths)[order],
            micro_batch=np.concatenate([micro_batches for _, _, micro_batches, _ in parts])[order],
        )

    @classmethod
    def of(cls, stream: Iterable[Instruction]) -> Columns:
        """Return the columns of any stream."""
        if isinstance(stream, Columns):
            return stream
        instructions = list(stream)
        number = {kind: number for number, kind in enumerate(dict.fromkeys(map(type, instructions)))}
        size = len(instructions)
        return cls(
            kinds=tuple(number),
            kind=np.fromiter((number[type(each)] for each in instructions), dtype=np.int64, count=size),
            stage=np.fromiter((each.stage for each in instructions), dtype=np.int64, count=size),
            micro_batch=np.fromiter((each.micro_batch for each in instructions), dtype=np.int64, count=size),
        )

    def repeated(self, first: int, after: int, times: int) -> Columns:
        """Return the instructions with one period repeated, each time for the next micro-batch.

        Args:
            first: place of the period's first instruction.
            after: place of the first one behind it, which is the same work of the next micro-batch.
            times: how often it is inserted ahead of itself.
        """
        head, period, rest = slice(first), slice(first, after), slice(first, None)
        kind, stage = (
            np.concatenate([each[head], np.tile(each[period], times), each[rest]])
            for each in (self.kind, self.stage)
        )
        numbers = (np.arange(times)[:, None] + self.micro_batch[period]).ravel()
        micro_batch = np.concatenate([self.micro_batch[head], numbers, self.micro_batch[rest] + times])
        return Columns(self.kinds, kind, stage, micro_batch)

    def __iter__(self) -> Iterator[Instruction]:
        for kind, stage, micro_batch in zip(
            self.kind.tolist(), self.stage.tolist(), self.micro_batch.tolist(), strict=True
        ):
            yield self.kinds[kind](stage, micro_batch)


def kept(stream: Iterable[Instruction]) -> Iterable[Instruction]:
    """Return a stream that can be iterated again and again."""
    return stream if isinstance(stream, Columns) else tuple(stream)
