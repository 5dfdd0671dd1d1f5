"""ZB-H1: 1F1B with the backward split, the weight halves delayed to fill the cool-down; no more memory.

    device 0   F0 F1 F2 .  .  B0 W0 F3 B1 W1 B2 W2 B3 W3
    device 1   .  F0 F1 .  B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
    device 2   .  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

Stage i of P runs P - i forwards before its first backward, and from the backward of micro-batch i on the
weight half of the micro-batch i before. With equal F, B and W and no hops, M micro-batches take
M(F + B + W) + (P - 1)F steps, and no device holds more than P micro-batches.

Source: Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 2.2.
"""

from __future__ import annotations

import numpy as np

from tessel.handwritten.construction.chains import streams_by_device, why_no_split_chain
from tessel.handwritten.construction.columns import Columns
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.eager_1f1b import depths
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.instruction import BackwardInput, BackwardWeight, Forward


def zero_bubble(stage: int, *, warm_up: int, weight_delay: int, micro_batches: int) -> Columns:
    """Return the instructions of a stage that splits its backward.

    Args:
        warm_up: forwards before its first backward.
        weight_delay: input halves it is ahead of its weight halves.
    """
    numbers = np.arange(micro_batches)
    ahead = numbers - warm_up
    return Columns.by_key(
        (BackwardInput, stage, numbers, 3 * numbers),
        (BackwardWeight, stage, numbers, 3 * (numbers + weight_delay) + 1),
        (Forward, stage, numbers, np.where(ahead < 0, ahead, 3 * ahead + 2)),
    )


def zero_bubble_streams(pipeline: Pipeline, micro_batches: int, *, extra: int) -> Streams:
    """Return the streams with so many forwards more than 1F1B before the first backward.

    Forwards ahead and weight halves behind together are held: as many on every stage.
    """
    num_stages = len(pipeline.stages)

    def stream(stage: int) -> Columns:
        warm_up = depths(stage, num_stages, extra)
        weight_delay = num_stages + extra - warm_up
        return zero_bubble(stage, warm_up=warm_up, weight_delay=weight_delay, micro_batches=micro_batches)

    return streams_by_device(pipeline, stream)


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    return zero_bubble_streams(pipeline, micro_batches, extra=0)


ZB_H1 = StreamRule(name="zb-h1", applies=why_no_split_chain, streams=_streams, includes=(ONE_F_ONE_B,))
