"""ZB-H2: the backward split and twice 1F1B's memory, for no bubble but the first device's fill.

    device 0   F0 F1 F2 F3 F4 B0 W0 B1 W1 B2 W2 B3 W3 B4 W4 .  .
    device 1   .  F0 F1 F2 B0 F3 B1 F4 B2 W0 B3 W1 B4 W2 W3 W4 .
    device 2   .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 W1 W2 W3 W4

Stage i of P runs 2(P - i) - 1 forwards before its first backward, and delays 2i weight halves. With less
memory than twice, fewer of both follow the rule, down to those of ZB-H1. Where a hop takes c steps and the
stages are equal, M micro-batches take M(F + B + W) + (P - 1)(F + c) steps if the hops are short beside the
passes: the last stage starts after the fill and never waits.

Source: Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 2.3; here the optimizer step waits
for all stages, so that the fill stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from tessel.handwritten.construction.chains import why_no_split_chain
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.eager_1f1b import extra_forwards
from tessel.handwritten.zero_bubble.zb_h1 import ZB_H1, zero_bubble_streams


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    return zero_bubble_streams(pipeline, micro_batches, extra=len(pipeline.stages) - 1)


def _variants(pipeline: Pipeline, micro_batches: int) -> Iterator[Streams]:
    for extra in extra_forwards(len(pipeline.stages)):
        yield zero_bubble_streams(pipeline, micro_batches, extra=extra)


ZB_H2 = StreamRule(
    name="zb-h2", applies=why_no_split_chain, streams=_streams, variants=_variants, includes=(ZB_H1,)
)
