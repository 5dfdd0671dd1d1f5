"""Instructions and the streams of a schedule of one's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tessel.errors import ScheduleError
from tessel.instruction import Backward, Forward, Instruction, PipelineSchedule


class OneByOne(PipelineSchedule):
    def instructions(self, device: int) -> Iterator[Instruction]:
        for micro_batch in range(self.num_micro_batches):
            yield Forward(device, micro_batch)
            yield Backward(device, micro_batch, 7)


def test_durations_are_filled_in_by_kind_and_stage() -> None:
    streams = OneByOne(num_stages=2, num_micro_batches=1, durations={Forward: (3, 5)}).streams()
    assert streams == (
        (Forward(0, 0, 3), Backward(0, 0, 7)),
        (Forward(1, 0, 5), Backward(1, 0, 7)),
    )


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="at least 1 of each"):
        OneByOne(num_stages=0, num_micro_batches=1)
    with pytest.raises(ValueError, match="negative number"):
        Forward(0, -1)
    with pytest.raises(ScheduleError, match="numbers for 1 stages, and stage 1 is asked for"):
        OneByOne(num_stages=2, num_micro_batches=1, durations={Forward: (3,)}).streams()

    class TooMany(OneByOne):
        def instructions(self, device: int) -> Iterator[Instruction]:
            yield Forward(device, self.num_micro_batches)

    with pytest.raises(ScheduleError, match=r"device 0 has .* correct the stream"):
        TooMany(num_stages=1, num_micro_batches=2).streams()
