"""Micro-batches of a step by class, and groups of them that replicas may run.

    4096x6,8192x2       classes 4096, 8192      sequence 0 0 0 0 0 0 1 1

Classes are those of a profile, whose figures are not known here. Checked in
tests/tessel/batches/test_mixture.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from tessel.batches.balancers import in_turns, largest_differencing, longest_first
from tessel.errors import ScheduleError


class Mixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Micro-batches of a step, over all replicas.

    Attributes:
        classes: lengths or names of a profile's classes, each once; at least two.
        sequence: the class of each micro-batch in the order given, as its position among the classes.

    Raises:
        ScheduleError: a class is missing, or no micro-batch is of it.
    """

    classes: tuple[str | int, ...]
    sequence: tuple[int, ...]

    def __post_init__(self) -> None:
        if set(self.sequence) != set(range(len(self.classes))) or len(self.classes) < 2:
            raise ScheduleError(
                f"a batch has {len(self.classes)} classes, and its micro-batches are of "
                f"{sorted(set(self.sequence))}; give each class a micro-batch, and two classes at least"
            )
        if len(set(self.classes)) < len(self.classes):
            raise ScheduleError("a batch names a class twice; name each once")

    @property
    def counts(self) -> tuple[int, ...]:
        """Micro-batches of each class."""
        return tuple(self.sequence.count(each) for each in range(len(self.classes)))

    def __str__(self) -> str:
        """Return it as it is written, runs of a class together."""
        runs: list[list[int]] = []
        for each in self.sequence:
            if runs and runs[-1][0] == each:
                runs[-1][1] += 1
            else:
                runs.append([each, 1])
        return ",".join(f"{self.classes[each]}x{count}" for each, count in runs)


Groups = tuple[tuple[int, ...], ...]
"""Micro-batches of each replica, ascending."""


# A plan prices thousands of layouts, in which classes compare alike.
@lru_cache(maxsize=256)
def groupings(sequence: Sequence[int], work: Sequence[int], replicas: int) -> tuple[Groups, ...]:
    """Return ways to share micro-batches out, equally many each: as given, and by published balancers.

    Args:
        sequence: the class of each micro-batch; hashable, as is
        work: of each class.
        replicas: how many there are; a divisor of the number of micro-batches.
    """
    size = len(sequence) // replicas
    given = tuple(tuple(range(row * size, (row + 1) * size)) for row in range(replicas))
    if replicas == 1:
        return (given,)
    each = [work[of] for of in sequence]
    found = [given]
    for balance in (in_turns, longest_first, largest_differencing):
        found.append(tuple(tuple(sorted(group)) for group in balance(each, replicas)))
    return tuple(dict.fromkeys(found))
