"""Stages that sleep for as long as they are said to take, for `benchmarks.simulator`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import torch

from tessel.engine.actions import Action
from tessel.engine.program import Tensors
from tuner.plan import TensorInfo

_SIZE = 256


class SleepingStage:
    """Takes and makes one small tensor; holds no weights."""

    def __init__(self, number: int, seconds_by_letter: Mapping[str, float], *, is_last: bool) -> None:
        self._seconds_by_letter = seconds_by_letter
        self._tensor = torch.zeros(_SIZE)
        self.received = self.sent_gradients = _border(number) if number else ()
        self.sent = self.received_gradients = () if is_last else _border(number + 1)

    def start_step(self, num_micro_batches: int) -> None:
        pass

    def run(self, action: Action, given: Mapping[str, torch.Tensor]) -> Tensors:
        time.sleep(self._seconds_by_letter[action.kind])
        made = self.sent if action.kind == "F" else self.sent_gradients
        return {info.name: self._tensor for info in made}

    def gradients(self) -> Tensors:
        return {}

    def losses(self) -> dict[int, float]:
        return {}


def provide(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, SleepingStage]:
    """Build stages as the engine's ranks ask for them: seconds by stage and letter."""
    seconds = json.loads(spec_json)
    return {
        number: SleepingStage(number, seconds[str(number)], is_last=number == len(seconds) - 1)
        for number in stage_numbers
    }


def _border(number: int) -> tuple[TensorInfo, ...]:
    return (TensorInfo(name=f"h{number}", shape=(_SIZE,), dtype="float32", num_bytes=4 * _SIZE),)
