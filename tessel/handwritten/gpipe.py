"""GPipe: all forwards, then all backwards; the simplest pipeline, with the highest peak memory.

    device 0   F0 F1 F2 .  .  .  B0 B0 B1 B1 B2 B2
    device 1   .  F0 F1 F2 B0 B0 B1 B1 B2 B2 .  .

On one chain of P stages with equal forwards F and backwards B and no hops, M micro-batches take
(M + P - 1)(F + B) steps, and every device holds M of them. Backwards run in the order of the forwards. On
other placements the same preference is simulated.

Source: Huang et al., GPipe (NeurIPS 2019), section 2.3.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tessel.handwritten.construction.chains import streams_by_device, why_no_chain
from tessel.handwritten.construction.columns import Columns
from tessel.handwritten.construction.greedy import Preference
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.instruction import Backward, Forward


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    return streams_by_device(pipeline, lambda stage: _stream(stage, micro_batches))


def _stream(stage: int, micro_batches: int, *, is_reversed: bool = False) -> Columns:
    numbers = np.arange(micro_batches)
    backward = micro_batches + (numbers[::-1] if is_reversed else numbers)
    return Columns.by_key((Forward, stage, numbers, numbers), (Backward, stage, numbers, backward))


def _variants(pipeline: Pipeline, micro_batches: int) -> Iterator[Streams]:
    """Backwards may run last micro-batch first: what is held longest is the same, unequal stages differ."""
    yield streams_by_device(pipeline, lambda stage: _stream(stage, micro_batches, is_reversed=True))


GPIPE = StreamRule(
    name="gpipe",
    applies=why_no_chain,
    streams=_streams,
    variants=_variants,
    generalised=Preference(opening_first=True),
)
