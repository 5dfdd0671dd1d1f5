"""Blocks of a GPU's threads: what each candidate's hold, and which can be launched at all.

Tiled as SSSRRSRS, the first spatial level becomes blocks, the second virtual threads (tiles that each thread
takes in turn), the third threads; all threads of a block fetch a tile of each tensor that is read to shared
memory at every step of the outermost reduction. So threads, virtual threads and shared memory follow from the
factors, and candidates beyond a device's limits are left out before TVM sees them. Registers are estimated
only: the compiler decides. Checked in tests/cost_model/draft/test_gpu_blocks.py, and against TVM's own
`VerifyGPUCode` in tests/tuner/backends/metaschedule/test_gpu_candidates.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import DecisionSpace, Rows, TileDecision
from cost_model.draft.footprints import tile_bytes_of

Array = npt.NDArray[np.float64]

BLOCK, VIRTUAL, THREAD, OUTER, INNER = range(5)
"""Parts of a spatial loop: blocks, virtual threads, threads, and two levels within a thread."""

_REGISTER_BYTES = 4
_ADDRESSING = 24
"""Registers that indices and loops take beside results and operands."""

_DRAWS = 64
"""Batches that are drawn at most: of the candidates of a product, one in ten is launchable."""

_BATCH = 4096


@dataclass(frozen=True, slots=True)
class GpuBlocks:
    """The blocks of candidates; every array has the shape (num_candidates,).

    Attributes:
        blocks: of the grid.
        virtual_threads: of each thread.
        threads: of each block.
        tile_bytes: of each tensor that is read, the bytes of its tile in shared memory.
        fetches: times that a block fetches tiles: steps of the outermost reduction.
        shared_bytes: shared memory of a block, with what is fetched ahead.
        registers: that a thread needs at least, estimated.
    """

    blocks: Array
    virtual_threads: Array
    threads: Array
    tile_bytes: tuple[Array, ...]
    fetches: Array
    shared_bytes: Array
    registers: Array


def gpu_blocks(space: DecisionSpace, rows: Rows) -> GpuBlocks:
    """Return what the blocks of candidates hold.

    Args:
        space: of a kernel on a GPU.
        rows: candidates.
    """
    factors = factors_of(space, rows)
    spatial = [each for each, loop in zip(factors, space.kernel.loops, strict=True) if not loop.is_reduction]
    reductions = [each for each, loop in zip(factors, space.kernel.loops, strict=True) if loop.is_reduction]
    shared, inner = (
        extents_within(space, factors, spatial_from=first, reduction_from=second)
        for first, second in ((VIRTUAL, 1), (INNER, 2))
    )
    reads = [each for each in space.kernel.accesses if not each.is_written]
    tile_bytes = tuple(tile_bytes_of(each, shared) for each in reads)
    levels = np.asarray(space.sketch_levels, dtype=np.float64)[rows[:, 0]]
    thread_results = np.prod([np.prod(each[:, (VIRTUAL, OUTER, INNER)], axis=1) for each in spatial], axis=0)
    result_registers = max(1, space.kernel.accesses[-1].element_bytes // _REGISTER_BYTES)
    operands = sum(tile_bytes_of(each, inner) for each in reads) / _REGISTER_BYTES
    return GpuBlocks(
        blocks=np.prod([each[:, BLOCK] for each in spatial], axis=0),
        virtual_threads=np.prod([each[:, VIRTUAL] for each in spatial], axis=0),
        threads=np.prod([each[:, THREAD] for each in spatial], axis=0),
        tile_bytes=tile_bytes,
        fetches=np.prod([each[:, 0] for each in reductions], axis=0) * np.ones(len(rows)),
        shared_bytes=np.sum(tile_bytes, axis=0) * np.maximum(1, levels + 1),
        registers=thread_results * result_registers + operands + _ADDRESSING,
    )


def is_launchable(space: DecisionSpace, rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which candidates are within the limits of a GPU's blocks; all of them on a processor.

    Args:
        space: of a kernel.
        rows: candidates.
    """
    limits = space.limits
    if limits is None or not len(rows):
        return np.ones(len(rows), dtype=bool)
    found = gpu_blocks(space, rows)
    return np.asarray(
        (found.threads >= limits.min_threads)
        & (found.threads <= limits.max_threads)
        & (found.virtual_threads <= limits.max_virtual_threads)
        & (found.shared_bytes <= limits.shared_bytes)
        # What is fetched once cannot be fetched ahead.
        & ((found.fetches > 1) | (np.asarray(space.sketch_levels)[rows[:, 0]] == 0))
    )


def sample_launchable(space: DecisionSpace, count: int, rng: np.random.Generator) -> Rows:
    """Return random candidates that can be launched, all as likely; fewer where few of the drawn ones can.

    Args:
        space: of a kernel; on a processor this is `DecisionSpace.sample`.
        count: how many are wanted.
        rng: random numbers.
    """
    if space.limits is None:
        return space.sample(count, rng)
    found: list[Rows] = []
    missing = count
    for _ in range(_DRAWS):
        drawn = space.sample(min(_BATCH, 4 * count), rng)
        kept = drawn[is_launchable(space, drawn)][:missing]
        found.append(kept)
        missing -= len(kept)
        if not missing:
            break
    return np.concatenate(found)


def factors_of(space: DecisionSpace, rows: Rows) -> list[Array]:
    """Return the factors of every loop, each of shape (num_candidates, parts)."""
    factors: list[Array] = [np.ones((0, 0))] * len(space.kernel.loops)
    for position, kind in enumerate(space.kinds):
        if isinstance(kind, TileDecision):
            factors[kind.loop] = space.tables[position][rows[:, position + 1]].astype(np.float64)
    return factors


def extents_within(
    space: DecisionSpace, factors: list[Array], *, spatial_from: int, reduction_from: int
) -> list[Array]:
    """Return how far each loop reaches within a level: the product of its parts from one on."""
    return [
        np.prod(each[:, reduction_from if loop.is_reduction else spatial_from :], axis=1)
        for each, loop in zip(factors, space.kernel.loops, strict=True)
    ]
