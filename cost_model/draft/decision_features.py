"""Features of candidates from their decisions alone: what each tile holds, moves and computes.

At five depths of the nest (inside the first and second spatial level, the outer reduction, the third spatial
level and the inner reduction) a tile reads and writes a box of each tensor. The sizes of these boxes beside
those of the caches, and how often each is loaded, say what is moved; the innermost tile says how vectors are
filled, how many accumulators are live, and whether the loop body can be unrolled. All candidates are computed
at once by numpy: 8 000 take 0.04 s. Associativity, prefetching and alignment are left out.
Checked in tests/cost_model/draft/test_decision_features.py, by counting elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import (
    CPU_LEVELS,
    Access,
    DecisionSpace,
    LocationDecision,
    Loop,
    Rows,
    TileDecision,
    UnrollDecision,
)
from cost_model.draft.gpu_decision_features import gpu_decision_features

Array = npt.NDArray[np.float64]


LANES = 16
"""Elements of float32 in the widest vector register of x86."""

_LINE_BYTES = 64
_NUM_DEPTHS = 5
_NUM_ACCESSES = 3
_SPATIAL_SLOTS, _REDUCTION_SLOTS = 4, 3
_SPATIAL_PARTS = CPU_LEVELS.count("S")
_CACHES = ("l1", "l2", "l3")


@dataclass(frozen=True, slots=True)
class Caches:
    """Sizes of a core's caches in bytes, and cores that a kernel may use."""

    l1_bytes: int = 32 * 2**10
    l2_bytes: int = 2**20
    l3_bytes: int = 32 * 2**20
    num_cores: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.l1_bytes <= self.l2_bytes <= self.l3_bytes or self.num_cores < 1:
            raise ValueError(f"{self} is no hierarchy of caches; sizes grow from the first level on")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes, the smallest first."""
        return self.l1_bytes, self.l2_bytes, self.l3_bytes


def _names() -> tuple[str, ...]:
    depths = range(1, _NUM_DEPTHS + 1)
    return (
        *(f"spatial{slot}_part{part}" for slot in range(_SPATIAL_SLOTS) for part in range(_SPATIAL_PARTS)),
        *(f"reduction{slot}_part{part}" for slot in range(_REDUCTION_SLOTS) for part in range(2)),
        *(f"depth{depth}_access{index}_bytes" for depth in depths for index in range(_NUM_ACCESSES)),
        *(f"depth{depth}_bytes" for depth in depths),
        *(f"depth{depth}_line_use" for depth in depths),
        *(f"depth{depth}_trips" for depth in depths),
        *(f"{cache}_traffic" for cache in _CACHES),
        *(f"{cache}_fitting_depth" for cache in _CACHES),
        *(f"depth{depth}_{cache}_share" for depth in depths for cache in _CACHES),
        "vector_extent",
        "vector_fill",
        "vector_remainder",
        *(f"access{index}_vector_step" for index in range(_NUM_ACCESSES)),
        "accumulators",
        "accumulator_elements",
        "results_a_load",
        "body_tile",
        "body_with_inner_reduction",
        "body_with_third_level",
        "unroll_steps",
        "unroll_fit_tile",
        "unroll_fit_inner_reduction",
        "unroll_fit_third_level",
        "parallel_extent",
        "parallel_balance",
        "epilogue_level",
        "epilogue_bytes",
        "location_level",
        "location_recomputation",
        *(f"spatial{slot}_extent" for slot in range(_SPATIAL_SLOTS)),
        *(f"reduction{slot}_extent" for slot in range(_REDUCTION_SLOTS)),
        "spatial0_misfit",
        "num_spatial",
        "num_reductions",
        "num_accesses",
        "num_blocks",
        "operations",
        "intensity",
    )


FEATURE_NAMES = _names()


def decision_features(space: DecisionSpace, rows: Rows, caches: Caches) -> npt.NDArray[np.float32]:
    """Return the features of candidates, shape (num_candidates, num_features); a GPU's are its own.

    Sizes and counts are logarithms to base 2. Loops are counted from the innermost out, so that slot 0 is the
    one that becomes vectors; slots beyond a kernel's loops are 0.
    """
    if space.is_for_gpu:
        return gpu_decision_features(space, rows)
    tiles = _Tiles(space, rows)
    columns = [
        *tiles.factor_columns(),
        *_memory_columns(tiles, caches),
        *_vector_columns(tiles),
        *_unroll_columns(tiles),
        *_parallel_columns(tiles, caches),
        *_other_block_columns(tiles),
        *_kernel_columns(tiles),
    ]
    shape = (len(rows),)
    return np.stack([np.broadcast_to(column, shape) for column in columns], axis=1).astype(np.float32)


class _Tiles:
    """The factors of all candidates, and the extents that each depth of the nest covers."""

    def __init__(self, space: DecisionSpace, rows: Rows) -> None:
        self.space = space
        self.kernel = space.kernel
        self.rows = rows
        loops = self.kernel.loops
        self.unroll: Array = np.zeros(len(rows))
        self.location: Array | None = None
        self.factors: list[Array] = [np.ones((0, 0))] * len(loops)
        self._read(space)
        self.spatial = [index for index, loop in enumerate(loops) if not loop.is_reduction]
        self.reductions = [index for index, loop in enumerate(loops) if loop.is_reduction]
        self.depths = [self._extents(depth) for depth in range(_NUM_DEPTHS + 1)]
        self.boxes = [
            [tile_bytes_of(each, extents) for each in self.kernel.accesses] for extents in self.depths
        ]
        self.totals = [np.sum(boxes, axis=0) for boxes in self.boxes]
        iterations = math.prod(loop.extent for loop in loops)
        self.trips = [iterations / np.prod(extents, axis=0) for extents in self.depths]

    def _read(self, space: DecisionSpace) -> None:
        for position, kind in enumerate(space.kinds):
            values = space.tables[position][self.rows[:, position + 1]].astype(np.float64)
            match kind:
                case TileDecision():
                    self.factors[kind.loop] = values
                case UnrollDecision():
                    steps = np.asarray(kind.steps, dtype=np.float64)
                    self.unroll = steps[self.rows[:, position + 1]]
                case LocationDecision():
                    self.location = values[:, 0] if self.location is None else self.location

    def _extents(self, depth: int) -> list[Array]:
        """Return what each loop still covers inside a depth: 0 is the whole nest."""
        first_spatial, first_reduction = (0, 1, 2, 2, 3, 3)[depth], (0, 0, 0, 1, 1, 2)[depth]
        return [
            np.prod(factors[:, first_reduction if loop.is_reduction else first_spatial :], axis=1)
            for factors, loop in zip(self.factors, self.kernel.loops, strict=True)
        ]

    def factor_columns(self) -> list[Array]:
        """Return the logarithms of all factors by slot."""
        found: list[Array] = []
        for indices, slots, parts in (
            (self.spatial, _SPATIAL_SLOTS, _SPATIAL_PARTS),
            (self.reductions, _REDUCTION_SLOTS, 2),
        ):
            for slot in range(slots):
                for part in range(parts):
                    has = slot < len(indices)
                    found.append(
                        np.log2(self.factors[indices[-1 - slot]][:, part])
                        if has
                        else np.zeros(len(self.rows))
                    )
        return found

    def inner(self, part: int, *, without_last: bool = False) -> Array:
        """Return the product of a part of all spatial loops."""
        indices = self.spatial[:-1] if without_last else self.spatial
        found = np.prod([self.factors[index][:, part] for index in indices], axis=0)
        return np.asarray(found * np.ones(len(self.rows)))


def _memory_columns(tiles: _Tiles, caches: Caches) -> list[Array]:
    depths = range(1, _NUM_DEPTHS + 1)
    bytes_by_access = [
        np.log2(tiles.boxes[depth][index])
        if index < len(tiles.kernel.accesses)
        else np.zeros(len(tiles.rows))
        for depth in depths
        for index in _access_slots(tiles.kernel.accesses)
    ]
    totals = np.stack(tiles.totals)
    traffic, fitting = [], []
    for size in caches.sizes:
        fits = totals <= size
        fits[-1] = True
        outermost = np.argmax(fits, axis=0)
        candidates = np.arange(len(tiles.rows))
        moved = np.stack(tiles.trips)[outermost, candidates] * totals[outermost, candidates]
        traffic.append(np.log2(moved / tiles.kernel.num_operations))
        fitting.append(outermost.astype(np.float64))
    return [
        *bytes_by_access,
        *(np.log2(tiles.totals[depth]) for depth in depths),
        *(np.log2(tiles.totals[depth] / _line_bytes(tiles, depth)) for depth in depths),
        *(np.log2(tiles.trips[depth]) for depth in depths),
        *traffic,
        *fitting,
        *(np.log2(tiles.totals[depth] / size) for depth in depths for size in caches.sizes),
    ]


def _access_slots(accesses: tuple[Access, ...]) -> list[int]:
    """Return the first tensors that are read, and the last, which is written."""
    reads = list(range(len(accesses) - 1))[: _NUM_ACCESSES - 1]
    return [*reads, *[len(accesses)] * (_NUM_ACCESSES - 1 - len(reads)), len(accesses) - 1]


def _line_bytes(tiles: _Tiles, depth: int) -> Array:
    """Return the bytes of the cache lines that a tile touches, if each run of neighbours starts a line."""
    total = np.zeros(len(tiles.rows))
    for access in tiles.kernel.accesses:
        *outer, last = widths_of(access, tiles.depths[depth])
        lines = np.ceil(last * access.element_bytes / _LINE_BYTES)
        total += np.prod([*outer, lines], axis=0) * _LINE_BYTES
    return total


def _vector_columns(tiles: _Tiles) -> list[Array]:
    innermost = tiles.factors[tiles.spatial[-1]][:, -1]
    vectors = np.ceil(innermost / LANES)
    accumulators = tiles.inner(-1, without_last=True) * vectors
    elements = tiles.inner(-1)
    loads = sum(tile_bytes_of(each, tiles.depths[5]) for each in tiles.kernel.accesses if not each.is_written)
    steps = [
        float(vector_step(tiles.kernel.accesses[index], tiles.spatial[-1]))
        if index < len(tiles.kernel.accesses)
        else 0.0
        for index in _access_slots(tiles.kernel.accesses)
    ]
    return [
        np.log2(innermost),
        innermost / (vectors * LANES),
        innermost % LANES,
        *(np.full(len(tiles.rows), step) for step in steps),
        np.log2(accumulators),
        np.log2(elements),
        np.log2(elements / np.maximum(loads, 1.0)),
    ]


def _unroll_columns(tiles: _Tiles) -> list[Array]:
    rows = tiles.inner(-1, without_last=True) * np.ceil(tiles.factors[tiles.spatial[-1]][:, -1] / LANES)
    inner = np.prod([tiles.factors[index][:, 1] for index in tiles.reductions], axis=0) * np.ones(len(rows))
    bodies = [rows, rows * inner, rows * inner * tiles.inner(2)]
    steps = np.log2(tiles.unroll + 1)
    logs = [np.log2(body) for body in bodies]
    return [*logs, steps, *(steps - each for each in logs)]


def _parallel_columns(tiles: _Tiles, caches: Caches) -> list[Array]:
    extent = tiles.inner(0)
    rounds = np.ceil(extent / caches.num_cores)
    return [np.log2(extent), extent / (rounds * caches.num_cores)]


def _other_block_columns(tiles: _Tiles) -> list[Array]:
    levels = np.asarray(tiles.space.sketch_levels)[tiles.rows[:, 0]]
    results = np.stack([boxes[-1] for boxes in tiles.boxes])
    epilogue = results[np.minimum(levels, _NUM_DEPTHS), np.arange(len(tiles.rows))]
    if tiles.location is None:
        location, recomputed = np.full(len(tiles.rows), -3.0), np.zeros(len(tiles.rows))
    else:
        location = _location_level(tiles)
        depth = np.clip(location, 0, _NUM_DEPTHS).astype(np.int64)
        indices = np.arange(len(tiles.rows))
        first = np.stack([boxes[0] for boxes in tiles.boxes])
        computed = first[depth, indices] * np.stack(tiles.trips)[depth, indices]
        recomputed = np.where(location > 0, np.log2(computed / first[0]), 0.0)
    return [levels.astype(np.float64), np.log2(epilogue), location, recomputed]


def _location_level(tiles: _Tiles) -> Array:
    """Return the depth of the loop that a block is computed at; −2 for inlined, −1 for apart."""
    assert tiles.location is not None, "only asked where a block has a location"
    spatial, reductions = len(tiles.spatial), len(tiles.reductions)
    ends = np.cumsum([spatial, spatial, reductions, spatial, reductions, spatial])
    depth = np.searchsorted(ends, tiles.location, side="right") + 1.0
    return np.where(tiles.location < 0, tiles.location, depth)


def _kernel_columns(tiles: _Tiles) -> list[Array]:
    kernel, count = tiles.kernel, len(tiles.rows)
    traffic = float(tiles.totals[0][0]) if count else 1.0
    numbers = [
        *_extent_slots([kernel.loops[index] for index in tiles.spatial], _SPATIAL_SLOTS),
        *_extent_slots([kernel.loops[index] for index in tiles.reductions], _REDUCTION_SLOTS),
        float(kernel.loops[tiles.spatial[-1]].extent % LANES),
        float(len(tiles.spatial)),
        float(len(tiles.reductions)),
        float(len(kernel.accesses)),
        float(kernel.num_blocks),
        math.log2(kernel.num_operations),
        math.log2(kernel.num_operations / traffic),
    ]
    return [np.full(count, number) for number in numbers]


def _extent_slots(loops: list[Loop], slots: int) -> list[float]:
    found = [math.log2(loop.extent) for loop in reversed(loops)][:slots]
    return [*found, *[0.0] * (slots - len(found))]


def tile_bytes_of(access: Access, extents: list[Array]) -> Array:
    """Return the bytes of the box that a tile touches of one tensor."""
    widths = widths_of(access, extents)
    return np.asarray(np.prod(widths, axis=0) * access.element_bytes)


def widths_of(access: Access, extents: list[Array]) -> list[Array]:
    """Return how many indices of each dimension a tile touches."""
    one = np.ones_like(extents[0])
    return [
        one + sum(abs(step) * (extent - 1) for step, extent in zip(steps, extents, strict=True) if step)
        for steps in access.steps
    ] or [one]


def vector_step(access: Access, loop: int) -> int:
    """Return 0 where vectors are broadcast, 1 where they are contiguous, 2 where they are gathered."""
    steps = [each[loop] for each in access.steps]
    if not any(steps):
        return 0
    return 1 if abs(steps[-1]) == 1 and not any(steps[:-1]) else 2
