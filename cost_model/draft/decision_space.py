"""Decisions about a kernel that is tiled in levels, as plain data and tables of numbers.

A kernel is a nest of loops that reads and writes tensors by linear indices. MetaSchedule tiles it as SSRSRS
on a CPU: each spatial loop becomes four, each reduction two, in the order of the letters. On a GPU it tiles
as SSSRRSRS (blocks, virtual threads, threads, then what one thread does), and spreads what has nothing to
tile, such as the sum of a row, over threads. A candidate is one
row of whole numbers: the sketch, and for each decision the number of a row in that decision's table. So
thousands of candidates are one array, and every row is a legal tile. Locations may still be refused, because
TVM alone knows which are legal after which tiles. Checked in tests/cost_model/draft/test_decision_space.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Decision: TypeAlias = int | tuple[int, ...]
"""Factors of a tile from the outermost in; or the index of an option, or of a loop to compute at."""

Rows: TypeAlias = npt.NDArray[np.int64]
"""Candidates, shape (num_candidates, 1 + num_decisions): the sketch, then a row of each decision's table."""

CPU_LEVELS, GPU_LEVELS = "SSRSRS", "SSSRRSRS"
"""The order of the loops that spatial loops and reductions become; each letter is a part of a tile."""

MAX_TILES = 200_000
"""Most tiles of one loop; 720720, which has the most divisors below a million, has 99 792 in four parts."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of the block that is tiled."""

    extent: int
    is_reduction: bool

    def __post_init__(self) -> None:
        if self.extent < 1:
            raise ValueError(f"a loop has extent {self.extent}; it is at least 1")


@dataclass(frozen=True, slots=True)
class Access:
    """A tensor that the block reads or writes by indices that are linear in its loops.

    Attributes:
        element_bytes: of one element, at least 1.
        steps: of each dimension, how far its index moves as each loop advances by one.
        is_written: whether it is the result.
    """

    element_bytes: int
    steps: tuple[tuple[int, ...], ...]
    is_written: bool


@dataclass(frozen=True, slots=True)
class TiledKernel:
    """A kernel as the draft model knows it.

    Attributes:
        loops: of the block that is tiled, the outermost first.
        accesses: of that block, results last.
        num_blocks: of the kernel; those beside the tiled one come before or after it.
    """

    loops: tuple[Loop, ...]
    accesses: tuple[Access, ...]
    num_blocks: int

    def __post_init__(self) -> None:
        if not any(not loop.is_reduction for loop in self.loops) or not self.accesses:
            raise ValueError("a tiled kernel has at least one spatial loop and one tensor")
        if any(len(steps) != len(self.loops) for each in self.accesses for steps in each.steps):
            raise ValueError(f"an access does not have one step for each of {len(self.loops)} loops")

    @property
    def num_operations(self) -> float:
        """Iterations of the whole nest, two operations each."""
        return 2.0 * math.prod(loop.extent for loop in self.loops)


@dataclass(frozen=True, slots=True)
class TileDecision:
    """How a loop is split; see `tiles_of`."""

    loop: int
    parts: int
    max_innermost: int


@dataclass(frozen=True, slots=True)
class OptionDecision:
    """An index into these numbers."""

    steps: tuple[int, ...]


class UnrollDecision(OptionDecision):
    """How many statements are unrolled at most."""


class WidthDecision(OptionDecision):
    """How many elements a GPU's thread copies into shared memory at once."""


class ThreadsDecision(OptionDecision):
    """Over how many of a GPU's threads a loop is spread that is not tiled."""


@dataclass(frozen=True, slots=True)
class LocationDecision:
    """At which loop another block is computed: −2 inlines it, −1 leaves it, others count loops."""

    num_loops: int


DecisionKind: TypeAlias = TileDecision | OptionDecision | LocationDecision


@dataclass(frozen=True)
class DecisionSpace:
    """What may be decided about a kernel, for sketches that differ in one number.

    Attributes:
        kernel: that is tiled; without tiles, one whose loops are spread over threads.
        kinds: of each decision, in the order of instructions.
        sketch_levels: of each sketch, the level of tiles in which what follows is computed, on a GPU the
            stage of the copies' pipeline in which it computes; 0 for none.
    """

    kernel: TiledKernel
    kinds: tuple[DecisionKind, ...]
    sketch_levels: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sketch_levels:
            raise ValueError("a space has no sketch; give at least one")
        tiled = sorted(kind.loop for kind in self.kinds if isinstance(kind, TileDecision))
        if tiled != list(range(len(self.kernel.loops))) and not (self.is_for_gpu and not tiled):
            raise ValueError(f"loops {tiled} are tiled; each of {len(self.kernel.loops)} has to be once")
        for kind in self.kinds:
            if isinstance(kind, TileDecision):
                is_reduction = self.kernel.loops[kind.loop].is_reduction
                wanted = self.levels.count("R" if is_reduction else "S")
                if kind.parts != wanted:
                    raise ValueError(
                        f"loop {kind.loop} is split in {kind.parts}; {self.levels} splits it in {wanted}"
                    )

    @property
    def is_for_gpu(self) -> bool:
        """Whether threads or copies into shared memory are decided about."""
        return any(isinstance(kind, WidthDecision | ThreadsDecision) for kind in self.kinds)

    @property
    def levels(self) -> str:
        """The order of the loops that a tiled loop becomes."""
        return GPU_LEVELS if self.is_for_gpu else CPU_LEVELS

    @property
    def signature(self) -> tuple[object, ...]:
        """What two spaces share between which decisions can be carried over."""
        loops = self.kernel.loops
        return (
            *tuple(
                ("tile", loops[kind.loop].is_reduction)
                if isinstance(kind, TileDecision)
                else type(kind).__name__
                for kind in self.kinds
            ),
            len(loops),
        )

    @cached_property
    def tables(self) -> tuple[npt.NDArray[np.int64], ...]:
        """The values of each decision, shape (num_values, parts) for tiles, else (num_values, 1)."""
        return tuple(self._table(kind) for kind in self.kinds)

    @cached_property
    def _row_by_value(self) -> tuple[dict[Decision, int], ...]:
        return tuple(
            {self._value(position, row): row for row in range(len(table))}
            for position, table in enumerate(self.tables)
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each column of a candidate has."""
        return (len(self.sketch_levels), *(len(table) for table in self.tables))

    @property
    def num_candidates(self) -> int:
        """Candidates, those with refused locations included."""
        return math.prod(self.sizes)

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Return random candidates, each value of each decision as likely as the others."""
        columns = [rng.integers(size, size=count) for size in self.sizes]
        return np.stack(columns, axis=1).astype(np.int64)

    def row_of(self, sketch: int, decisions: Sequence[Decision]) -> npt.NDArray[np.int64] | None:
        """Return the candidate with these decisions; None if it is not in the space."""
        if len(decisions) != len(self.kinds) or not 0 <= sketch < len(self.sketch_levels):
            return None
        found = [known.get(value) for known, value in zip(self._row_by_value, decisions, strict=True)]
        whole = [each for each in found if each is not None]
        return np.asarray([sketch, *whole], dtype=np.int64) if len(whole) == len(found) else None

    def decisions_of(self, row: npt.NDArray[np.int64]) -> tuple[int, tuple[Decision, ...]]:
        """Return a candidate's sketch and decisions."""
        numbers = [int(each) for each in row]
        return numbers[0], tuple(self._value(position, number) for position, number in enumerate(numbers[1:]))

    def find_tile(self, position: int, factors: tuple[int, ...]) -> int | None:
        """Return the row of a decision's table with these factors; None if they are not legal."""
        return self._row_by_value[position].get(factors)

    def _value(self, position: int, row: int) -> Decision:
        values = tuple(int(each) for each in self.tables[position][row])
        return values if isinstance(self.kinds[position], TileDecision) else values[0]

    def _table(self, kind: DecisionKind) -> npt.NDArray[np.int64]:
        match kind:
            case TileDecision():
                return tiles_of(self.kernel.loops[kind.loop].extent, kind.parts, kind.max_innermost)
            case OptionDecision():
                return np.arange(len(kind.steps), dtype=np.int64)[:, None]
            case LocationDecision():
                return np.arange(-2, kind.num_loops, dtype=np.int64)[:, None]


@lru_cache(maxsize=256)
def tiles_of(extent: int, parts: int, max_innermost: int) -> npt.NDArray[np.int64]:
    """Return every tile of a loop: factors from the outermost in whose product is its extent.

    Args:
        extent: of the loop, at least 1.
        parts: loops it becomes, at least 1.
        max_innermost: largest innermost factor of several.

    Raises:
        ValueError: there are more than `MAX_TILES`.
    """
    per_prime = []
    total = 1
    for prime, power in _prime_powers(extent):
        shares = [each for each in itertools.product(range(power + 1), repeat=parts) if sum(each) == power]
        per_prime.append(np.power(prime, np.asarray(shares, dtype=np.int64)))
        total *= len(shares)
    if total > MAX_TILES:
        raise ValueError(f"a loop of {extent} has {total} tiles; at most {MAX_TILES} are tabulated")
    found = np.ones((1, parts), dtype=np.int64)
    for factors in per_prime:
        found = (found[:, None, :] * factors[None, :, :]).reshape(-1, parts)
    if parts > 1:
        found = found[found[:, -1] <= max_innermost]
    return found[np.lexsort(found.T[::-1])]


def _prime_powers(number: int) -> list[tuple[int, int]]:
    found = []
    candidate = 2
    while number > 1:
        if candidate * candidate > number:
            candidate = number
        power = 0
        while number % candidate == 0:
            number //= candidate
            power += 1
        if power:
            found.append((candidate, power))
        candidate += 1
    return found
