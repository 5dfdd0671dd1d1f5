"""Eager 1F1B: 1F1B with nearly twice the warm-up, so that hops hide behind forwards.

    device 0   F0 F1 F2 .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3
    device 1   .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .

Stage i of P runs 2(P - i) - 1 forwards before its first backward; fewer, down to 1F1B's P - i, follow the
rule too, and fit less memory. Without hops it takes 1F1B's time; with hops shorter than a forward, GPipe's,
(M + P - 1)(F + B) + 2(P - 1)c for equal stages and hops of c steps.

Source: Zhuang et al., On Optimizing the Communication of Model Parallelism (MLSys 2023), section 4.
"""

from __future__ import annotations

from collections.abc import Iterator

from tessel.handwritten.construction.chains import streams_by_device, why_no_chain
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B, one_f_one_b, recompute_on_arrival


def _applies(pipeline: Pipeline, micro_batches: int) -> str | None:
    return why_no_chain(pipeline, micro_batches) if pipeline.has_backward else "no stage has a backward"


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    return _with_extra(pipeline, micro_batches, len(pipeline.stages) - 1)


def depths(stage: int, num_stages: int, extra: int) -> int:
    """Return the warm-up of a stage with so many forwards more than 1F1B, and no more than twice its."""
    return min(num_stages - stage + extra, 2 * (num_stages - stage) - 1)


def extra_forwards(num_stages: int) -> tuple[int, ...]:
    """Return how many forwards more than 1F1B are tried, the most first; all of them with few stages."""
    step = max(1, num_stages // MAX_DEPTHS)
    return tuple(range(num_stages - 2, 0, -step))


MAX_DEPTHS = 8
"""Warm-ups tried, about."""


def _variants(pipeline: Pipeline, micro_batches: int) -> Iterator[Streams]:
    for extra in extra_forwards(len(pipeline.stages)):
        yield _with_extra(pipeline, micro_batches, extra)


def _with_extra(pipeline: Pipeline, micro_batches: int, extra: int) -> Streams:
    num_stages = len(pipeline.stages)
    return streams_by_device(
        pipeline,
        lambda stage: one_f_one_b(
            stage, warm_up=depths(stage, num_stages, extra), micro_batches=micro_batches
        ),
    )


EAGER_1F1B = StreamRule(
    name="eager-1f1b",
    applies=_applies,
    streams=_streams,
    variants=_variants,
    extra_edges=recompute_on_arrival,
    includes=(ONE_F_ONE_B,),
)
