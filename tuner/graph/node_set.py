"""Sets of node numbers, held as the bits of one Python integer.

Union, intersection and difference of sets over a graph of 5 000 nodes are one machine operation a word, and
sets are hashable and ordered, which the partition search relies on. Checked in tests/tuner/graph/.

Source: TVM RFC 62 ("NodeSet").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class NodeSet:
    """A set of whole numbers >= 0; bit `i` of `bits` says whether it holds `i`."""

    bits: int = 0

    @classmethod
    def of(cls, indices: Iterable[int]) -> NodeSet:
        """Return the set of the given numbers."""
        bits = 0
        for index in indices:
            bits |= 1 << index
        return cls(bits)

    @classmethod
    def first_numbers(cls, count: int) -> NodeSet:
        """Return the set of 0, 1, …, count - 1."""
        return cls((1 << count) - 1)

    def __or__(self, other: NodeSet) -> NodeSet:
        return NodeSet(self.bits | other.bits)

    def __and__(self, other: NodeSet) -> NodeSet:
        return NodeSet(self.bits & other.bits)

    def __sub__(self, other: NodeSet) -> NodeSet:
        return NodeSet(self.bits & ~other.bits)

    def __contains__(self, index: int) -> bool:
        return bool(self.bits >> index & 1)

    def __bool__(self) -> bool:
        return self.bits != 0

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[int]:
        bits = self.bits
        while bits:
            lowest = bits & -bits
            yield lowest.bit_length() - 1
            bits ^= lowest

    def __repr__(self) -> str:
        return f"{{{', '.join(map(str, self))}}}"

    def is_disjoint(self, other: NodeSet) -> bool:
        """Say whether no number is in both."""
        return not self.bits & other.bits

    def is_subset(self, other: NodeSet) -> bool:
        """Say whether every number of this set is in the other."""
        return not self.bits & ~other.bits

    @property
    def first(self) -> int:
        """The smallest number.

        Raises:
            ValueError: the set is empty.
        """
        if not self.bits:
            raise ValueError("an empty index set has no first number; check that it holds something")
        return (self.bits & -self.bits).bit_length() - 1

    @property
    def last(self) -> int:
        """The largest number.

        Raises:
            ValueError: the set is empty.
        """
        if not self.bits:
            raise ValueError("an empty index set has no last number; check that it holds something")
        return self.bits.bit_length() - 1
