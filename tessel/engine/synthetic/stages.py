"""Synthetic stages that sleep for their stated duration: the cost of a schedule's orders without any model.

A sleeping rank uses hardly any processor time, so there may be more ranks than cores. One small tensor
crosses each edge between stages. A stage on several ranks waits for all of them before it starts, as a
tensor-parallel module would. Where its stated duration contains its collectives, it sleeps from when the last
rank came, so that what this machine's messages take to bring them together is no further part of it. Checked
in tests/tessel/engine/synthetic/test_overheads.py.
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
from tuner.plan import Routes, TensorInfo

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
        group: the ranks that it waits for, where it is on several.
    """

    def __init__(self, spec: SleepSpec, number: int, group: dist.ProcessGroup | None) -> None:
        self._by_micro_batch = [own[number] for own in spec.by_micro_batch]
        self._seconds = spec.seconds[number]
        self._group = group
        self._holds_collectives = spec.holds_collectives
        self._tensor = torch.zeros(_SIZE, device=spec.device)
        after = [later for later, earlier in enumerate(spec.before) if number in earlier]
        waiting = _waiting_for_gradients(spec)
        self.received = tuple(_made_by(source) for source in spec.before[number])
        self.sent = (_made_by(number),) if after else ()
        self.sent_gradients = tuple(_made_by(source) for source in spec.before[number] if waiting[source])
        self.received_gradients = self.sent if waiting[number] else ()
        self.routes = Routes(
            received={source: (_made_by(source),) for source in spec.before[number]},
            sent=dict.fromkeys(after, self.sent),
            received_gradients=dict.fromkeys(after, self.sent) if waiting[number] else {},
            sent_gradients={source: (_made_by(source),) for source in spec.before[number] if waiting[source]},
        )

    def start_step(self, num_micro_batches: int) -> None:
        """Keep nothing from step to step."""

    def run(self, action: Action, given: Mapping[str, torch.Tensor]) -> Tensors:
        """Sleep; return what other stages wait for."""
        own = self._by_micro_batch[action.micro_batch] if self._by_micro_batch else self._seconds
        if self._group is not None and self._holds_collectives:
            ends = _last_arrival(self._group) + own[action.kind]
            time.sleep(max(0.0, ends - time.time()))
        else:
            if self._group is not None:
                dist.barrier(self._group)
            time.sleep(own[action.kind])
        made = self.sent if action.kind == "F" else self.sent_gradients
        return {info.name: self._tensor for info in made}

    def gradients(self) -> Tensors:
        """Return none: there are no weights."""
        return {}

    def losses(self) -> dict[int, float]:
        """Return none: nothing is computed."""
        return {}


def _last_arrival(group: dist.ProcessGroup) -> float:
    """Wait for all ranks of a group, and return when the last of them came, by the clock of the day.

    Clocks of several machines may differ; what is returned is never before this rank came, or after it heard
    of all.
    """
    arrived = time.time()
    last = torch.tensor(arrived, dtype=torch.float64)
    dist.all_reduce(last, op=dist.ReduceOp.MAX, group=group)
    return min(max(arrived, last.item()), time.time())


def _waiting_for_gradients(spec: SleepSpec) -> list[bool]:
    """Say of each stage whether it, or one that it receives from, is trained."""
    waiting: list[bool] = []
    for seconds, earlier in zip(spec.seconds, spec.before, strict=True):
        waiting.append(any(letter != "F" for letter in seconds) or any(waiting[each] for each in earlier))
    return waiting


def _made_by(stage: int) -> TensorInfo:
    return TensorInfo(name=f"h{stage}", shape=(_SIZE,), dtype="float32", num_bytes=4 * _SIZE)
