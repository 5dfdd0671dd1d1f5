"""Time of a chunk of a prompt: a law of its tokens and of those before it.

A chunk of n tokens after p others takes `a + b·n + c·n·(p + n/2)` microseconds on a stage: what every launch
takes, what grows with the tokens, and attention, in which each token attends to all before it. Over the
chunks of a prompt the last two add up to the same, however it is cut. Left out is what attention kernels
gain or lose by the shape of a chunk; `fit_chunk_law` says how far measured chunks are from their law. Checked
in tests/tessel/search/batches/test_chunks.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.optimize import nnls

from tessel.errors import ScheduleError


class ChunkLaw(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk takes on a stage.

    Attributes:
        launch_us: of every chunk, however short.
        token_us: of each of its tokens.
        pair_us: of each pair of a token and one before it.

    Raises:
        ScheduleError: a figure is negative or not finite, or tokens take no time.
    """

    launch_us: float
    token_us: float
    pair_us: float

    def __post_init__(self) -> None:
        figures = (self.launch_us, self.token_us, self.pair_us)
        if not all(math.isfinite(each) and each >= 0 for each in figures) or not any(figures[1:]):
            raise ScheduleError(
                f"chunk law {','.join(f'{each:g}' for each in figures)} is none; give three numbers of at "
                "least 0, of which the second or the third is above 0"
            )

    def us(self, prefix: int, tokens: int) -> float:
        """Return what a chunk takes that follows `prefix` tokens."""
        return self.launch_us + self.token_us * tokens + self.pair_us * tokens * (prefix + tokens / 2)

    def tokens_us(self, prompt: int) -> float:
        """Return what all tokens of a prompt take, without launches, in whatever chunks."""
        return self.us(0, prompt) - self.launch_us


class MeasuredChunk(NamedTuple):
    """A chunk that was timed: its tokens, those before it, and microseconds on a stage."""

    tokens: int
    prefix: int
    time_us: float


class FittedLaw(NamedTuple):
    """A law, and how far it is from what was measured: mean and largest error as a share of each time."""

    law: ChunkLaw
    mean_error: float
    worst_error: float


def fit_chunk_law(chunks: Sequence[MeasuredChunk]) -> FittedLaw:
    """Return the law with the least sum of squared relative errors, no figure of it negative.

    Raises:
        ScheduleError: the chunks do not determine three figures, or a chunk has no tokens or no time.
    """
    for each in chunks:
        if each.tokens < 1 or each.prefix < 0 or not 0 < each.time_us < math.inf:
            raise ScheduleError(
                f"a chunk of {each.tokens} tokens after {each.prefix} takes {each.time_us:g} us; a chunk has "
                "at least one token and takes time"
            )
    tokens, prefix, times = np.array(chunks, dtype=np.float64).reshape(-1, 3).T
    terms = np.stack([np.ones_like(tokens), tokens, tokens * (prefix + tokens / 2)], axis=1) / times[:, None]
    scale = np.maximum(np.abs(terms).max(axis=0, initial=0.0), 1e-300)
    if np.linalg.matrix_rank(terms / scale) < terms.shape[1]:
        raise ScheduleError(
            f"{len(chunks)} measured chunks do not determine the three figures of a law; time chunks of "
            "at least three sizes, or with other tokens before them"
        )
    figures = nnls(terms / scale, np.ones_like(times))[0] / scale
    errors = np.abs(terms @ figures - 1)
    launch, token, pair = figures.tolist()
    law = ChunkLaw(launch_us=launch, token_us=token, pair_us=pair)
    return FittedLaw(law, float(errors.mean()), float(errors.max()))
