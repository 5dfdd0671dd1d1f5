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

from collections.abc import Iterator

from tessel.handwritten.chains import streams_by_device, why_no_chain
from tessel.handwritten.greedy import read_flow, run_greedily
from tessel.handwritten.rule import Starts, StreamRule, Streams
from tessel.handwritten.stages import Pipeline
from tessel.instruction import Backward, Forward, Instruction
from tessel.placement import BlockKind, Edge, Placement


def one_f_one_b(stage: int, *, warm_up: int, micro_batches: int) -> Iterator[Instruction]:
    """Yield the instructions of a stage that runs `warm_up` forwards before it alternates."""
    for micro_batch in range(min(warm_up, micro_batches)):
        yield Forward(stage, micro_batch)
    for micro_batch in range(micro_batches):
        yield Backward(stage, micro_batch)
        if micro_batch + warm_up < micro_batches:
            yield Forward(stage, micro_batch + warm_up)


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


def _applies(pipeline: Pipeline, micro_batches: int) -> str | None:
    return why_no_chain(pipeline)


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    num_stages = len(pipeline.stages)
    return streams_by_device(
        pipeline,
        lambda stage: one_f_one_b(stage, warm_up=num_stages - stage, micro_batches=micro_batches),
    )


def _generalised(placement: Placement, micro_batches: int) -> Starts:
    flow = read_flow(placement)
    return run_greedily(flow, micro_batches=micro_batches, in_flight=flow.depth)


ONE_F_ONE_B = StreamRule(
    name="1f1b",
    applies=_applies,
    streams=_streams,
    extra_edges=recompute_on_arrival,
    generalised=_generalised,
)
