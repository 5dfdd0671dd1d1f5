"""Synthetic stages that sleep for their stated duration: the cost of a schedule's orders without any model.

A sleeping rank uses hardly any processor time, so there may be more ranks than cores. One small tensor
crosses each stage boundary. A stage on several ranks waits for all of them before it starts, as a
tensor-parallel module would. Checked in tests/tessel/engine/synthetic/test_overheads.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec
import torch
import torch.distributed as dist

from tessel.engine.actions import Action
from tessel.engine.program import Tensors
from tessel.engine.synthetic.run import SleepSpec
from tuner.plan import TensorInfo

_SIZE = 256


def provide_programs(spec_json: str, stage_numbers: Sequence[int]) -> dict[int, SleepingStage]:
    """Build stages as an engine's ranks ask for them: the specification comes as JSON text."""
    spec = msgspec.json.decode(spec_json, type=SleepSpec)
    # Every rank makes every group, in the same order, whether or not it is in it. They wait on the host.
    groups = [dist.new_group(list(ranks), backend="gloo") if len(ranks) > 1 else None for ranks in spec.ranks]
    return {number: SleepingStage(spec, number, groups[number]) for number in stage_numbers}


class SleepingStage:
    """Takes and makes one small tensor, and holds no weights; satisfies the engine's `StageProgram`.

    Args:
        spec: how long it takes.
        number: which stage it is.
        group: the ranks that it waits for, where it is on several.
    """

    def __init__(self, spec: SleepSpec, number: int, group: dist.ProcessGroup | None) -> None:
        last = len(spec.seconds) - 1
        self._seconds = spec.seconds[number]
        self._group = group
        self._tensor = torch.zeros(_SIZE, device=spec.device)
        self.received = _border(number) if number else ()
        self.sent = _border(number + 1) if number < last else ()
        trained = [any(letter != "F" for letter in seconds) for seconds in spec.seconds]
        self.sent_gradients = self.received if any(trained[:number]) else ()
        self.received_gradients = self.sent if any(trained[: number + 1]) else ()

    def start_step(self, num_micro_batches: int) -> None:
        """Keep nothing from step to step."""

    def run(self, action: Action, given: Mapping[str, torch.Tensor]) -> Tensors:
        """Sleep; return what other stages wait for."""
        if self._group is not None:
            dist.barrier(self._group)
        time.sleep(self._seconds[action.kind])
        made = self.sent if action.kind == "F" else self.sent_gradients
        return {info.name: self._tensor for info in made}

    def gradients(self) -> Tensors:
        """Return none: there are no weights."""
        return {}

    def losses(self) -> dict[int, float]:
        """Return none: nothing is computed."""
        return {}


def _border(number: int) -> tuple[TensorInfo, ...]:
    return (TensorInfo(name=f"h{number}", shape=(_SIZE,), dtype="float32", num_bytes=4 * _SIZE),)
