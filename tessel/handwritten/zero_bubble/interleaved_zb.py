"""Interleaved zero bubble: several chunks a device with split backwards, weight halves delayed as in ZB-H1.

    device 0   F0 F1 f0 f1 .  b0 w0 F2 b1 w1 F3 B0 W0 f2 B1 W1 f3 b2 w2 b3 w3 B2 W2 B3 W3
    device 1   .  F0 F1 f0 b0 f1 b1 w0 F2 B0 w1 F3 B1 W0 f2 b2 W1 f3 b3 w2 B2 w3 B3 W2 W3

Here there are two chunks, F and f. Micro-batches go in groups of P, each through all chunks before the next,
as in interleaved 1F1B. Device i of P with v chunks runs (P - i - 1) + (v - 1)P forwards before it alternates,
and the weight half of a backward follows i backwards later; what is left of them ends the schedule. With
equal F, B and W (of a whole stage) and no hops, it takes M(F + B + W) + (P - 1)F / v steps and holds no more
than P micro-batches.

Source: Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 2.2, for one chunk; several chunks as
in the interleaved zero-bubble schedule of torch.distributed.pipelining.
"""

from __future__ import annotations

import numpy as np

from tessel.handwritten.construction.columns import Columns, Part
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.interleaved_1f1b import INTERLEAVED_1F1B, turns
from tessel.instruction import BackwardInput, BackwardWeight, Forward


def _applies(pipeline: Pipeline, micro_batches: int) -> str | None:
    if not pipeline.is_split:
        return "no stage has a backward in an input and a weight half"
    return INTERLEAVED_1F1B.applies(pipeline, micro_batches)


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    num_devices = len(pipeline.stages) // pipeline.num_chunks
    return pipeline.on_devices(
        [_stream(device, num_devices, pipeline.num_chunks, micro_batches) for device in range(num_devices)]
    )


def _stream(device: int, num_devices: int, num_chunks: int, micro_batches: int) -> Columns:
    sizes = {"num_devices": num_devices, "num_chunks": num_chunks, "micro_batches": micro_batches}
    warm_up = num_devices - device - 1 + (num_chunks - 1) * num_devices
    parts: list[Part] = []
    for kind, stage, numbers, turn in turns(Forward, device, **sizes):
        ahead = turn - warm_up
        parts.append((kind, stage, numbers, np.where(ahead < 0, ahead, 3 * ahead)))
    for kind, stage, numbers, turn in turns(BackwardInput, device, **sizes):
        parts.append((kind, stage, numbers, 3 * turn + 1))
    for kind, stage, numbers, turn in turns(BackwardWeight, device, **sizes):
        parts.append((kind, stage, numbers, 3 * (turn + device) + 2))
    return Columns.by_key(*parts)


INTERLEAVED_ZB = StreamRule(name="interleaved-zb", applies=_applies, streams=_streams)
