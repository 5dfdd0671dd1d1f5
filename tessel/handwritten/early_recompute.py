"""Early-recompute 1F1B: 1F1B whose stages recompute while they wait for the gradient.

    device 0   F0 F1 R0 .  .  B0 B0 F2 R1 B1 B1 R2 .  B2 B2
    device 1   .  F0 R0 B0 B0 F1 R1 B1 B1 F2 R2 B2 B2 .  .

R0 on device 0 runs at step 2, in what was idle; 1F1B would start it when the gradient arrives, at step 5.
The order is 1F1B's; only the wait of the recomputation for the gradient is left out. What it recomputes is
held a little longer.

Source: Chung et al., Perseus (SOSP 2024), whose pipelines are drawn with it; here the order is 1F1B's.
"""

from __future__ import annotations

from tessel.handwritten.construction.chains import streams_by_device, why_no_chain
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.one_f_one_b import one_f_one_b


def _applies(pipeline: Pipeline, micro_batches: int) -> str | None:
    return (
        why_no_chain(pipeline, micro_batches) if pipeline.has_recompute else "no stage recomputes its forward"
    )


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    num_stages = len(pipeline.stages)
    return streams_by_device(
        pipeline,
        lambda stage: one_f_one_b(stage, warm_up=num_stages - stage, micro_batches=micro_batches),
    )


EARLY_RECOMPUTE_1F1B = StreamRule(name="early-recompute-1f1b", applies=_applies, streams=_streams)
