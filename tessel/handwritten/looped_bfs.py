"""Looped BFS: all micro-batches through one chunk, then through the next, and back the same way.

    device 0   F0 F1 F2 f0 f1 f2 .  .  .  b0 b0 b1 b1 b2 b2 B0 B0 B1 B1 B2 B2      two chunks, F and f
    device 1   .  F0 F1 F2 f0 f1 f2 b0 b0 b1 b1 b2 b2 B0 B0 B1 B1 B2 B2 .  .

It holds all micro-batches of all chunks, like GPipe, but fills in the steps of a chunk, and lets the
gradients of a chunk be reduced while another one runs. With equal chunks, no hops and M >= P it takes
(M + (P - 1) / v)(F + B) steps, F and B being those of all v chunks together.

Source: Lamy-Poirier, Breadth-First Pipeline Parallelism (MLSys 2023), section 4.
"""

from __future__ import annotations

import numpy as np

from tessel.handwritten.construction.chains import why_not_interleaved
from tessel.handwritten.construction.columns import Columns
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.instruction import Backward, Forward


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    num_devices = len(pipeline.stages) // pipeline.num_chunks
    stages = range(len(pipeline.stages))
    return pipeline.on_devices(
        [_stream(stages[device::num_devices], micro_batches) for device in range(num_devices)]
    )


def _stream(stages: range, micro_batches: int) -> Columns:
    numbers = np.arange(micro_batches)
    works = [*((Forward, stage) for stage in stages), *((Backward, stage) for stage in reversed(stages))]
    return Columns.by_key(
        *(
            (kind, stage, numbers, place * micro_batches + numbers)
            for place, (kind, stage) in enumerate(works)
        )
    )


LOOPED_BFS = StreamRule(name="breadth-first", applies=why_not_interleaved, streams=_streams)
