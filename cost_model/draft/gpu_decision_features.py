"""Features of a GPU's candidates from their decisions alone: blocks, threads, and what each holds and moves.

A block copies a box of each tensor into shared memory for every step of the outer reduction; a thread then
adds up a box of results. What is spread over threads without tiles is one block for each result. Registers,
banks and caches are left out, and so is the device: a model is trained for one. Checked in
tests/cost_model/draft/test_gpu_decision_features.py, by counting elements.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import (
    GPU_LEVELS,
    Access,
    DecisionSpace,
    OptionDecision,
    Rows,
    ThreadsDecision,
    TileDecision,
    UnrollDecision,
)

Array = npt.NDArray[np.float64]

WARP = 32
"""Threads that step together; TVM's rules take no fewer for a tile."""

MAX_THREADS, MAX_VIRTUAL, _MAX_SHARED_BYTES = 1024, 8, 48 << 10
"""Of a block, by CUDA and TVM's `VerifyGPUCode`."""

_SPATIAL_SLOTS, _REDUCTION_SLOTS, _NUM_READS, _NUM_OPTIONS = 4, 3, 2, 4
_SPATIAL_PARTS, _REDUCTION_PARTS = GPU_LEVELS.count("S"), GPU_LEVELS.count("R")

GPU_FEATURE_NAMES = (
    *(f"spatial{slot}_part{part}" for slot in range(_SPATIAL_SLOTS) for part in range(_SPATIAL_PARTS)),
    *(f"reduction{slot}_part{part}" for slot in range(_REDUCTION_SLOTS) for part in range(_REDUCTION_PARTS)),
    "blocks",
    "virtual_threads",
    "threads",
    "warp_fill",
    "results_a_thread",
    "iterations_a_thread",
    "copies",
    *(f"read{index}_shared_bytes" for index in range(_NUM_READS)),
    *(f"read{index}_thread_bytes" for index in range(_NUM_READS)),
    "shared_bytes",
    "traffic",
    "results_a_load",
    "unroll_steps",
    "unroll_fit",
    *(f"option{index}" for index in range(_NUM_OPTIONS)),
    "pipeline_stage",
    "num_loops",
    "num_blocks",
    "operations",
)


def within_limits(space: DecisionSpace, rows: Rows) -> npt.NDArray[np.bool_]:
    """Say which of a GPU's candidates keep within what a block may have: nine random tiles in ten do not."""
    found = dict(zip(GPU_FEATURE_NAMES, gpu_decision_features(space, rows).T, strict=True))
    is_tiled = any(isinstance(kind, TileDecision) for kind in space.kinds)
    return np.asarray(
        (2 ** found["threads"] <= MAX_THREADS + 0.5)
        & ((2 ** found["threads"] >= WARP - 0.5) | (not is_tiled))
        & (2 ** found["virtual_threads"] <= MAX_VIRTUAL + 0.5)
        & ((2 ** found["shared_bytes"] <= _MAX_SHARED_BYTES + 0.5) | (not is_tiled))
    )


def gpu_decision_features(space: DecisionSpace, rows: Rows) -> npt.NDArray[np.float32]:
    """Return the features of candidates, shape (num_candidates, len(GPU_FEATURE_NAMES)).

    Sizes and counts are logarithms to base 2; loops are counted from the innermost out.

    Args:
        space: of the kernel, on a GPU.
    """
    kernel = space.kernel
    threads, unroll, options = np.ones(len(rows)), np.zeros(len(rows)), []
    factors = [
        np.stack([np.full(len(rows), loop.extent if part == 0 else 1.0) for part in range(parts)], axis=1)
        for loop in kernel.loops
        for parts in [_REDUCTION_PARTS if loop.is_reduction else _SPATIAL_PARTS]
    ]
    for position, kind in enumerate(space.kinds):
        chosen = rows[:, position + 1]
        if isinstance(kind, TileDecision):
            factors[kind.loop] = space.tables[position][chosen].astype(np.float64)
        elif isinstance(kind, OptionDecision):
            steps = np.asarray(kind.steps, dtype=np.float64)[chosen]
            options.append(np.log2(steps + 1))
            if isinstance(kind, ThreadsDecision):
                threads = np.maximum(threads, steps)
            elif isinstance(kind, UnrollDecision):
                unroll = steps
    spatial = [each for each, loop in zip(factors, kernel.loops, strict=True) if not loop.is_reduction]
    reductions = [each for each, loop in zip(factors, kernel.loops, strict=True) if loop.is_reduction]
    blocks, virtual, tiled_threads, *mine = (_product(spatial, part, rows) for part in range(_SPATIAL_PARTS))
    copies, *inner = (_product(reductions, part, rows) for part in range(_REDUCTION_PARTS))
    threads = np.maximum(threads, tiled_threads)
    results = virtual * mine[0] * mine[1]
    body = mine[0] * mine[1] * inner[0] * inner[1]
    reads = [each for each in kernel.accesses if not each.is_written]
    shared = [_box_bytes(each, space, factors, 1, 1) for each in reads]
    own = [_box_bytes(each, space, factors, 3, 1) for each in reads]
    moved = blocks * copies * np.sum(shared, axis=0)
    columns = [
        *_slots(spatial, _SPATIAL_SLOTS, _SPATIAL_PARTS, rows),
        *_slots(reductions, _REDUCTION_SLOTS, _REDUCTION_PARTS, rows),
        np.log2(blocks),
        np.log2(virtual),
        np.log2(threads),
        threads / (np.ceil(threads / WARP) * WARP),
        np.log2(results),
        math.log2(kernel.num_operations) - np.log2(blocks * threads),
        np.log2(copies),
        *_padded([np.log2(each) for each in shared], _NUM_READS, rows),
        *_padded([np.log2(each) for each in own], _NUM_READS, rows),
        np.log2(np.sum(shared, axis=0)),
        np.log2(moved) - math.log2(kernel.num_operations),
        np.log2(results / np.sum(own, axis=0)),
        np.log2(unroll + 1),
        np.log2(unroll + 1) - np.log2(body),
        *_padded(options, _NUM_OPTIONS, rows),
        np.asarray(space.sketch_levels, dtype=np.float64)[rows[:, 0]],
        *(
            np.full(len(rows), number)
            for number in (len(kernel.loops), kernel.num_blocks, math.log2(kernel.num_operations))
        ),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _product(factors: list[Array], part: int, rows: Rows) -> Array:
    """Return the product of a part of all loops."""
    return np.asarray(np.prod([each[:, part] for each in factors], axis=0) * np.ones(len(rows)))


def _slots(factors: list[Array], slots: int, parts: int, rows: Rows) -> list[Array]:
    """Return the logarithms of all factors, the innermost loop's first."""
    found = [np.log2(each[:, part]) for each in reversed(factors[-slots:]) for part in range(parts)]
    return _padded(found, slots * parts, rows)


def _padded(columns: list[Array], count: int, rows: Rows) -> list[Array]:
    return [*columns, *[np.zeros(len(rows))] * count][:count]


def _box_bytes(
    access: Access, space: DecisionSpace, factors: list[Array], first_spatial: int, first_reduction: int
) -> Array:
    """Return the bytes of the box that a tensor's part takes, from these parts of tiles on."""
    extents = [
        np.prod(each[:, first_reduction if loop.is_reduction else first_spatial :], axis=1)
        for each, loop in zip(factors, space.kernel.loops, strict=True)
    ]
    widths = [
        1 + sum(abs(step) * (extent - 1) for step, extent in zip(steps, extents, strict=True))
        for steps in access.steps
    ]
    return np.asarray(np.prod(widths, axis=0) * np.ones(len(extents[0])) * access.element_bytes)
