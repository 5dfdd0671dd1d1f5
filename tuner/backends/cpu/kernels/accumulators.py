"""Sums of products of a tile of results, which stay in vector registers while their terms are added.

A tile is some rows of a few vectors. A term adds to each row the product of one element, the same for all
vectors, with a vector that is the same for all rows: for a step of r rows and v vectors, r elements and v
vectors are read, and r x v products added. Checked by the tests of the kernels that add up so
(tests/tuner/backends/).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm.tirx.script.builder import ir as script

from tuner.backends.cpu.kernels.memory import Vector

MIN_ROWS, MAX_ROWS = 5, 12
"""Rows of a tile: enough to hide the latency of multiplication, few enough for the registers of AVX-512."""


WIDE, AVX2 = 32, 8
"""Vectors of 16 lanes that the registers of AVX-512 and AVX2 hold."""

_NARROW_ROWS = {8: range(4, 7), 4: range(1, 3)}
"""Rows of a tile of one vector by how many vectors all registers hold: with AVX2, the halves of six vectors
are twelve of sixteen registers, and with fewer than four multiplications wait for each other."""

_LOADS = 1.5
"""What loading a step's vector costs a tile of one vector, in rows: products reach 71 to 87 GFLOP/s with
6 x 16 and 62 to 68 with 4 x 16, rows of 28 pixels 84 and 63 (a core of an EPYC with AVX2)."""


_AVX2_PANELS = (8, 16, 24, 40)
"""Columns of a tile of AVX2."""

_AVX2_ROWS = 12
"""Rows of a tile of AVX2 at most."""

_AVX2_FREE = 15
"""Its registers for partial results and the vectors of a step; one holds an element. A tile of three rows by
32 columns, which needs one more, takes twice as long."""

_AVX2_LEAST = 10
"""Products of a step with which multiplications do not wait for each other."""

_AVX2_LOADS = 0.8
"""What an element or a vector costs that a step reads, in products."""

SINGLE = 1.1
"""What a vector costs that has a panel to itself, beside one of two, which share the rows that are read.
Loads hold up a core that begins two products at once, but not an EPYC with AVX-512, on which 40 columns take
1.33 to 1.37 times as long in two panels of 32 as in three of 16."""


def tile_rows(rows: int, best: int, registers: int = WIDE, *, most: int = MAX_ROWS) -> int:
    """Return how many rows a tile has: what divides all rows best, of equals what is nearest to `best`.

    Args:
        rows: of all tiles together.
        best: rows of a tile of several vectors, where registers are as many as AVX-512 has.
        registers: vectors of 16 lanes that all registers hold; with fewer a tile has one vector.
        most: rows that registers as many as AVX-512's have room for.
    """
    if registers < WIDE:
        few = [count for count in _NARROW_ROWS[registers] if count <= rows] or [rows]
        return min(few, key=lambda count: (-(-rows // count) * (count + _LOADS), -count))
    choices = [count for count in range(MIN_ROWS, most + 1) if count <= rows] or [rows]
    return min(choices, key=lambda count: (-(-rows // count) * count, abs(count - best)))


class Avx2Tile(NamedTuple):
    """A tile for the 16 registers of AVX2."""

    rows: int
    vectors: int
    lanes: int


def avx2_tile(rows: int, columns: int, panel: int | None = None) -> Avx2Tile:
    """Return the tile of AVX2 with which least is done, products and what they read.

    Four rows of 24 columns take 0.93 of the time of six of 16 and 0.82 of four of 16 where they leave as
    few results to compute twice (a core of an EPYC, code for AVX2); of three rows and two, 24 and 40 columns
    0.6 and 0.7 of those of 16.

    Args:
        rows: of all tiles together.
        columns: of all tiles together, at least 8.
        panel: columns of a tile, where they are given.
    """
    panels = (panel,) if panel is not None else _AVX2_PANELS
    choices = [
        (height, wide)
        for wide in panels
        for height in range(1, _AVX2_ROWS + 1)
        if height <= rows and wide <= columns and height * wide + wide <= 8 * _AVX2_FREE
    ]

    def work(choice: tuple[int, int]) -> float:
        height, wide = choice
        products = max(height * wide / 8, _AVX2_LEAST)
        return -(-rows // height) * -(-columns // wide) * (products + _AVX2_LOADS * (height + wide / 8))

    height, wide = min(choices, key=work)
    return Avx2Tile(height, 1, 16) if wide == 16 else Avx2Tile(height, wide // 8, 8)


def tile_vectors(wanted: int, lanes: int, registers: int) -> int:
    """Return how many vectors a row of a tile has: fewer than wanted where registers are."""
    return wanted if registers >= WIDE else max(1, min(wanted, 16 // lanes))


class Sums:
    """The sums of one tile, which begin as zeros where the kernel that is being written creates them.

    Attributes:
        vectors: of a row.
        lanes: of a vector.
        memory: the sums as a row of memory, row by row.
    """

    def __init__(self, rows: int, vectors: int, lanes: int) -> None:
        self.rows, self.vectors, self.lanes = rows, vectors, lanes
        self.memory = script.alloc_buffer((rows * vectors * lanes,), "float32", scope="local")
        for row, vector in self.places:
            zeros = script.Broadcast(script.float32(0), lanes)
            script.buffer_store(self.memory, zeros, [self.at(row, vector)])

    @property
    def places(self) -> Sequence[tuple[int, int]]:
        """Row and vector of each vector of the tile, in the order of memory."""
        return tuple(itertools.product(range(self.rows), range(self.vectors)))

    def at(self, row: Any, vector: int) -> Any:
        """Return where a vector lies in `memory`."""
        return script.Ramp((row * self.vectors + vector) * self.lanes, 1, self.lanes)

    def load(self, row: int, vector: int) -> Vector:
        """Return a vector of sums."""
        return self.memory[self.at(row, vector)]

    def bound(self, memory: Any, first: Any) -> list[Vector]:
        """Return as many neighbouring vectors of a row of memory as a row of sums has, bound to variables."""
        return [
            script.Bind(memory[script.Ramp(first + vector * self.lanes, 1, self.lanes)])
            for vector in range(self.vectors)
        ]

    def add(self, element: Callable[[int], Any], right: Sequence[Vector]) -> None:
        """Add one term.

        Args:
            element: returns the element of a row.
            right: the vectors that it is multiplied by, as `bound` returns them.
        """
        for row in range(self.rows):
            left = script.Bind(script.Broadcast(element(row), self.lanes))
            for vector in range(self.vectors):
                script.buffer_store(
                    self.memory, self.load(row, vector) + left * right[vector], [self.at(row, vector)]
                )
