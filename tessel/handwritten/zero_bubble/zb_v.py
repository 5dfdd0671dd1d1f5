"""ZB-V: the zero-bubble schedule on a V of two chunks per device, with 1F1B's memory.

    device 0   F0 F1 F2 f0 b0 w0 f1 b1 w1 F3 B0 W0 f2 b2 w2 B1 W1 f3 b3 w3 B2 W2 B3 W3 .
    device 1   .  F0 f0 F1 f1 b0 w0 F2 B0 W0 f2 b1 w1 F3 B1 W1 f3 b2 w2 B2 b3 B3 W2 w3 W3

Device i of P fills its first chunk with 2(P - i) - 1 forwards, makes i pairs of both chunks, drains P - i
micro-batches of the second chunk, and then alternates F B W f b w. At the end weight halves wait until no
other device waits for a backward. With equal F, B and W (of a whole stage), no hops and M >= 2P
micro-batches, it takes M(F + B + W) + (P - 1)F / 2 steps.

Source: Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 6; the phases as in PyTorch's
documentation of its ZBV schedule.
"""

from __future__ import annotations

from tessel.handwritten.construction.chains import why_no_split_v
from tessel.handwritten.construction.columns import Columns
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.construction.stream_writer import StreamWriter
from tessel.handwritten.zero_bubble.v_half import V_HALF
from tessel.instruction import BackwardInput, BackwardWeight, Forward


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    num_devices = len(pipeline.stages) // 2
    return pipeline.on_devices([_stream(device, num_devices, micro_batches) for device in range(num_devices)])


def _stream(device: int, num_devices: int, micro_batches: int) -> Columns:
    writer = StreamWriter(micro_batches)
    first, second = device, 2 * num_devices - 1 - device
    _warm_up(writer, first, second, num_devices - device)
    backwards = (
        (BackwardInput, first),
        (BackwardWeight, first),
        (Forward, second),
        (BackwardInput, second),
        (BackwardWeight, second),
    )
    writer.write((Forward, first), *backwards, rounds=micro_batches - writer.count((Forward, first)))
    writer.write(*backwards, rounds=writer.count((Forward, first)) - writer.count((Forward, second)))
    _cool_down(writer, first, second, num_devices - device)
    return writer.columns()


def _warm_up(writer: StreamWriter, first: int, second: int, devices_below: int) -> None:
    writer.write((Forward, first), rounds=2 * devices_below - 1)
    writer.write((Forward, second), (Forward, first), rounds=first)
    writer.write((Forward, second), (BackwardInput, second), (BackwardWeight, second), rounds=devices_below)


def _cool_down(writer: StreamWriter, first: int, second: int, devices_below: int) -> None:
    writer.write((BackwardInput, first), (BackwardInput, second), rounds=first)
    writer.write((BackwardInput, first), (BackwardWeight, first), rounds=devices_below)
    for stage in (second, first):
        left = writer.micro_batches - writer.count((BackwardWeight, stage))
        writer.write((BackwardWeight, stage), rounds=left)


ZB_V = StreamRule(name="zb-v", applies=why_no_split_v, streams=_streams, includes=(V_HALF,))
