"""1F1B: after a short warm-up every stage alternates one forward and one backward.

    device 0   F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3
    device 1   .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .

Stage i of P runs P - i forwards before its first backward, so it never holds more than P - i micro-batches.
On one chain of equal stages without hops, M micro-batches take (M + P - 1)(F + B) steps, GPipe's time. A
stage that recomputes does so when its gradient has arrived. On placements other than chains the same
preference and the same limits, by depth instead of stage number, are simulated.

Source: Narayanan et al., PipeDream-flush (ICML 2021), section 2.2; Lin et al., Tessel (HPCA 2024), section
6.1, for other placements.
"""

from __future__ import annotations

import numpy as np

from tessel.handwritten.construction.chains import streams_by_device, why_no_chain
from tessel.handwritten.construction.columns import Columns
from tessel.handwritten.construction.greedy import Preference
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.instruction import Backward, Forward
from tessel.placement import BlockKind, Edge


def one_f_one_b(stage: int, *, warm_up: int, micro_batches: int) -> Columns:
    """Return the instructions of a stage that runs `warm_up` forwards before it alternates."""
    numbers = np.arange(micro_batches)
    ahead = numbers - warm_up
    return Columns.by_key(
        (Forward, stage, numbers, np.where(ahead < 0, ahead, 2 * ahead + 1)),
        (Backward, stage, numbers, 2 * numbers),
    )


def recompute_on_arrival(pipeline: Pipeline) -> tuple[Edge, ...]:
    """Return the edges that make each recomputation wait for what its backward waits for."""
    blocks = pipeline.placement.blocks
    recompute = {
        blocks[backward].name: blocks[stage.recompute].name
        for stage in pipeline.stages
        if stage.recompute is not None
        for backward in (stage.joint, stage.input)
        if backward is not None
    }
    kinds = {block.name: block.kind for block in blocks}
    gradients = {BlockKind.BACKWARD, BlockKind.BACKWARD_INPUT}
    return tuple(
        Edge(edge.source, recompute[edge.target], edge.lag)
        for edge in pipeline.placement.edges
        if edge.target in recompute and kinds[edge.source] in gradients
    )


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    num_stages = len(pipeline.stages)
    return streams_by_device(
        pipeline,
        lambda stage: one_f_one_b(stage, warm_up=num_stages - stage, micro_batches=micro_batches),
    )


ONE_F_ONE_B = StreamRule(
    name="1f1b",
    applies=why_no_chain,
    streams=_streams,
    extra_edges=recompute_on_arrival,
    generalised=Preference(is_limited=True),
)
