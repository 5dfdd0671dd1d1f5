"""Writes one device's instructions by kind and stage, counting the micro-batches of each.

Rules that publish phases ("2(P - i) - 1 forwards of the first chunk, then …") name no micro-batches: each
kind of work takes them in order. Phases may ask for more than there are; what is beyond the last is left out.
A phase is written as so many rounds of the same work, which takes no longer for thousands of them than for
one: columns of numbers come out (`tessel.handwritten.construction.columns`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tessel.handwritten.construction.columns import Columns
from tessel.instruction import Instruction

_IntArray = npt.NDArray[np.int64]

Work = tuple[type[Instruction], int]
"""A kind of work and its stage."""


@dataclass(slots=True)
class StreamWriter:
    """The instructions written so far, and how often each kind of work of each stage was asked for.

    Attributes:
        micro_batches: how many are run.
        counted_as: kinds whose micro-batches are counted together with those of another one.
    """

    micro_batches: int
    counted_as: dict[type[Instruction], type[Instruction]] = field(default_factory=dict)
    _asked: Counter[Work] = field(default_factory=Counter)
    _pieces: defaultdict[Work, list[tuple[_IntArray, _IntArray]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _single: defaultdict[Work, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    _length: int = 0

    def write(self, *works: Work, rounds: int = 1) -> None:
        """Add rounds of the next micro-batches of different work, as far as there are any.

        Args:
            works: what a round consists of, in order; no work twice.
            rounds: how many; none below 1.
        """
        if rounds == 1:  # as plain numbers, which cost less than arrays of one
            for place, work in enumerate(works):
                key = self._key(work)
                self._single[work].append((self._asked[key], self._length + place))
                self._asked[key] += 1
            self._length += len(works)
            return
        turns = np.arange(max(0, rounds), dtype=np.int64)
        for place, work in enumerate(works):
            key = self._key(work)
            self._pieces[work].append((self._asked[key] + turns, self._length + place + len(works) * turns))
            self._asked[key] += len(turns)
        self._length += len(works) * len(turns)

    def write_of(self, work: Work, micro_batches: Sequence[int]) -> None:
        """Add work of these micro-batches, which are not counted."""
        for place, micro_batch in enumerate(micro_batches):
            self._single[work].append((micro_batch, self._length + place))
        self._length += len(micro_batches)

    def count(self, work: Work) -> int:
        """Return how often that work was asked for."""
        return self._asked[self._key(work)]

    def columns(self) -> Columns:
        """Return the instructions written."""
        parts = []
        for kind, stage in dict.fromkeys((*self._pieces, *self._single)):
            single = np.array(self._single[kind, stage], dtype=np.int64).reshape(-1, 2)
            pieces = [*self._pieces[kind, stage], (single[:, 0], single[:, 1])]
            micro_batch, key = (np.concatenate(rows) for rows in zip(*pieces, strict=True))
            is_there = micro_batch < self.micro_batches
            parts.append((kind, stage, micro_batch[is_there], key[is_there]))
        return Columns.by_key(*parts)

    def _key(self, work: Work) -> Work:
        return self.counted_as.get(work[0], work[0]), work[1]
