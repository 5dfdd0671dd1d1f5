"""Features of a GPU kernel's candidates from their decisions alone: blocks, threads, memory, registers.

Beside the factors of all loops they say what `cost_model.draft.gpu_blocks` finds of a block, how near it is
to each limit, how many blocks a multiprocessor holds at once (the least that threads, registers and shared
memory allow), how full the last wave of blocks is, how much a block fetches for each operation and how wide,
and what a thread computes for each element that it loads. Bank conflicts and the second-level cache are left
out. Checked in tests/cost_model/draft/test_gpu_features.py.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import (
    GPU_REDUCTION_PARTS,
    GPU_SPATIAL_PARTS,
    DecisionSpace,
    FetchDecision,
    Rows,
    UnrollDecision,
)
from cost_model.draft.footprints import tile_bytes_of, vector_step, widths_of
from cost_model.draft.gpu_blocks import (
    INNER,
    OUTER,
    VIRTUAL,
    GpuBlocks,
    extents_within,
    factors_of,
    gpu_blocks,
)

Array = npt.NDArray[np.float64]

_WARP = 32
_THREADS_A_MULTIPROCESSOR = 2048
"""Of data-centre GPUs; others hold 1024 or 1536."""

_SECTOR_BYTES = 32
"""Global memory is read in sectors of so many bytes."""

_SPATIAL_SLOTS, _REDUCTION_SLOTS, _READS = 4, 3, 2


def _names() -> tuple[str, ...]:
    return (
        *(f"spatial{slot}_part{part}" for slot in range(_SPATIAL_SLOTS) for part in range(GPU_SPATIAL_PARTS)),
        *(
            f"reduction{slot}_part{part}"
            for slot in range(_REDUCTION_SLOTS)
            for part in range(GPU_REDUCTION_PARTS)
        ),
        "blocks",
        "virtual_threads",
        "threads",
        "warp_fill",
        "thread_share",
        "shared_bytes",
        "shared_share",
        "registers",
        "register_share",
        "resident_blocks",
        "resident_warps",
        "wave_fill",
        "waves",
        "fetches",
        "fetched_bytes",
        "operations_a_fetched_byte",
        *(f"read{index}_tile_bytes" for index in range(_READS)),
        *(f"read{index}_fetch_lanes" for index in range(_READS)),
        *(f"read{index}_fetches_a_thread" for index in range(_READS)),
        *(f"read{index}_sector_use" for index in range(_READS)),
        *(f"read{index}_vector_step" for index in range(_READS)),
        "thread_results",
        "results_a_load",
        "inner_reduction",
        "unroll_steps",
        "unroll_fit",
        "tiles_ahead",
        *(f"spatial{slot}_extent" for slot in range(_SPATIAL_SLOTS)),
        *(f"reduction{slot}_extent" for slot in range(_REDUCTION_SLOTS)),
        "num_blocks",
        "operations",
    )


GPU_FEATURE_NAMES = _names()


def gpu_features(space: DecisionSpace, rows: Rows) -> npt.NDArray[np.float32]:
    """Return the features of candidates, shape (num_candidates, num_features).

    Sizes and counts are logarithms to base 2, shares and fills are not.

    Args:
        space: of a kernel on a GPU.
        rows: candidates.
    """
    factors = factors_of(space, rows)
    blocks = gpu_blocks(space, rows)
    columns = [
        *_factor_columns(space, factors),
        *_block_columns(space, blocks),
        *_fetch_columns(space, rows, factors, blocks),
        *_thread_columns(space, rows, factors),
        *_kernel_columns(space),
    ]
    shape = (len(rows),)
    return np.stack([np.broadcast_to(column, shape) for column in columns], axis=1).astype(np.float32)


def _factor_columns(space: DecisionSpace, factors: list[Array]) -> list[Array]:
    found: list[Array] = []
    for is_reduction, slots, parts in (
        (False, _SPATIAL_SLOTS, GPU_SPATIAL_PARTS),
        (True, _REDUCTION_SLOTS, GPU_REDUCTION_PARTS),
    ):
        indices = _loops(space, is_reduction=is_reduction)
        for slot in range(slots):
            for part in range(parts):
                has = slot < len(indices)
                found.append(np.log2(factors[indices[slot]][:, part]) if has else np.zeros(1))
    return found


def _loops(space: DecisionSpace, *, is_reduction: bool) -> list[int]:
    """Return the loops of a kind from the innermost out."""
    loops = space.kernel.loops
    return [index for index in reversed(range(len(loops))) if loops[index].is_reduction == is_reduction]


def _block_columns(space: DecisionSpace, blocks: GpuBlocks) -> list[Array]:
    limits = space.limits
    assert limits is not None, "only asked for kernels on a GPU"
    warps = np.ceil(blocks.threads / _WARP)
    block_registers = warps * _WARP * blocks.registers
    resident = np.floor(
        np.minimum.reduce(
            [
                _THREADS_A_MULTIPROCESSOR / (warps * _WARP),
                limits.registers / block_registers,
                limits.multiprocessor_shared_bytes / blocks.shared_bytes,
            ]
        )
    )
    resident = np.maximum(resident, 1)
    waves = blocks.blocks / (resident * limits.multiprocessors)
    return [
        np.log2(blocks.blocks),
        np.log2(blocks.virtual_threads),
        np.log2(blocks.threads),
        blocks.threads / (warps * _WARP),
        blocks.threads / limits.max_threads,
        np.log2(blocks.shared_bytes),
        blocks.shared_bytes / limits.shared_bytes,
        np.log2(blocks.registers),
        block_registers / limits.registers,
        np.log2(resident),
        np.log2(resident * warps),
        waves / np.ceil(waves),
        np.log2(waves),
    ]


def _fetch_columns(space: DecisionSpace, rows: Rows, factors: list[Array], blocks: GpuBlocks) -> list[Array]:
    reads = [each for each in space.kernel.accesses if not each.is_written]
    shared = extents_within(space, factors, spatial_from=VIRTUAL, reduction_from=1)
    vector_loop = _loops(space, is_reduction=False)[0]
    lanes = [np.ones(len(rows)) for _ in reads]
    for position, kind in enumerate(space.kinds):
        if isinstance(kind, FetchDecision) and kind.access < len(reads):
            lanes[kind.access] = np.asarray(kind.lanes, dtype=np.float64)[rows[:, position + 1]]
    fetched = blocks.blocks * blocks.fetches * np.sum(blocks.tile_bytes, axis=0)
    tiles, widths, a_thread, sectors, steps = [], [], [], [], []
    for access, tile, width in zip(reads[:_READS], blocks.tile_bytes, lanes, strict=False):
        run = widths_of(access, shared)[-1] * access.element_bytes
        tiles.append(np.log2(tile))
        widths.append(width)
        a_thread.append(np.log2(tile / access.element_bytes / (blocks.threads * width)))
        sectors.append(run / (np.ceil(run / _SECTOR_BYTES) * _SECTOR_BYTES))
        steps.append(np.full(len(rows), float(vector_step(access, vector_loop))))
    missing = [np.zeros(1)] * (_READS - len(tiles))
    return [
        np.log2(blocks.fetches),
        np.log2(fetched),
        np.log2(space.kernel.num_operations / fetched),
        *(column for group in (tiles, widths, a_thread, sectors, steps) for column in (*group, *missing)),
    ]


def _thread_columns(space: DecisionSpace, rows: Rows, factors: list[Array]) -> list[Array]:
    spatial = [factors[index] for index in _loops(space, is_reduction=False)]
    reductions = [factors[index] for index in _loops(space, is_reduction=True)]
    one = np.ones(len(rows))
    results = np.prod([np.prod(each[:, (VIRTUAL, OUTER, INNER)], axis=1) for each in spatial], axis=0)
    within = extents_within(space, factors, spatial_from=INNER, reduction_from=2)
    loads = sum(tile_bytes_of(each, within) for each in space.kernel.accesses if not each.is_written)
    computed = np.prod([each[:, INNER] for each in spatial], axis=0)
    inner = np.prod([np.prod(each[:, 1:], axis=1) for each in reductions], axis=0) * one
    body = np.prod([np.prod(each[:, (OUTER, INNER)], axis=1) for each in spatial], axis=0) * inner
    unroll = one
    for position, kind in enumerate(space.kinds):
        if isinstance(kind, UnrollDecision):
            unroll = np.asarray(kind.steps, dtype=np.float64)[rows[:, position + 1]]
    steps = np.log2(unroll + 1)
    return [
        np.log2(results),
        np.log2(computed / np.maximum(loads, 1.0)),
        np.log2(inner),
        steps,
        steps - np.log2(body),
        np.asarray(space.sketch_levels, dtype=np.float64)[rows[:, 0]],
    ]


def _kernel_columns(space: DecisionSpace) -> list[Array]:
    kernel = space.kernel
    numbers: list[float] = []
    for is_reduction, slots in ((False, _SPATIAL_SLOTS), (True, _REDUCTION_SLOTS)):
        extents = [
            math.log2(kernel.loops[index].extent) for index in _loops(space, is_reduction=is_reduction)
        ]
        numbers += [*extents, *[0.0] * slots][:slots]
    return [
        np.full(1, each) for each in (*numbers, float(kernel.num_blocks), math.log2(kernel.num_operations))
    ]
