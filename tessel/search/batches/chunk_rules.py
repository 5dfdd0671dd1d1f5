"""Chunks of a prompt as serving frameworks make them: of one size, or smaller the more tokens are before.

The dynamic rule looks for the size that takes as long as the first chunk did, launches left out, and goes a
part of the way there (its smoothing); no size is less than a quarter of the first. Checked in
tests/tessel/search/batches/test_chunks.py.

Source: the dynamic rule is SGLang's, as described in "Pipeline Parallelism in SGLang: Scaling to
Million-Token Contexts and Beyond" (LMSYS, January 2026, section 3) and run by its `ChunkSizePredictor` (1/4,
rounding down to the page). Its first chunk is the initial size; its margin at the end of a model's context is
left out.
"""

from __future__ import annotations

from math import sqrt

from tessel.batches.chunk_law import ChunkLaw

SMOOTHINGS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Smoothing factors that are tried: those that SGLang recommends (0.6 to 0.85), and the law itself (1)."""

LEAST_SHARE = 4
"""No dynamic chunk is less than the first one divided by this."""


def equal_chunks(prompt: int, size: int) -> tuple[int, ...]:
    """Return chunks of one size, and what is left."""
    whole, left = divmod(prompt, size)
    return (size,) * whole + ((left,) if left else ())


def dynamic_chunks(
    law: ChunkLaw, prompt: int, *, initial: int, smoothing: float, multiple: int
) -> tuple[int, ...]:
    """Return chunks that take about as long as the first.

    Args:
        law: of a stage.
        prompt: tokens.
        initial: tokens of the first chunk.
        smoothing: 0 for equal chunks, 1 for equal times.
        multiple: of which every chunk but the last is one.
    """
    target = law.tokens_us(initial)
    chunks: list[int] = []
    done = 0
    while done < prompt:
        size = initial
        if chunks:
            wanted = _tokens_in(law, done, target)
            size = max(int(initial + smoothing * (wanted - initial)), initial // LEAST_SHARE)
            size = max(size // multiple, 1) * multiple
        chunks.append(min(size, prompt - done))
        done += chunks[-1]
    return tuple(chunks)


def _tokens_in(law: ChunkLaw, prefix: int, target_us: float) -> float:
    """Return how many tokens after a prefix take a time, launches left out."""
    square, linear = law.pair_us / 2, law.token_us + law.pair_us * prefix
    if square == 0:
        return target_us / linear
    return (sqrt(linear**2 + 4 * square * target_us) - linear) / (2 * square)


def sizes_to_try(most: int, multiple: int, *, number: int) -> list[int]:
    """Return multiples up to `most`, at most so many: all, or small ones closer together than large ones."""
    count = max(most // multiple, 1)
    if count <= number:
        return [multiple * each for each in range(1, count + 1)]
    ratio = count ** (1 / (number - 1))
    return sorted({multiple * max(round(ratio**each), 1) for each in range(number)})
