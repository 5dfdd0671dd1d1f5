"""Document of `tessel chunk`."""

from __future__ import annotations

import msgspec

from tessel.batches.chunk_law import ChunkLaw


class PrintedRuleChunks(msgspec.Struct, frozen=True, kw_only=True):
    """The best that a rule of serving frameworks gives.

    Attributes:
        rule: `equal` sizes, or `dynamic` ones.
        initial: tokens of its first chunk.
        smoothing: of the dynamic rule; null for equal sizes.
        num_chunks: how many it makes.
        predicted_us: until the last stage is through.
    """

    rule: str
    initial: int
    smoothing: float | None
    num_chunks: int
    predicted_us: float


class Chunked(msgspec.Struct, frozen=True, kw_only=True):
    """Chunks of a prompt.

    Attributes:
        prompt: tokens.
        law: what a chunk takes on a stage of factor 1.
        mean_error: how far measured chunks are from the law, as a share of each; 0 where it was given.
        worst_error: the largest.
        stage_factors: time of each stage over the law's.
        chunks: tokens of each.
        predicted_us: until the last stage is through.
        lower_bound_us: no chunks within the limits take less.
        optimal: nothing is shorter.
        longest_wait_us: what the longest chunk takes on the slowest stage, for which a decode step waits.
        found_by: the method.
        rules: the best of each rule of serving frameworks.
    """

    prompt: int
    law: ChunkLaw
    mean_error: float
    worst_error: float
    stage_factors: tuple[float, ...]
    chunks: tuple[int, ...]
    predicted_us: float
    lower_bound_us: float
    optimal: bool
    longest_wait_us: float
    found_by: str
    rules: tuple[PrintedRuleChunks, ...]
