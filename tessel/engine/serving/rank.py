"""One rank of a served pipeline: run each stage when what it takes is there, and hand on what it makes.

Every connection is drained by a thread of its own, so that no sender waits for a busy receiver; the caller
bounds how many micro-batches are on their way. A rank ends with its caller, whose connection then closes.
Started by `tessel.engine.serving.ranks`. Checked in tests/tessel/jobs/test_loading.py.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Protocol

import torch

from tessel.engine.actions import Action, ActionKind
from tessel.engine.import_function import find_function
from tessel.engine.program import OutputsProgram, StageProgram, routes_of
from tessel.engine.serving import messages
from tessel.engine.serving.messages import INPUTS, Failed, RankJob, Ready
from tuner.plan import TensorInfo
from tuner.runtime.manifest import Manifest, TensorSpec

Tensors = dict[str, torch.Tensor]
_Item = tuple[messages.Tensors, Tensors]


class ServedStages(Protocol):
    """What a provider of stages gives.

    Attributes:
        manifest: of the whole model, as it is called.
        outputs: names that stages give to what the model returns, in order.
        reads: names of the model's inputs that these stages read.
        programs: by stage; they keep outputs.
        inputs: what the stages read of the model's inputs, of the micro-batch that runs.
    """

    manifest: Manifest
    outputs: tuple[str, ...]
    reads: tuple[str, ...]
    programs: Mapping[int, StageProgram]
    inputs: Tensors


class _Rank:
    """The stages of one rank, and what has arrived for them."""

    def __init__(self, job: RankJob, stages: ServedStages, control: Connection) -> None:
        self._job = job
        self._stages = stages
        self._control = control
        self._outgoing = {rank: Connection(fd, readable=False) for rank, fd in job.outgoing.items()}
        self._routes = {number: routes_of(stages.programs[number], number) for number in job.stages}
        self._arrived: dict[tuple[int, int], dict[int, Tensors]] = {}

    def take(self, message: messages.Tensors, tensors: Tensors) -> None:
        """Note what has arrived, and run whatever can run now, the oldest micro-batch first."""
        wanted = self._job.stages if message.origin == INPUTS else (message.stage,)
        for stage in wanted:
            self._arrived.setdefault((message.micro_batch, stage), {})[message.origin] = tensors
        while (ready := self._next()) is not None:
            self._run(*ready)

    def _next(self) -> tuple[int, int] | None:
        found = [
            key
            for key, given in self._arrived.items()
            if given.keys() == {INPUTS, *self._routes[key[1]].received}
        ]
        return min(found, key=lambda key: (key[0], -key[1]), default=None)

    def _run(self, micro_batch: int, stage: int) -> None:
        given = self._arrived.pop((micro_batch, stage))
        self._stages.inputs = given.pop(INPUTS)
        program = self._stages.programs[stage]
        program.start_step(1)
        received = {name: tensor for tensors in given.values() for name, tensor in tensors.items()}
        made = program.run(Action(stage, ActionKind.FORWARD, 0), received)
        for target, infos in self._routes[stage].sent.items():
            self._hand_on(micro_batch, stage, target, infos, made)
        if isinstance(program, OutputsProgram):
            for outputs in program.outputs().values():
                _send(self._control, micro_batch, stage, stage, outputs)

    def _hand_on(
        self, micro_batch: int, stage: int, target: int, infos: tuple[TensorInfo, ...], made: Tensors
    ) -> None:
        tensors = {info.name: made[info.name] for info in infos}
        rank = self._job.rank_by_stage[target]
        if target in self._job.stages:
            self._arrived.setdefault((micro_batch, target), {})[stage] = tensors
            return
        try:
            _send(self._outgoing[rank], micro_batch, target, stage, tensors)
        except OSError:
            threading.Event().wait()  # that rank has ended, and the caller, which knows, ends this one


def _send(connection: Connection, micro_batch: int, stage: int, origin: int, tensors: Tensors) -> None:
    flat = {name: each.detach().contiguous() for name, each in tensors.items()}
    headers = tuple(
        TensorSpec(name=name, dtype=str(each.dtype).removeprefix("torch."), shape=tuple(each.shape))
        for name, each in flat.items()
    )
    message = messages.Tensors(micro_batch=micro_batch, stage=stage, origin=origin, tensors=headers)
    data = {name: each.reshape(-1).view(torch.uint8).numpy() for name, each in flat.items()}
    messages.send(connection, message, data)


def _drain(connection: Connection, arrived: queue.SimpleQueue[_Item], at_end: Callable[[], None]) -> None:
    """Put what arrives into the queue until the other side ends."""

    def run() -> None:
        try:
            while True:
                message, data = messages.receive(connection)
                assert isinstance(message, messages.Tensors), "nothing else follows the first message"
                tensors = {
                    header.name: torch.from_numpy(data[header.name])
                    .view(getattr(torch, header.dtype))
                    .reshape(header.shape)
                    for header in message.tensors
                }
                arrived.put((message, tensors))
        except (EOFError, OSError):
            at_end()

    threading.Thread(target=run, daemon=True).start()


def _main(control_fd: int) -> None:
    control = Connection(control_fd)
    job, _ = messages.receive(control)
    assert isinstance(job, RankJob), "the first message says what to do"
    try:
        torch.set_num_threads(job.num_threads)
        stages: ServedStages = find_function(job.provider)(job.spec, job.stages)
        rank = _Rank(job, stages, control)
        messages.send(control, Ready(manifest=stages.manifest, outputs=stages.outputs, reads=stages.reads))
        arrived: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        _drain(control, arrived, lambda: os._exit(0))
        for fd in job.incoming.values():
            _drain(Connection(fd, writable=False), arrived, lambda: None)
        while True:
            rank.take(*arrived.get())
    except Exception as error:  # foreign code: the stages
        traceback.print_exc()
        reason = (str(error).strip().splitlines() or [""])[0][:300]
        messages.send(control, Failed(reason=f"{type(error).__name__}: {reason}"))
        sys.exit(1)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
