"""What a block holds follows from its factors, and nothing that a GPU cannot launch is drawn or bred."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from draft_samples import dense_space, gpu_dense_space, made_up_gpu_trials
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_model.draft.decision_space import BlockLimits, DecisionSpace, FetchDecision
from cost_model.draft.evolution import evolve
from cost_model.draft.gpu_blocks import gpu_blocks, is_launchable, sample_launchable
from cost_model.draft.neighbours import neighbour_rows

extents = st.sampled_from([1, 7, 30, 49, 64, 96, 256])


def counted(space: DecisionSpace, row: np.ndarray) -> tuple[int, int, int, int]:
    """Return threads, virtual threads, steps and bytes of a product's block, one factor after the other."""
    level, decisions = space.decisions_of(row)
    left, right, inner = decisions[:3]
    assert isinstance(left, tuple)
    assert isinstance(right, tuple)
    assert isinstance(inner, tuple)
    tile = (math.prod(left[1:]), math.prod(right[1:]), math.prod(inner[1:]))
    elements = tile[0] * tile[2] + tile[2] * tile[1]
    ahead = space.sketch_levels[level]
    return left[2] * right[2], left[1] * right[1], inner[0], 4 * elements * (ahead + 1)


@settings(max_examples=40)
@given(extents, extents, extents, st.integers(0, 2**32 - 1))
def test_blocks_are_what_counting_finds(rows: int, columns: int, inner: int, seed: int) -> None:
    space = gpu_dense_space(rows, columns, inner)
    limits = space.limits
    assert limits is not None
    drawn = space.sample(40, np.random.default_rng(seed))
    blocks = gpu_blocks(space, drawn)
    launchable = is_launchable(space, drawn)
    for index, row in enumerate(drawn):
        threads, virtual, steps, shared = counted(space, row)
        assert (blocks.threads[index], blocks.virtual_threads[index]) == (threads, virtual)
        assert blocks.shared_bytes[index] == shared
        assert blocks.blocks[index] * threads * virtual <= rows * columns
        wanted = (
            limits.min_threads <= threads <= limits.max_threads
            and virtual <= limits.max_virtual_threads
            and shared <= limits.shared_bytes
            and (steps > 1 or row[0] == 0)
        )
        assert launchable[index] == wanted


@settings(max_examples=12)
@given(extents, extents, extents, st.integers(0, 2**32 - 1))
def test_what_is_drawn_bred_or_carried_over_can_be_launched(
    rows: int, columns: int, inner: int, seed: int
) -> None:
    limits = BlockLimits(max_threads=256, shared_bytes=8 * 1024)
    space = gpu_dense_space(rows, columns, inner, limits)
    rng = np.random.default_rng(seed)
    assert is_launchable(space, sample_launchable(space, 50, rng)).all()
    # Breeding starts from candidates of a larger device, most of which this one cannot launch.
    larger = gpu_dense_space(rows, columns, inner)
    start = sample_launchable(larger, 20, rng)
    found = evolve(space, lambda each: rng.random(len(each)), rng, candidates=200, start=start)
    assert is_launchable(space, found.rows).all()
    known = made_up_gpu_trials("other", gpu_dense_space(64, 256, 64), 40, seed % 7)
    assert is_launchable(space, neighbour_rows(space, [known], 20)).all()


def test_a_larger_limit_lets_more_through() -> None:
    space = gpu_dense_space(256, 256, 256)
    drawn = space.sample(4000, np.random.default_rng(0))
    few = is_launchable(space, drawn).sum()
    assert 0 < few < 1000
    assert space.limits is not None
    for larger in (
        replace(space.limits, min_threads=1),
        replace(space.limits, max_virtual_threads=64),
        replace(space.limits, shared_bytes=1024 * 1024),
    ):
        assert is_launchable(replace(space, limits=larger), drawn).sum() > few


def test_a_processor_has_no_blocks_to_launch() -> None:
    space = dense_space(12, 40, 18)
    drawn = space.sample(10, np.random.default_rng(0))
    assert is_launchable(space, drawn).all()
    assert (sample_launchable(space, 10, np.random.default_rng(0)) == drawn).all()


def test_limits_and_fetches_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="64 to 32 threads"):
        BlockLimits(min_threads=64, max_threads=32)
    with pytest.raises(ValueError, match="every limit is at least 1"):
        BlockLimits(shared_bytes=0)
    space = gpu_dense_space(4, 4, 4)
    with pytest.raises(ValueError, match="tensor 3 is fetched"):
        replace(space, kinds=(*space.kinds, FetchDecision((1, 2), 3)))
    with pytest.raises(ValueError, match="SSRSRS splits it in 4"):
        replace(space, limits=None)
