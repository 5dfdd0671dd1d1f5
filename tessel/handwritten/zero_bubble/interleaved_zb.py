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

from collections.abc import Iterator

from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.interleaved_1f1b import INTERLEAVED_1F1B, Turns
from tessel.instruction import BackwardInput, BackwardWeight, Forward, Instruction


def _applies(pipeline: Pipeline, micro_batches: int) -> str | None:
    if not pipeline.is_split:
        return "no stage has a backward in an input and a weight half"
    return INTERLEAVED_1F1B.applies(pipeline, micro_batches)


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    num_devices = len(pipeline.stages) // pipeline.num_chunks
    turns = Turns(num_devices, pipeline.num_chunks)
    return pipeline.on_devices(
        [_stream(turns, device, micro_batches * pipeline.num_chunks) for device in range(num_devices)]
    )


def _stream(turns: Turns, device: int, total: int) -> Iterator[Instruction]:
    warm_up = min(turns.num_devices - device - 1 + (turns.num_chunks - 1) * turns.num_devices, total)
    for turn in range(warm_up):
        yield Forward(*turns.forward(device, turn))
    for turn in range(total):
        if turn + warm_up < total:
            yield Forward(*turns.forward(device, turn + warm_up))
        yield BackwardInput(*turns.backward(device, turn))
        if turn >= device:
            yield BackwardWeight(*turns.backward(device, turn - device))
    for turn in range(max(0, total - device), total):
        yield BackwardWeight(*turns.backward(device, turn))


INTERLEAVED_ZB = StreamRule(name="interleaved-zb", applies=_applies, streams=_streams)
