"""Decisions about a kernel that reads packed weights, as plain data and tables of numbers.

Beside MetaSchedule's sketches of a product or convolution stand kernels of our own, whose weights are packed
in panels (`tuner.backends.cpu`). A candidate is a row of whole numbers as in `DecisionSpace`: the sketch,
which is always 0, and for each decision the number of one of its values. Tiles need not divide extents, since
a last tile may repeat results of the one before; so candidates are bounded by what fits into the target's
registers, and those that leave half of the work to repetitions are left out. A space has some ten thousand
candidates, which are all tabulated. Checked in tests/cost_model/draft/test_packed_space.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import Access, DecisionSpace, Loop, Rows, TiledKernel
from cost_model.draft.packed_families import RULES, WIDE, Array, PackedFamily, Values

_FREE_REGISTERS = 13
"""Of the 16 of AVX2 those that accumulators may fill."""

_FREE_WIDE_REGISTERS = 52
"""The same of AVX-512's 32, in accumulators of 8 elements."""

_PASS_WEIGHT = 0.15
"""Octaves of speed that twice as many passes over the data of a depthwise convolution cost."""

_JITTER = 0.2
"""Octaves of speed that the rule of thumb does not tell apart."""


@dataclass(frozen=True, slots=True)
class OptionDecision:
    """One of some numbers, in ascending order.

    Attributes:
        name: what is decided.
        values: to choose from.
    """

    name: str
    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.values or list(self.values) != sorted(set(self.values)) or self.values[0] < 0:
            raise ValueError(
                f"decision {self.name!r} is among {self.values}; give ascending numbers from 0 on"
            )


@dataclass(frozen=True)
class PackedSpace:
    """What may be decided about one kernel.

    Attributes:
        family: which kernel.
        kernel: its loops and tensors, for footprints.
        kinds: of each decision.
        extents: what legality depends on beside the loops, by name.
    """

    family: PackedFamily
    kernel: TiledKernel
    kinds: tuple[OptionDecision, ...]
    extents: tuple[tuple[str, int], ...]

    limits = None
    sketch_levels = (0,)

    @property
    def signature(self) -> tuple[object, ...]:
        """What two spaces share between which decisions can be carried over."""
        return ("packed", str(self.family), *(kind.name for kind in self.kinds))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each column of a candidate has."""
        return (1, *(len(kind.values) for kind in self.kinds))

    @cached_property
    def tables(self) -> tuple[npt.NDArray[np.int64], ...]:
        """The values of each decision, shape (num_values, 1)."""
        return tuple(np.asarray(kind.values, dtype=np.int64)[:, None] for kind in self.kinds)

    @cached_property
    def rows(self) -> Rows:
        """Every legal candidate."""
        grids = np.meshgrid(*(np.arange(size) for size in self.sizes), indexing="ij")
        drawn = np.stack([grid.ravel() for grid in grids], axis=1).astype(np.int64)
        return drawn[self.is_legal(drawn)]

    @property
    def num_candidates(self) -> int:
        """Legal candidates."""
        return len(self.rows)

    def is_legal(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Say of each candidate whether there is such a kernel, and no better one of the same kind."""
        return RULES[self.family].is_legal(self.values_of(rows), dict(self.extents))

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Return random candidates, each as likely as the others."""
        return self.rows[rng.integers(len(self.rows), size=count)]

    def values_of(self, rows: Rows) -> Values:
        """Return the value of each decision by name."""
        return {
            kind.name: self.tables[position][rows[:, position + 1], 0]
            for position, kind in enumerate(self.kinds)
        }

    def row_of(self, decisions: Mapping[str, int]) -> npt.NDArray[np.int64] | None:
        """Return the candidate with these values; None if it is not in the space."""
        if set(decisions) != {kind.name for kind in self.kinds}:
            return None
        row = [0]
        for kind in self.kinds:
            if decisions[kind.name] not in kind.values:
                return None
            row.append(kind.values.index(decisions[kind.name]))
        found = np.asarray(row, dtype=np.int64)
        return found if bool(self.is_legal(found[None])[0]) else None

    def decisions_of(self, row: npt.NDArray[np.int64]) -> dict[str, int]:
        """Return the value of each decision of one candidate."""
        return {name: int(values[0]) for name, values in self.values_of(row[None]).items()}

    def nearest(self, decisions: Mapping[str, float]) -> npt.NDArray[np.int64]:
        """Return the legal candidate with the nearest values, in octaves; other names do not count."""
        values = self.values_of(self.rows)
        away = np.zeros(len(self.rows))
        for name, wanted in decisions.items():
            if name in values:
                away += np.abs(np.log2(values[name] + 1.0) - np.log2(wanted + 1.0))
        found: npt.NDArray[np.int64] = self.rows[int(np.argmin(away))]
        return found

    def guessed(self, count: int, rng: np.random.Generator) -> Rows:
        """Return candidates that a rule of thumb favours, for when nothing is known of such kernels.

        Accumulators and operands fit into registers, vectors fill them, operands are loaded for many products
        each, few results are computed twice, and data are passed over rarely. Of as good ones some are drawn
        at random. On 90 kernels the first of 31 measured candidates was so within 1.04 to 1.08 of their best
        by family, a random one within 1.07 to 1.57.
        """
        extras = self.extras(self.rows)
        has_wide = dict(self.extents)["registers"] >= WIDE
        fills = extras["lanes"] >= np.log2(16)
        short = np.maximum(np.log2(16 if has_wide else 8) - extras["lanes"], 0.0)
        passes = extras.get("passes", np.zeros(1))
        free = np.where(has_wide & fills, _FREE_WIDE_REGISTERS, _FREE_REGISTERS)
        loads = np.log2(np.maximum(extras["loads_a_product"], 0.4))
        needed = np.maximum(extras["registers"], extras.get("second_registers", np.zeros(1)))
        spilled = np.maximum(needed - free, 0.0) / free
        again = np.log2(np.maximum(extras.get("multiplications", np.ones(1)), 1e-3)) + extras["repeated"]
        score = -loads - 2 * spilled - again - short - _PASS_WEIGHT * passes
        score = score + rng.uniform(0, _JITTER, len(self.rows))
        return self.rows[np.argsort(-score, kind="stable")[:count]]

    def factors(self, rows: Rows) -> list[Array]:
        """Return how each loop is cut, shape (num_candidates, 4), reductions (num_candidates, 2).

        In the order of SSRSRS, as MetaSchedule's tiles, though a product of factors may exceed an extent.
        """
        values = {name: each.astype(np.float64) for name, each in self.values_of(rows).items()}
        cut = RULES[self.family].factors(values, dict(self.extents))
        return [np.stack([np.broadcast_to(each, (len(rows),)) for each in loop], axis=1) for loop in cut]

    def extras(self, rows: Rows) -> Mapping[str, Array]:
        """Return further features by name: what MetaSchedule's candidates have none of."""
        values = {name: each.astype(np.float64) for name, each in self.values_of(rows).items()}
        found = RULES[self.family].extras(values, dict(self.extents))
        return {name: np.asarray(each, dtype=np.float64) for name, each in found.items()}


EXTRAS = (
    "is_packed",
    *(f"is_{family}" for family in PackedFamily),
    "lanes",
    "registers",
    "second_registers",
    "loads_a_product",
    "repeated",
    "depth_block",
    "packs_data",
    "shares_blocks",
    "stores_sums",
    "written_out",
    "winograd_tile",
    "passes",
    "multiplications",
)
"""Features of packed kernels alone; all are 0 for others."""


def product_space(rows: int, depth: int, columns: int, *, registers: int = WIDE) -> PackedSpace:
    """Return the space of a product of rows x depth by depth x columns with a packed matrix.

    Decisions: rows of a tile, vectors and lanes of its columns, rows that pass a panel before the next, steps
    of the sum before the next panel (0 for all), steps that are written out, whether rows are copied, whether
    threads share blocks alone, and whether sums are stored before the epilogue.

    Args:
        rows: of the data.
        depth: of the sum.
        columns: of the matrix.
        registers: vectors of 16 that all registers hold; with as many as AVX-512 has, every candidate of
            fewer is one too.
    """
    num_blocks = sorted({min(count, rows) for count in (4, 8, 16, 32, 64, 128, 256, 1024, 65536)})
    kernel = TiledKernel(
        (Loop(rows, False), Loop(columns, False), Loop(depth, True)),
        (
            Access(4, ((1, 0, 0), (0, 0, 1)), False),
            Access(4, ((0, 0, 1), (0, 1, 0)), False),
            Access(4, ((1, 0, 0), (0, 1, 0)), True),
        ),
        1,
    )
    return _space(
        PackedFamily.PRODUCT,
        kernel,
        {
            "rows": [
                each
                for each in (range(1, 15) if registers >= WIDE else (*range(1, 9), 10, 12, 14))
                if each <= rows
            ],
            "vectors": (1, 2, 3, 4, 6),
            "lanes": (8, 16) if columns >= 16 else (4, 8),
            "block_rows": num_blocks,
            "depth_block": [
                0,
                *(each for each in (96, 128, 192, 256, 384, 512) if each < depth and not depth % each),
            ],
            "unroll": [each for each in (1, 2, 4, 8) if not depth % each],
            "packs_data": (0, 1),
            "shares_blocks": (0, 1),
            "stores_sums": (0, 1),
        },
        {"rows": rows, "depth": depth, "columns": columns, "registers": registers},
    )


def direct_space(
    *,
    lines: int,
    length: int,
    channels: int,
    filters: int,
    window: tuple[int, int],
    stride: int,
    registers: int = WIDE,
) -> PackedSpace:
    """Return the space of a convolution whose channels are last, without Winograd's method.

    Decisions: pixels of a tile, vectors and lanes of filters, tiles that pass a panel before the next, and
    channels that are written out.

    Args:
        lines: rows of results that are cut into tiles.
        length: pixels of each.
        channels: of the data.
        filters: channels of the result.
        window: rows and columns.
        stride: along a row.
        registers: as for a product.
    """
    return _space(
        PackedFamily.DIRECT,
        _convolution(lines, length, channels, filters, window, stride),
        {
            "rows": [each for each in range(1, 15) if each <= length],
            "vectors": range(1, 7),
            "lanes": (4, 8, 16),
            "block_tiles": [1, 2, 4, 8, 16, 64, 65536],
            "unroll": [each for each in (1, 2, 4, 8) if not channels % each],
        },
        {
            "lines": lines,
            "length": length,
            "channels": channels,
            "filters": filters,
            "registers": registers,
        },
    )


def depthwise_space(
    *,
    lines: int,
    length: int,
    channels: int,
    window: tuple[int, int],
    stride: int,
    registers: int = WIDE,
) -> PackedSpace:
    """Return the space of a depthwise convolution whose channels are last.

    Decisions: results of a tile, channels of a vector, and vectors that a thread takes together.
    """
    kernel = TiledKernel(
        (
            Loop(lines, False),
            Loop(length, False),
            Loop(channels, False),
            Loop(window[0], True),
            Loop(window[1], True),
        ),
        (
            Access(4, ((stride, 0, 0, 1, 0), (0, stride, 0, 0, 1), (0, 0, 1, 0, 0)), False),
            Access(4, ((0, 0, 0, 1, 0), (0, 0, 0, 0, 1), (0, 0, 1, 0, 0)), False),
            Access(4, ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0)), True),
        ),
        1,
    )
    return _space(
        PackedFamily.DEPTHWISE,
        kernel,
        {
            "pixels": [each for each in range(1, 17) if each <= length],
            "lanes": [each for each in (4, 8, 16, 32) if not channels % each],
            "group": sorted(
                {
                    each
                    for lanes in (4, 8, 16, 32)
                    if not channels % lanes
                    for each in _divisors(channels // lanes)
                }
            ),
        },
        {
            "lines": lines,
            "length": length,
            "channels": channels,
            "window": window[1],
            "stride": stride,
            "registers": registers,
        },
    )


def winograd_space(
    *, images: int, height: int, width: int, channels: int, filters: int, registers: int = WIDE
) -> PackedSpace:
    """Return the space of Winograd's method for 3 x 3 convolutions with stride 1.

    Decisions: the side of a tile of results, tiles whose sums are in registers at once, vectors and lanes of
    filters, tiles that are worked on together, and channels that are written out.

    Args:
        images: of a batch.
        height: rows of results.
        width: columns of results.
        channels: of the data.
        filters: channels of the result.
        registers: as for a product.
    """
    tiles = images * -(-height // 2) * -(-width // 2)
    kernel = TiledKernel(
        (
            Loop(36, False),
            Loop(max(1, images * -(-height // 4) * -(-width // 4)), False),
            Loop(filters, False),
            Loop(channels, True),
        ),
        (
            Access(4, ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1)), False),
            Access(4, ((1, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0)), False),
            Access(4, ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)), True),
        ),
        1,
    )
    return _space(
        PackedFamily.WINOGRAD,
        kernel,
        {
            "tile": (2, 4),
            "rows": [each for each in range(1, 31 if registers >= WIDE else 15) if each <= tiles],
            "vectors": range(1, 5),
            "lanes": [each for each in (4, 8, 16) if not filters % each],
            "groups": (1, 2, 4, 8, 16),
            "unroll": [each for each in (1, 2, 4) if not channels % each],
        },
        {
            "images": images,
            "height": height,
            "width": width,
            "channels": channels,
            "filters": filters,
            "registers": registers,
        },
    )


def rowwise_space(
    *,
    lines: int,
    length: int,
    channels: int,
    window: tuple[int, int],
    wide: int,
    result: int,
    narrow: int,
    registers: int = WIDE,
) -> PackedSpace:
    """Return the space of a direct, a depthwise and a pixelwise convolution in one kernel, row by row.

    Decisions: pixels, vectors and lanes of the first and of the third (0 where there is none), results and
    lanes of the second.

    Args:
        lines: rows of the first one's results.
        length: pixels of each.
        channels: of the data.
        window: of the first one.
        wide: channels of the first one's result.
        result: pixels of a row of the second one's results.
        narrow: channels of the third one's result; 0 where there is none.
        registers: as for a product.
    """
    has_third = narrow > 0
    return _space(
        PackedFamily.ROWWISE,
        _convolution(lines, length, channels, wide, window, 1),
        {
            "rows": [each for each in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12) if each <= length],
            "vectors": (1, 2, 3, 4),
            "lanes": (8, 16) if wide >= 16 else (4, 8),
            "pixels": [each for each in (1, 2, 4, 5, 6, 7, 8, 10, 12, 14) if each <= result],
            "between_lanes": [each for each in (4, 8, 16) if not wide % each],
            "last_rows": [each for each in (2, 3, 4, 5, 6, 7, 8) if each <= result] or [1]
            if has_third
            else [0],
            "last_vectors": (1, 2, 3) if has_third else (0,),
            "last_lanes": ((8, 16) if narrow >= 16 else (4, 8)) if has_third else (0,),
        },
        {
            "lines": lines,
            "length": length,
            "channels": channels,
            "filters": wide,
            "result": result,
            "narrow": narrow,
            "registers": registers,
        },
    )


def attention_space(*, heads: int, depth: int, queries: int, keys: int, registers: int = WIDE) -> PackedSpace:
    """Return the space of attention of several heads.

    Decisions: queries of a tile, vectors of keys of its scores, and vectors of features of its results.

    Args:
        heads: of all sequences together.
        depth: features of a head.
        queries: positions that ask, of one sequence.
        keys: positions that answer.
        registers: as for a product.
    """
    kernel = TiledKernel(
        (Loop(heads, False), Loop(queries, False), Loop(keys, False), Loop(depth, True)),
        (
            Access(4, ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1)), False),
            Access(4, ((1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)), False),
            Access(4, ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)), True),
        ),
        1,
    )
    return _space(
        PackedFamily.ATTENTION,
        kernel,
        {
            "rows": [each for each in range(1, 13) if each <= queries],
            "key_vectors": range(1, 5),
            "value_vectors": range(1, 5),
        },
        {"heads": heads, "depth": depth, "queries": queries, "keys": keys, "registers": registers},
    )


Space: TypeAlias = DecisionSpace | PackedSpace
"""What the draft model knows candidates of."""


def _space(
    family: PackedFamily,
    kernel: TiledKernel,
    values: Mapping[str, Sequence[int]],
    extents: Mapping[str, int],
) -> PackedSpace:
    kinds = tuple(OptionDecision(name, tuple(each)) for name, each in values.items())
    return PackedSpace(family, kernel, kinds, tuple(extents.items()))


def _convolution(
    lines: int, length: int, channels: int, filters: int, window: tuple[int, int], stride: int
) -> TiledKernel:
    loops = (lines, length, filters), (*window, channels)
    return TiledKernel(
        (*(Loop(each, False) for each in loops[0]), *(Loop(each, True) for each in loops[1])),
        (
            Access(4, ((1, 0, 0, 1, 0, 0), (0, stride, 0, 0, 1, 0), (0, 0, 0, 0, 0, 1)), False),
            Access(
                4, ((0, 0, 0, 1, 0, 0), (0, 0, 0, 0, 1, 0), (0, 0, 0, 0, 0, 1), (0, 0, 1, 0, 0, 0)), False
            ),
            Access(4, ((1, 0, 0, 0, 0, 0), (0, 1, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0)), True),
        ),
        1,
    )


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if not number % each]
