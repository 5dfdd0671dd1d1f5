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
from dataclasses import dataclass
from functools import partial

from tessel.handwritten.construction.chains import why_not_interleaved
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.one_f_one_b import recompute_on_arrival
from tessel.instruction import Backward, Forward, Instruction


@dataclass(frozen=True, slots=True)
class Turns:
    """Which stage and micro-batch each turn of a device is: group by group, chunk by chunk.

    Attributes:
        num_devices: devices, and micro-batches in a group.
        num_chunks: stages of each device.
    """

    num_devices: int
    num_chunks: int

    def forward(self, device: int, turn: int) -> tuple[int, int]:
        """Return stage and micro-batch of a forward."""
        chunk, micro_batch = self._place(turn)
        return device + self.num_devices * chunk, micro_batch

    def backward(self, device: int, turn: int) -> tuple[int, int]:
        """Return stage and micro-batch of a backward."""
        chunk, micro_batch = self._place(turn)
        return device + self.num_devices * (self.num_chunks - 1 - chunk), micro_batch

    def _place(self, turn: int) -> tuple[int, int]:
        group, rest = divmod(turn, self.num_devices * self.num_chunks)
        chunk, member = divmod(rest, self.num_devices)
        return chunk, group * self.num_devices + member


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
    num_chunks = pipeline.num_chunks
    num_devices = len(pipeline.stages) // num_chunks
    turns = Turns(num_devices, num_chunks)
    return pipeline.on_devices(
        [_stream(turns, device, micro_batches, extra) for device in range(num_devices)]
    )


def _stream(turns: Turns, device: int, micro_batches: int, extra: int) -> Iterator[Instruction]:
    num_devices, num_chunks = turns.num_devices, turns.num_chunks
    total = num_chunks * micro_batches
    warm_up = min(2 * (num_devices - device - 1) + (num_chunks - 1) * num_devices + extra, total)

    for turn in range(warm_up):
        yield Forward(*turns.forward(device, turn))
    for turn in range(total - warm_up):
        yield Forward(*turns.forward(device, turn + warm_up))
        yield Backward(*turns.backward(device, turn))
    for turn in range(total - warm_up, total):
        yield Backward(*turns.backward(device, turn))


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
