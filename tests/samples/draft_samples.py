"""Kernels, decision spaces and made-up trials that tests of the draft model share."""

from __future__ import annotations

import numpy as np

from cost_model.draft.decision_features import FEATURE_NAMES, Caches, decision_features
from cost_model.draft.decision_space import (
    Access,
    DecisionSpace,
    LocationDecision,
    Loop,
    Rows,
    TileDecision,
    TiledKernel,
    UnrollDecision,
    WidthDecision,
)
from cost_model.draft.draft_model import DraftTrials

CACHES = Caches()
UNROLL = UnrollDecision((0, 16, 64, 512))


def product_kernel(rows: int, columns: int, inner: int) -> TiledKernel:
    """Return a product of matrices with what follows it: loops i, j and k."""
    return TiledKernel(
        (Loop(rows, is_reduction=False), Loop(columns, is_reduction=False), Loop(inner, is_reduction=True)),
        (
            Access(4, ((1, 0, 0), (0, 0, 1)), is_written=False),
            Access(4, ((0, 0, 1), (0, 1, 0)), is_written=False),
            Access(4, ((1, 0, 0), (0, 1, 0)), is_written=True),
        ),
        num_blocks=2,
    )


def dense_space(rows: int, columns: int, inner: int) -> DecisionSpace:
    """Return its decisions: three tiles and the unrolling."""
    kinds = (TileDecision(0, 4, 64), TileDecision(1, 4, 64), TileDecision(2, 2, 64), UNROLL)
    return DecisionSpace(product_kernel(rows, columns, inner), kinds, (0, 1, 2))


def gpu_space(rows: int, columns: int, inner: int) -> DecisionSpace:
    """Return the decisions of the same product on a GPU, and three pipelines of its copies."""
    tiles = (TileDecision(0, 5, 64), TileDecision(1, 5, 64), TileDecision(2, 3, 64))
    width, unroll = WidthDecision((1, 2, 3, 4)), UnrollDecision((0, 16, 32, 64, 128, 256, 512, 1024))
    return DecisionSpace(product_kernel(rows, columns, inner), (*tiles, width, width, unroll), (0, 2, 3))


def convolution_space(outputs: int, extent: int, channels: int, size: int, stride: int) -> DecisionSpace:
    """Return the decisions of a convolution whose padded input is computed at some loop."""
    step = stride
    loops = (
        Loop(outputs, is_reduction=False),
        Loop(extent, is_reduction=False),
        Loop(extent, is_reduction=False),
        Loop(channels, is_reduction=True),
        Loop(size, is_reduction=True),
        Loop(size, is_reduction=True),
    )
    accesses = (
        Access(4, ((0, 0, 0, 1, 0, 0), (0, step, 0, 0, 1, 0), (0, 0, step, 0, 0, 1)), is_written=False),
        Access(
            4,
            ((1, 0, 0, 0, 0, 0), (0, 0, 0, 1, 0, 0), (0, 0, 0, 0, 1, 0), (0, 0, 0, 0, 0, 1)),
            is_written=False,
        ),
        Access(4, ((1, 0, 0, 0, 0, 0), (0, 1, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0)), is_written=True),
    )
    tiles = tuple(TileDecision(index, 2 if each.is_reduction else 4, 64) for index, each in enumerate(loops))
    kinds = (*tiles, UNROLL, LocationDecision(18))
    return DecisionSpace(TiledKernel(loops, accesses, num_blocks=3), kinds, (0, 1, 2))


def made_up_latencies(space: DecisionSpace, rows: Rows) -> tuple[float, ...]:
    """Return latencies that follow from what a tile does: full vectors, few accumulators, little traffic."""
    found = decision_features(space, rows, CACHES).astype(np.float64)
    column = {name: found[:, index] for index, name in enumerate(FEATURE_NAMES)}
    slowdown = (
        2.0 * (1 - column["vector_fill"])
        + 0.4 * np.maximum(column["accumulators"] - 4, 0)
        + 0.3 * np.maximum(column["l1_traffic"] + 3, 0)
    )
    return tuple(float(each) for each in 2 ** (column["operations"] - 10) * np.exp(slowdown))


def made_up_trials(task: str, space: DecisionSpace, count: int, seed: int) -> DraftTrials:
    """Return random candidates with their made-up latencies."""
    rows = np.unique(space.sample(count, np.random.default_rng(seed)), axis=0)
    return DraftTrials(task, space, rows, made_up_latencies(space, rows))
