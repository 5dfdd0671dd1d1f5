"""DualPipe-V: both chunks of a V alternate forwards and joint backwards, which are split only at the ends.

    device 0   F0 F1 F2 f0 b0 w0 f1 F3 b1 w1 f2 B0 W0 b2 w2 f3 B1 W1 b3 w3 B2 W2 .  B3 W3
    device 1   .  F0 f0 F1 f1 F2 b0 w0 f2 B0 W0 F3 b1 w1 f3 B1 W1 b2 w2 B2 W2 b3 B3 w3 W3

Device i of P makes 2(P - i - 1) F, i + 1 pairs F f, P - i - 1 rounds b w f, then rounds F bw f BW, and
drains. F and f are forwards of the first and second chunk, bw and BW whole backwards, b and B their input
halves. The publication runs a forward and a backward at the same time to hide communication; here a device
does one thing at a time, the forward first, and passes each result on when it is there. It needs M >= 2P
micro-batches. With equal costs and no hops it takes ZB-V's time, M(F + B + W) + (P - 1)F / 2 steps.

Source: Qi et al., DualPipeV / cut-in-half (2025), after DualPipe of Liu et al., DeepSeek-V3 (2024), section
3.2.1; the eight phases as DeepSeek publishes them.
"""

from __future__ import annotations

from collections import deque

from tessel.handwritten.construction.chains import why_no_split_v
from tessel.handwritten.construction.columns import Columns
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.construction.stream_writer import StreamWriter
from tessel.instruction import Backward, BackwardInput, BackwardWeight, Forward


def _applies(pipeline: Pipeline, micro_batches: int) -> str | None:
    least = len(pipeline.stages)
    if micro_batches < least:
        return f"it needs at least {least} micro-batches, two a device, and there are {micro_batches}"
    return why_no_split_v(pipeline, micro_batches)


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    num_devices = len(pipeline.stages) // 2
    return pipeline.on_devices(
        [_Device(device, num_devices, micro_batches).stream() for device in range(num_devices)]
    )


class _Device:
    """One device's phases; weight halves that were split off wait in the order of their backwards."""

    def __init__(self, index: int, num_devices: int, micro_batches: int) -> None:
        self._index = index
        self._after = num_devices - 1 - index
        self._rounds = micro_batches - 2 * num_devices + index + 1
        self._chunks = (index, 2 * num_devices - 1 - index)
        self._writer = StreamWriter(micro_batches, counted_as={BackwardInput: Backward})
        self._waiting: deque[tuple[int, int]] = deque()

    def stream(self) -> Columns:
        """Return the device's instructions."""
        self._warm_up()
        first, second = self._chunks
        self._writer.write(
            (Forward, first), (Backward, second), (Forward, second), (Backward, first), rounds=self._rounds
        )
        self._cool_down()
        return self._writer.columns()

    def _warm_up(self) -> None:
        first, second = self._chunks
        self._writer.write((Forward, first), rounds=2 * self._after)
        self._writer.write((Forward, first), (Forward, second), rounds=self._index + 1)
        for _ in range(self._after):
            self._backward(1, is_split=True)
            self._weight()
            self._writer.write((Forward, second))

    def _cool_down(self) -> None:
        first, second = self._chunks
        self._writer.write((Backward, second), (Forward, second), (Backward, first), rounds=self._after)
        # From the middle on backwards are split; odd devices begin half a round earlier.
        middle = (self._index + 1) // 2
        for round_index in range(self._index + 1):
            is_past_middle = round_index > middle
            self._backward(1, is_split=is_past_middle or (round_index == middle and self._index % 2 == 1))
            self._backward(0, is_split=round_index >= middle)
        for _ in range(self._after):
            self._weight()
            self._backward(0, is_split=True)
        for _ in range(self._index + 1):
            self._weight()

    def _backward(self, chunk: int, *, is_split: bool = False) -> None:
        stage = self._chunks[chunk]
        if is_split:
            self._waiting.append((stage, self._writer.count((BackwardInput, stage))))
        self._writer.write((BackwardInput if is_split else Backward, stage))

    def _weight(self) -> None:
        stage, micro_batch = self._waiting.popleft()
        self._writer.write_of((BackwardWeight, stage), [micro_batch])


DUALPIPE_V = StreamRule(name="dualpipe-v", applies=_applies, streams=_streams)
