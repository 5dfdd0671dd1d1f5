"""Interleaved 1F1B: every device has several chunks of the chain, so the pipeline fills in smaller steps.

    device 0   F0 F1 f0 f1 F2 .  b0 b0 F3 b1 b1 f2 B0 B0 f3 B1 B1 .  b2 b2 .  b3 b3 B2 B2 B3 B3
    device 1   .  F0 F1 f0 b0 b0 f1 b1 b1 F2 B0 B0 F3 B1 B1 f2 b2 b2 f3 b3 b3 B2 B2 B3 B3 .  .

Here there are two chunks, F and f. Micro-batches go in groups of P, each through all chunks before the next.
Device i of P with v chunks runs 2(P - i - 1) + (v - 1)P forwards before it alternates. With equal chunks, no
hops and M a multiple of P, it takes (M + (P - 1) / v)(F + B) steps, F and B being those of all v chunks
together.

Source: Narayanan et al., Efficient Large-Scale Language Model Training (SC 2021), section 2.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tessel.handwritten.construction.chains import why_not_interleaved
from tessel.handwritten.construction.columns import Columns, Part
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.one_f_one_b import recompute_on_arrival
from tessel.instruction import Backward, Forward, Instruction


def turns(
    kind: type[Instruction], device: int, *, num_devices: int, num_chunks: int, micro_batches: int
) -> Iterator[Part]:
    """Yield a kind of work by stage of a device: micro-batches, and by micro-batch which turn each is.

    Turns go group by group of as many micro-batches as devices, chunk by chunk, backwards from the last one.
    """
    numbers = np.arange(micro_batches)
    group, member = np.divmod(numbers, num_devices)
    for chunk in range(num_chunks):
        place = chunk if kind is Forward else num_chunks - 1 - chunk
        yield kind, device + num_devices * place, numbers, (group * num_chunks + chunk) * num_devices + member


def _applies(pipeline: Pipeline, micro_batches: int) -> str | None:
    reason = why_not_interleaved(pipeline, micro_batches)
    if reason is not None:
        return reason
    num_devices = len(pipeline.stages) // pipeline.num_chunks
    if micro_batches % num_devices:
        return (
            f"micro-batches go in groups of {num_devices}, one per device, "
            f"and {micro_batches} is no multiple of it"
        )
    return None


def _streams(pipeline: Pipeline, micro_batches: int, extra: int = 0) -> Streams:
    num_devices = len(pipeline.stages) // pipeline.num_chunks
    return pipeline.on_devices(
        [
            _stream(device, num_devices, pipeline.num_chunks, micro_batches, extra)
            for device in range(num_devices)
        ]
    )


def _stream(device: int, num_devices: int, num_chunks: int, micro_batches: int, extra: int) -> Columns:
    sizes = {"num_devices": num_devices, "num_chunks": num_chunks, "micro_batches": micro_batches}
    warm_up = 2 * (num_devices - device - 1) + (num_chunks - 1) * num_devices + extra
    parts: list[Part] = []
    for kind, stage, numbers, turn in turns(Forward, device, **sizes):
        ahead = turn - warm_up
        parts.append((kind, stage, numbers, np.where(ahead < 0, ahead, 2 * ahead)))
    for kind, stage, numbers, turn in turns(Backward, device, **sizes):
        parts.append((kind, stage, numbers, 2 * turn + 1))
    return Columns.by_key(*parts)


INTERLEAVED_1F1B = StreamRule(
    name="interleaved", applies=_applies, streams=_streams, extra_edges=recompute_on_arrival
)

COMBINED_1F1B = StreamRule(
    name="combined-1f1b",
    applies=_applies,
    streams=partial(_streams, extra=1),
    extra_edges=recompute_on_arrival,
)
"""One more forward ahead, so that the forward and the backward of a turn may run together: Megatron's
combined 1F1B (Megatron-LM, `core/pipeline_parallel`, `--overlap-moe-expert-parallel-comm`). Without pairs it
is interleaved 1F1B that holds more."""
